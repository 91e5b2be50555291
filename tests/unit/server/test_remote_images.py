"""Images by URL: nothing private is reached, whatever a URL or a name says."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from prefold.server.errors import HttpError
from prefold.server.images_config import ImagesConfig
from prefold.server.remote_images import RemoteImages, is_public

PUBLIC = "93.184.215.14"
BODY = b"picture" * 100


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("location", "http://127.0.0.1/secret")
            self.end_headers()
        elif self.path == "/head":
            # Without an end: only the deadline of all of it ends this.
            while not gone.wait(0.02):
                self.wfile.write(b"x")
                self.wfile.flush()
        elif self.path == "/drip":
            self.send_response(200)
            self.end_headers()
            for _ in range(200):
                self.wfile.write(b"x")
                self.wfile.flush()
                if gone.wait(0.02):
                    return
        else:
            size = 5_000_000 if self.path == "/large" else 0
            self.send_response(200)
            self.end_headers()
            self.wfile.write(BODY + bytes(size))

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing."""


gone = threading.Event()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are expected."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        gone.set()
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class World:
    """A fetcher whose names mean what a test says, and whose connections are seen."""

    port: int
    addresses: list[list[str]]
    dialled: list[str] = field(default_factory=list)
    num_lookups: int = 0

    def resolve(self, host: str, port: int) -> list[str]:
        del host, port
        found = self.addresses[min(self.num_lookups, len(self.addresses) - 1)]
        self.num_lookups += 1
        return found

    def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        del port
        self.dialled.append(address)
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def fetcher(self, **changes: object) -> RemoteImages:
        config = ImagesConfig(
            remote_hosts=("images.example.org",),
            **changes,  # type: ignore[arg-type]
        )
        return RemoteImages(config, self.resolve, self.connect)


def test_an_image_comes_from_the_address_that_was_checked(port: int) -> None:
    # The name means something private a moment later, and is not asked again.
    world = World(port, [[PUBLIC], ["127.0.0.1"]])
    assert world.fetcher().fetch("http://images.example.org/cat.png?size=1") == BODY
    assert world.dialled == [PUBLIC]
    assert world.num_lookups == 1


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::"),  # noqa: S104
        *("fe80::1", "fc00::1", "::ffff:127.0.0.1", "::ffff:93.184.215.14"),
        *("64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:5ef5:79fd::1", "fe80::1%eth0", "x"),
    ],
)
def test_addresses_that_are_not_public_are_never_reached(port: int, address: str) -> None:
    assert not is_public(address)
    for addresses in ([address], [PUBLIC, address], []):
        world = World(port, [addresses])
        with pytest.raises(HttpError) as caught:
            world.fetcher().fetch("http://images.example.org/cat.png")
        assert caught.value.message == ERROR
        assert world.dialled == []


ERROR = "the image's URL cannot be used: send the image as a data URL"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://017700000001/",
        ),
        *("http://[::1]/", "http://localhost/", "http://other.example.org/"),
        *("http://user@images.example.org/", "http://images.example.org@127.0.0.1/"),
        *("http://images.example.org:8080/", "http://images.example.org:99999/"),
        *("http://images.example.org\\@127.0.0.1/", "http://images.example.org\t/"),
        *("http://images.example.org/ü", "http://images.example.org.evil.net/", "http://"),
        *("https://", "http:images.example.org/", "http://images.example.org%2f@x/"),
    ],
)
def test_urls_that_could_mean_something_else_are_not_followed(port: int, url: str) -> None:
    world = World(port, [[PUBLIC]])
    with pytest.raises(HttpError) as caught:
        world.fetcher().fetch(url)
    assert (caught.value.status, caught.value.message) == (400, ERROR)
    assert world.dialled == []


@pytest.mark.parametrize("path", ["moved", "large", "drip", "head"])
def test_redirects_and_too_much_or_too_slow_are_given_up(port: int, path: str) -> None:
    world = World(port, [[PUBLIC]])
    with pytest.raises(HttpError) as caught:
        world.fetcher(fetch_timeout_s=0.5, max_fetched_bytes=1_000_000).fetch(
            f"http://images.example.org/{path}"
        )
    assert caught.value.message == ERROR
    assert world.dialled == [PUBLIC]


def test_without_named_hosts_nothing_is_looked_up(port: int) -> None:
    world = World(port, [[PUBLIC]])
    with pytest.raises(HttpError, match="remote_hosts"):
        RemoteImages(ImagesConfig(), world.resolve, world.connect).fetch("http://a.b/")
    assert (world.num_lookups, world.dialled) == (0, [])
