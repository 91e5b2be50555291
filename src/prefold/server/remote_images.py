"""Remote images: fetches an image by URL, from the hosts an operator has named.

The name of the host is looked up once; every address it has must be a public one, and the
connection goes to one of those, so that a name that means something else a moment later
changes nothing. Redirects are not followed. Whatever goes wrong, the client is told the
same: what is behind a URL is nobody's to find out by it.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from prefold.server.errors import HttpError
from prefold.server.images_config import ImagesConfig

#: Addresses of a host's name, as text.
Resolve = Callable[[str, int], Sequence[str]]
#: Opens a connection to an address, within so many seconds.
Connect = Callable[[str, int, float], socket.socket]

_PORTS = {"http": 80, "https": 443}
#: What a URL is made of. Blanks, backslashes and signs beyond ASCII are read in several
#: ways by several readers.
_PLAIN = re.compile(r"[!-\[\]-~]{1,8192}")
_CHUNK = 65_536

_FAULTS = (OSError, ValueError, http.client.HTTPException)


class _RefusedError(Exception):
    """A URL that is not to be fetched, or not in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Where a URL leads: a host's name, and one checked address of it."""

    url: SplitResult
    host: str
    address: str
    port: int


def resolve_host(host: str, port: int) -> list[str]:
    """Return all addresses of a host's name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def connect_to(address: str, port: int, timeout_s: float) -> socket.socket:
    """Open a connection to an address, which is no name."""
    return socket.create_connection((address, port), timeout=timeout_s)


class RemoteImages:
    """Fetches images. May be used by several threads.

    Args:
        config: From where, and within which limits.
        resolve: Looks names up.
        connect: Opens connections.
    """

    __slots__ = ("_config", "_connect", "_resolve")

    def __init__(
        self,
        config: ImagesConfig,
        resolve: Resolve = resolve_host,
        connect: Connect = connect_to,
    ) -> None:
        self._config = config
        self._resolve = resolve
        self._connect = connect

    def fetch(self, url: str) -> bytes:
        """Return what a URL leads to. Blocks for ``fetch_timeout_s`` at most.

        Raises:
            HttpError: Images by URL are off, or this one is not to be had.
        """
        if not self._config.remote_hosts:
            raise HttpError(
                400,
                "images by URL are off on this server: send the image as a data URL, or "
                "ask the operator to name its host in [images] remote_hosts",
                param="messages",
                code="invalid_image",
            )
        deadline = time.monotonic() + self._config.fetch_timeout_s
        try:
            return self._read(self._find(url), deadline)
        except (_RefusedError, *_FAULTS) as error:
            raise HttpError(
                400,
                "the image's URL cannot be used: send the image as a data URL",
                param="messages",
                code="invalid_image",
            ) from error

    def _find(self, url: str) -> _Target:
        if not _PLAIN.fullmatch(url):
            raise _RefusedError
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        port = _PORTS.get(parts.scheme)
        if (
            port is None
            or parts.port not in (None, port)
            or "@" in parts.netloc
            or host not in self._config.remote_hosts
        ):
            raise _RefusedError
        addresses = self._resolve(host, port)
        if not addresses or not all(is_public(address) for address in addresses):
            raise _RefusedError
        return _Target(url=parts, host=host, address=addresses[0], port=port)

    def _read(self, target: _Target, deadline: float) -> bytes:
        connection = self._connect(target.address, target.port, _left(deadline))
        # Ends what trickles in so slowly that no single read takes long.
        timer = threading.Timer(_left(deadline), _shut, (connection,))
        timer.daemon = True
        timer.start()
        try:
            if target.url.scheme == "https":
                context = ssl.create_default_context()
                connection = context.wrap_socket(connection, server_hostname=target.host)
            return self._exchange(connection, target, deadline)
        finally:
            timer.cancel()
            connection.close()

    def _exchange(
        self, connection: socket.socket, target: _Target, deadline: float
    ) -> bytes:
        path = target.url.path or "/"
        query = f"?{target.url.query}" if target.url.query else ""
        connection.sendall(
            f"GET {path}{query} HTTP/1.1\r\nHost: {target.host}\r\nAccept: image/*\r\n"
            "Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode("ascii")
        )
        response = http.client.HTTPResponse(connection, method="GET")
        try:
            response.begin()
            if response.status != 200:
                raise _RefusedError
            pieces: list[bytes] = []
            num_bytes = 0
            while piece := response.read1(_CHUNK):
                num_bytes += len(piece)
                if num_bytes > self._config.max_fetched_bytes:
                    raise _RefusedError
                connection.settimeout(_left(deadline))
                pieces.append(piece)
            # The timer's end looks like the other side's.
            _left(deadline)
            if response.length:
                raise _RefusedError
            return b"".join(pieces)
        finally:
            response.close()


def is_public(address: str) -> bool:
    """Tell whether an address is one that anybody may reach, as far as its number says."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        # An IPv4 address inside of it is where the connection really goes.
        if found.ipv4_mapped is not None or found.sixtofour is not None:
            return False
        if found.teredo is not None or found in _TRANSLATED:
            return False
    return found.is_global and not found.is_multicast


_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _RefusedError
    return left


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already
