"""Listen: the two addresses of a server, taken before anything slow begins.

Sockets listen from the start, so a taken port shows at once, and connections made while
the model loads wait for it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from prefold.errors import ConfigError
from prefold.server.config import ServerConfig

#: Connections that may wait to be accepted.
BACKLOG = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The listening sockets of both planes."""

    public: socket.socket
    admin: socket.socket


@contextmanager
def listen(config: ServerConfig) -> Iterator[Listeners]:
    """Listen for both planes while the body runs.

    Raises:
        ConfigError: An address is taken, is not this machine's, or may not be used.
    """
    with ExitStack() as sockets:
        yield Listeners(
            public=sockets.enter_context(_bind(config.host, config.port, "port")),
            admin=sockets.enter_context(
                _bind(config.admin_host, config.admin_port, "admin-port")
            ),
        )


def url_of(listener: socket.socket) -> str:
    """Return the address of a listening socket as the beginning of a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(host: str, port: int, option: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise ConfigError(
            f"{host!r} is no address to listen on: {exc.strerror}; try 127.0.0.1"
        ) from exc
    try:
        # A restart must not wait for the last connections of the one before.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise ConfigError(_refusal(exc, host, port, option)) from exc
    return listener


def _refusal(error: OSError, host: str, port: int, option: str) -> str:
    place = f"port {port} of {host}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is taken by another program; choose another with --{option}"
    if error.errno == errno.EACCES:
        return f"{place} may not be used; choose one above 1023 with --{option}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine; try 127.0.0.1"
    return f"{place} cannot be used: {error.strerror}; choose another with --{option}"
