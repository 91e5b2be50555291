"""Ports are taken at once, and what is wrong with one is a sentence."""

from __future__ import annotations

import socket

import pytest

from prefold.errors import ConfigError
from prefold.server.config import ServerConfig
from prefold.server.listen import listen, url_of


def test_both_ports_listen() -> None:
    with listen(ServerConfig(port=0, admin_port=0)) as listeners:
        for listener in (listeners.public, listeners.admin):
            with socket.create_connection(listener.getsockname()[:2], timeout=5):
                pass
        assert url_of(listeners.public).startswith("http://127.0.0.1:")
    assert listeners.public.fileno() == listeners.admin.fileno() == -1


@pytest.mark.parametrize("plane", ["port", "admin_port"])
def test_a_taken_port_is_named_and_nothing_stays_open(plane: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = ServerConfig(**{"port": 0, "admin_port": 0, plane: port})
        with (
            pytest.raises(
                ConfigError, match=f"port {port} of 127.0.0.1 is taken"
            ) as caught,
            listen(config),
        ):
            pass
        assert f"--{plane.replace('_', '-')}" in str(caught.value)


def test_two_servers_that_only_listen_collide() -> None:
    with listen(ServerConfig(port=0, admin_port=0)) as listeners:
        config = ServerConfig(port=listeners.public.getsockname()[1], admin_port=0)
        with pytest.raises(ConfigError, match="taken"), listen(config):
            pass


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "256.1.1.1"])
def test_an_address_that_is_not_here_is_a_sentence(host: str) -> None:
    config = ServerConfig(port=0, admin_port=0, admin_host=host)
    with pytest.raises(ConfigError, match=r"try 127\.0\.0\.1"), listen(config):
        pass


def test_a_port_can_be_used_again_at_once() -> None:
    with listen(ServerConfig(port=0, admin_port=0)) as listeners:
        address = listeners.public.getsockname()[:2]
        with socket.create_connection(address, timeout=5):
            accepted = listeners.public.accept()[0]
            # Closed here first, so that this side has to wait for late packets.
            accepted.close()
    with listen(ServerConfig(port=address[1], admin_port=0)):
        pass
