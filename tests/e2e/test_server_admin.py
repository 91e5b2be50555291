"""The server as a program: how it starts, what it says and keeps to itself, how it ends."""

from __future__ import annotations

import json
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from prefold.cli.main import main
from prefold.server.keys import KeyFile
from support.planes_rig import assert_error, parse_metrics, total
from support.server_process import LONG_S, ServerProcess, start_server
from support.sessions import CHAT_TEMPLATE
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e

CACHE = ["--cache-blocks", "256"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_model(make_llama(), tmp_path_factory.mktemp("llama"))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def server(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with start_server(model, tmp_path_factory.mktemp("server"), *CACHE) as running:
        running.wait_until_ready()
        yield running


def body_of(server: ServerProcess, **fields: object) -> dict[str, object]:
    return {"model": server.ready["model"], "prompt": "x", "ignore_eos": True, **fields}


# -- what it says ----------------------------------------------------------------------


def test_it_says_where_it_is(server: ServerProcess, model: Path) -> None:
    ready = server.ready
    assert ready["model"] == model.name
    assert ready["cache_tokens"] == 256 * 16
    assert str(ready["public_url"]).startswith("http://127.0.0.1:")
    with server.public() as public, server.admin() as admin:
        assert public.get("/health").status_code == 200
        assert admin.get("/health/ready").status_code == 200


def test_the_token_is_in_a_file_of_its_owner_and_nowhere_else(
    server: ServerProcess,
) -> None:
    path = Path(str(server.ready["admin_token_file"]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(server.token) >= 32
    assert server.token not in server.err
    assert server.token not in json.dumps(server.ready)


def test_it_listens_on_two_ports_of_this_machine_only(server: ServerProcess) -> None:
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    if not descriptors.is_dir():
        pytest.skip("there is no /proc to look at")
    own = {str(each.readlink()) for each in descriptors.iterdir()}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                listening.append(fields[1].split(":"))
    ports = {int(port, 16) for _, port in listening}
    wanted = {
        httpx2.URL(str(server.ready[name])).port for name in ("public_url", "admin_url")
    }
    assert ports == wanted
    assert {address for address, _ in listening} == {"0100007F"}


@pytest.mark.slow
def test_who_connects_and_asks_nothing_is_cut(server: ServerProcess) -> None:
    url = httpx2.URL(str(server.ready["public_url"]))
    place = (url.host, int(url.port or 0))
    began_at = time.monotonic()
    with (
        socket.create_connection(place, timeout=40) as silent,
        socket.create_connection(place, timeout=40) as begun,
    ):
        begun.sendall(b"POST /v1/completions HTTP/1.1\r\nhost")
        for client in (silent, begun):
            assert client.recv(100) == b""
            assert 9 < time.monotonic() - began_at < 30


# -- under load ------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["shared-prefix", "multi-turn", "unique"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_load_driver_measures_it(
    endpoint: str, scenario: str, server: ServerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    with server.admin() as admin:
        assert admin.post("/cache/reset", json={}).status_code == 200
    sizes = ["--requests", "6", "--concurrency", "2", "--shared-words", "40"]
    code = main(
        [
            *["bench", "serving", "--base-url", f"{server.ready['public_url']}/v1"],
            *["--scenario", scenario, "--endpoint", endpoint, *sizes, "--turns", "3"],
            *["--own-words", "5", "--max-tokens", "4", "--json"],
            *["--extra-body", '{"ignore_eos": true}', "--seed", "7"],
        ]
    )
    out, err = capfd.readouterr()
    assert code == 0, err
    report = json.loads(out)
    assert report["model"] == server.ready["model"]
    assert (report["num_requests"], report["num_failed"]) == (6, 0)
    assert report["reply_tokens"] == 24
    assert 0 < report["ttft_s"]["p50"] <= report["ttft_s"]["max"]
    assert report["tpot_s"]["p50"] > 0
    share = report["cached_share"]
    # Two begin at once, before anything is cached.
    assert share < 0.15 if scenario == "unique" else share > 0.4


def test_the_load_driver_speaks_to_people(
    server: ServerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"{server.ready['public_url']}/v1"
    small = ["--requests", "2", "--shared-words", "9", "--max-tokens", "2"]
    assert main(["bench", "serving", "--base-url", url, *small]) == 0
    out, _ = capfd.readouterr()
    for words in ("shared-prefix on", "answered", "2 of 2", "first token", "median"):
        assert words in out
    assert main(["bench", "serving", "--base-url", url, *small, "--model", "other"]) == 1
    out, _ = capfd.readouterr()
    assert "0 of 2" in out
    assert "status 404" in out


def test_the_metrics_are_those_of_what_was_sent(server: ServerProcess) -> None:
    with server.admin() as admin, server.public() as public:
        before = parse_metrics(admin.get("/metrics").text)
        usages = [
            public.post(
                "/v1/completions",
                json=body_of(server, prompt="the order " * 30, max_tokens=5),
            ).json()["usage"]
            for _ in range(2)
        ]
        after = parse_metrics(admin.get("/metrics").text)

    def grown(name: str) -> float:
        return total(after, name) - total(before, name)

    assert grown("prefold_prompt_tokens_total") == sum(u["prompt_tokens"] for u in usages)
    hits = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    assert grown("prefold_hit_tokens_total") == hits > 0
    assert grown("prefold_completion_tokens_total") == 10
    assert after['prefold_requests_total{outcome="finished"}'] >= 2
    assert after["prefold_metric_errors_total"] == 0
    assert total(after, "prefold_blocks") == 256


# -- what it keeps to itself -----------------------------------------------------------

_TENANTS = """
[[tenants]]
name = "acme"
"""


def test_nothing_secret_is_ever_written_down(model: Path, tmp_path: Path) -> None:
    key = KeyFile(tmp_path / "keys.json").create("acme").text
    config = f'[server]\nkey_file = "{tmp_path}/keys.json"\n{_TENANTS}'
    with start_server(model, tmp_path, *CACHE, config=config) as server:
        server.wait_until_ready()
        with server.public(key) as public, server.admin() as admin:
            _send_canaries(server, public)
            _send_canaries(server, admin)
            written = [admin.get("/metrics").text, admin.get("/cache/tree").text]
        token = server.token
        code, out = server.end()
        written += [out, server.err, json.dumps(server.ready)]
    assert code == 0
    for text in written:
        for secret in ("canary", "CANARY", key, key.rpartition("_")[2], token, "7, 7, 7"):
            assert secret not in text
    # What happened is there nevertheless.
    assert "request_id=" in server.err
    assert "route=/v1/completions status=200" in server.err
    assert "tenant=acme" in server.err


def _send_canaries(server: ServerProcess, client: httpx2.Client) -> None:
    for path in ("/v1/completions", "/cache/warm", "/cache/lookup", "/tokenize"):
        for body in (
            {"prompt": "canary prompt " * 9, "cache_salt": "canary-salt"},
            {"prompt": [7] * 40},
            {"prompt": "x", "canary": "canary"},
            {"prompt": {"canary": "canary"}},
            {"prompt": "x", "cache_salt": "canary" * 99},
            {"prompt": "x", "stop": ["canary"], "user": "canary"},
            {"prompt": "canary " * 9999},
            {"prompt": "x", "logit_bias": {"canary": 1}},
        ):
            client.post(path, json={**body, "model": server.ready["model"]})
    message = {"role": "user", "content": "canary message"}
    chat = {"model": server.ready["model"], "messages": [message], "max_tokens": 2}
    client.post("/v1/chat/completions", json=chat)
    client.post("/v1/chat/completions", json={**chat, "stream": True})
    client.post("/v1/chat/completions", json={**chat, "model": "canary"})
    client.post("/v1/completions", content=b'{"prompt": "canary', headers=_JSON)
    client.get("/canary/path?canary=canary")
    client.request("CANARY", "/v1/completions")
    client.get("/requests/canary/timing")
    client.get("/v1/models", headers={"x-request-id": "canary with spaces"})
    client.get("/v1/models", headers={"authorization": "Bearer canary-key"})


_JSON = {"content-type": "application/json"}


# -- how it ends -----------------------------------------------------------------------


def test_ctrl_c_ends_it(model: Path, tmp_path: Path) -> None:
    with start_server(model, tmp_path, *CACHE) as server:
        server.wait_until_ready()
        assert server.end(signal.SIGINT) == (130, "")
        assert server.err.splitlines()[-1] == "Interrupted."
        assert "Traceback" not in server.err


def test_a_signal_while_it_loads_ends_it(model: Path, tmp_path: Path) -> None:
    with start_server(model, tmp_path, *CACHE) as server:
        deadline = time.monotonic() + LONG_S
        while "Loading the model" not in server.err and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.end() == (0, "")
        assert "Traceback" not in server.err


def test_open_requests_finish_and_new_ones_are_refused(model: Path, tmp_path: Path) -> None:
    with start_server(model, tmp_path, *CACHE) as server:
        server.wait_until_ready()
        with (
            server.public() as public,
            server.admin() as admin,
            _open_stream(server, public, 400) as lines,
        ):
            server.process.send_signal(signal.SIGTERM)
            _wait_until_draining(admin)
            with server.public() as late:
                message = assert_error(
                    late.post("/v1/completions", json=body_of(server)), 503
                )
                assert "shutting down" in message
                assert_error(late.get("/health"), 503)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        assert _num_pieces(rest) > 50
        assert server.end() == (0, "")


def test_what_does_not_finish_in_time_is_aborted(model: Path, tmp_path: Path) -> None:
    config = "[server]\ndrain_s = 0.1\n"
    with start_server(model, tmp_path, *CACHE, config=config) as server:
        server.wait_until_ready()
        with server.public() as public, _open_stream(server, public, 1900) as lines:
            began_at = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            rest = _read_all(lines)
        assert "data: [DONE]" not in rest
        assert server.end() == (0, "")
        assert time.monotonic() - began_at < 30
        assert "Traceback" not in server.err


def test_a_second_signal_does_not_wait(model: Path, tmp_path: Path) -> None:
    config = "[server]\ndrain_s = 3600.0\n"
    with start_server(model, tmp_path, *CACHE, config=config) as server:
        server.wait_until_ready()
        with (
            server.public() as public,
            server.admin() as admin,
            _open_stream(server, public, 1900) as lines,
        ):
            server.process.send_signal(signal.SIGINT)
            _wait_until_draining(admin)
            server.process.send_signal(signal.SIGINT)
            assert "data: [DONE]" not in _read_all(lines)
        assert server.end() == (130, "")


class _Lines:
    """The lines of a stream whose first one has come."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._lines = response.iter_lines()
        while not next(self._lines).startswith("data:"):
            pass

    def __enter__(self) -> Iterator[str]:
        return (line for line in self._lines if line)

    def __exit__(self, *exc: object) -> None:
        self._response.close()


def _open_stream(server: ServerProcess, public: httpx2.Client, max_tokens: int) -> _Lines:
    body = body_of(server, max_tokens=max_tokens, stream=True)
    request = public.build_request("POST", "/v1/completions", json=body)
    return _Lines(public.send(request, stream=True))


def _read_all(lines: Iterator[str]) -> list[str]:
    """Read what comes; a stream that is cut off ends as well."""
    found = []
    try:
        for line in lines:
            found.append(line)  # noqa: PERF402 -- what came before a failure counts
    except httpx2.HTTPError:
        pass
    return found


def _num_pieces(lines: list[str]) -> int:
    return sum(line.startswith("data: {") for line in lines)


def _wait_until_draining(admin: httpx2.Client) -> None:
    deadline = time.monotonic() + LONG_S
    while admin.get("/health").json() != {"status": "draining"}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
