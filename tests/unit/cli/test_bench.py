"""The load driver: what is sent, what is measured, and what is said of failures."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx2
import pytest

from prefold.cli.bench_client import Answer, BenchClient, Target
from prefold.cli.bench_load import make_conversations, run_load
from prefold.cli.bench_options import Endpoint, LoadOptions, ScenarioName
from prefold.cli.bench_summary import distribution, percentile, summarize
from prefold.cli.main import main
from prefold.errors import ConfigError
from support.processes import run_python
from support.settable_clock import SettableClock

BASE = "http://bench.test/v1"


def chunk(text: str | None = None, **more: object) -> dict[str, object]:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return {"choices": choices, **more}


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
USAGE = chunk(
    usage={
        "prompt_tokens": 50,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 48},
    }
)


class Endpoints:
    """An OpenAI-compatible server that answers from a script, on a clock of its own.

    Attributes:
        bodies: What it was sent.
        pieces: What it streams: events, texts for raw lines, and seconds to wait.
    """

    def __init__(self, pieces: Iterable[object] = (), status: int = 200) -> None:
        self.clock = SettableClock()
        self.bodies: list[dict[str, object]] = []
        self.paths: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.pieces = list(pieces)
        self.status = status
        self.num_open = 0
        self.most_open = 0

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.paths.append(request.url.path)
        self.headers.append(dict(request.headers))
        if request.method == "POST":
            self.bodies.append(json.loads(request.content))
        return httpx2.Response(
            self.status, content=self._stream(), headers={"x-request-id": "r1"}
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        for piece in self.pieces:
            await asyncio.sleep(0)
            match piece:
                case float():
                    self.clock.advance(piece)
                case str():
                    yield piece.encode()
                case _:
                    yield f"data: {json.dumps(piece)}\n\n".encode()
        self.num_open -= 1

    def client(self, **changes: object) -> BenchClient:
        values = {"base_url": BASE, "model": "m", **changes}
        return BenchClient(
            Target(**values),  # type: ignore[arg-type]
            max_connections=4,
            clock=self.clock,
            transport=httpx2.MockTransport(self.handle),
        )


def ask(server: Endpoints, question: object = "hello", **changes: object) -> Answer:
    async def main() -> Answer:
        async with server.client(**changes) as client:
            return await client.ask(question, 3)  # type: ignore[arg-type]

    return asyncio.run(main())


def test_times_are_taken_at_the_first_and_last_content() -> None:
    pieces = [
        0.5,
        ROLE,
        1.5,
        chunk("a"),
        0.25,
        chunk("b"),
        0.75,
        END,
        USAGE,
        "data: [DONE]\n\n",
    ]
    answer = ask(Endpoints(pieces))
    assert answer.error is None
    assert answer.ttft_s == 2.0
    assert answer.tpot_s == 0.5
    assert answer.total_s == 3.0
    assert answer.text == "ab"
    assert (answer.prompt_tokens, answer.cached_tokens) == (50, 48)
    assert answer.completion_tokens == 3
    assert answer.request_id == "r1"


def test_without_reported_usage_pieces_are_counted() -> None:
    pieces = [1.0, chunk("a"), 0.5, chunk("b"), 0.5, chunk("c"), "data: [DONE]\n\n"]
    answer = ask(Endpoints(pieces))
    assert answer.tpot_s == 0.5
    assert (answer.prompt_tokens, answer.cached_tokens) == (None, None)
    assert answer.completion_tokens is None


def test_an_empty_reply_ends_when_it_ends() -> None:
    answer = ask(Endpoints([ROLE, 2.0, END, USAGE, "data: [DONE]\n\n"]))
    assert answer.error is None
    assert answer.ttft_s == 2.0


def test_completions_have_their_own_path_and_pieces() -> None:
    server = Endpoints([{"choices": [{"text": "x"}]}, "data: [DONE]\n\n"])
    answer = ask(server, [1, 2, 3], endpoint=Endpoint.COMPLETIONS)
    assert answer.text == "x"
    assert server.paths == ["/v1/completions"]
    assert server.bodies[0]["prompt"] == [1, 2, 3]
    assert server.bodies[0]["stream"] is True


def test_what_is_sent_can_be_added_to() -> None:
    server = Endpoints(["data: [DONE]\n\n"])
    ask(server, api_key="k", extra={"top_k": 1})
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]
    assert server.bodies[0]["top_k"] == 1
    assert server.headers[0]["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("pieces", "status", "words"),
    [
        ([{"error": {"message": "too\nmuch"}}], 200, "too much"),
        (['{"error": {"message": "slow down"}}'], 429, "status 429: slow down"),
        (["<html>"], 502, "status 502: without a reason"),
        ([chunk("a")], 200, "broke off"),
        (["data: {\n\n"], 200, "not what OpenAI"),
        (["data: [1]\n\n"], 200, "not what OpenAI"),
        (['data: {"choices": [7]}\n\n'], 200, "not what OpenAI"),
    ],
)
def test_a_failure_is_a_few_words(pieces: list[object], status: int, words: str) -> None:
    answer = ask(Endpoints(pieces, status))
    assert answer.error is not None
    assert words in answer.error


def test_a_server_that_hangs_is_given_up() -> None:
    async def hang(_: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(60)
        return httpx2.Response(200)

    async def main() -> Answer:
        target = Target(base_url=BASE, model="m", timeout_s=0.05)
        transport = httpx2.MockTransport(hang)
        async with BenchClient(target, max_connections=1, transport=transport) as client:
            return await client.ask("hello", 3)

    answer = asyncio.run(main())
    assert answer.error == "no end within 0.05 s"


def test_a_key_is_not_shown() -> None:
    assert "canary" not in repr(Target(base_url=BASE, model="m", api_key="canary"))


# -- loads -----------------------------------------------------------------------------


def load(scenario: ScenarioName, **changes: int) -> LoadOptions:
    values = {
        "requests": 6,
        "concurrency": 2,
        "shared_words": 5,
        "own_words": 2,
        "turns": 4,
        "max_tokens": 3,
        "seed": 0,
    }
    return LoadOptions(scenario=scenario, **{**values, **changes})


def test_a_shared_prefix_is_the_same_for_all() -> None:
    made = make_conversations(load(ScenarioName.SHARED_PREFIX))
    assert len(made) == 6
    assert len({each.opening for each in made}) == 1
    assert len({each.turns for each in made}) == 6


def test_unique_prompts_have_nothing_in_common() -> None:
    made = make_conversations(load(ScenarioName.UNIQUE, shared_words=20))
    assert len({each.opening for each in made}) == 6
    assert {len(each.opening.split()) for each in made} == {20}


def test_turns_add_up_to_the_requests() -> None:
    made = make_conversations(load(ScenarioName.MULTI_TURN, requests=10))
    assert [len(each.turns) for each in made] == [4, 4, 2]
    assert len({each.opening for each in made}) == 3


def test_equal_seeds_make_equal_loads() -> None:
    options = load(ScenarioName.UNIQUE)
    assert make_conversations(options) == make_conversations(options)
    assert make_conversations(options) != make_conversations(
        load(ScenarioName.UNIQUE, seed=1)
    )


def play(server: Endpoints, options: LoadOptions, **changes: object) -> list[Answer]:
    async def main() -> list[Answer]:
        async with server.client(**changes) as client:
            return await run_load(
                client,
                make_conversations(options),
                concurrency=options.concurrency,
                max_tokens=options.max_tokens,
            )

    return asyncio.run(main())


@pytest.mark.parametrize("scenario", list(ScenarioName))
def test_every_request_is_sent_once(scenario: ScenarioName) -> None:
    server = Endpoints([chunk("a"), END, "data: [DONE]\n\n"])
    answers = play(server, load(scenario))
    assert len(answers) == len(server.bodies) == 6
    assert server.most_open == 2


def test_a_turn_begins_with_the_turns_before() -> None:
    server = Endpoints([chunk("reply"), END, "data: [DONE]\n\n"])
    play(server, load(ScenarioName.MULTI_TURN, requests=3, concurrency=1))
    said = [body["messages"] for body in server.bodies]
    roles = [[message["role"] for message in messages] for messages in said]  # type: ignore[attr-defined]
    assert roles[0] == ["system", "user"]
    assert roles[2] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert said[2][:4] == said[1]  # type: ignore[index]
    assert said[1][2]["content"] == "reply"  # type: ignore[index]


def test_a_conversation_ends_at_its_first_failure() -> None:
    server = Endpoints(["{}"], 500)
    answers = play(server, load(ScenarioName.MULTI_TURN, requests=8, concurrency=1))
    assert len(answers) == 2


def test_text_prompts_carry_the_whole_conversation() -> None:
    server = Endpoints([{"choices": [{"text": "r"}]}, END, "data: [DONE]\n\n"])
    options = load(ScenarioName.MULTI_TURN, requests=2, concurrency=1)
    play(server, options, endpoint=Endpoint.COMPLETIONS)
    first, second = (str(body["prompt"]) for body in server.bodies)
    assert second.startswith(f"{first}\n\nr\n\n")


# -- figures ---------------------------------------------------------------------------


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([1.0], 99) == 1.0
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 50) == 3.0
    assert percentile([0.0, 10.0], 90) == pytest.approx(9.0)


def test_a_distribution_leaves_out_what_is_missing() -> None:
    found = distribution([3.0, None, 1.0])
    assert found is not None
    assert (found.mean, found.p50, found.max) == (2.0, 2.0, 3.0)
    assert distribution([None]) is None


def test_failures_are_counted_and_left_out() -> None:
    good = Answer(
        error=None, ttft_s=1.0, prompt_tokens=10, cached_tokens=5, completion_tokens=4
    )
    summary = summarize([good, good, Answer(error="no"), Answer(error="no")], 2.0)
    assert (summary.num_requests, summary.num_failed) == (4, 2)
    assert summary.errors == {"no": 2}
    assert summary.requests_per_s == 1.0
    assert summary.reply_tokens_per_s == 4.0
    assert summary.cached_share == 0.5
    assert summary.to_json()["cached_share"] == 0.5


def test_what_is_not_reported_is_none() -> None:
    summary = summarize([Answer(error=None)], 1.0)
    assert summary.cached_tokens is None
    assert summary.cached_share is None
    assert summary.ttft_s is None


# -- the command -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--base-url", "ftp://x"], "must begin with http"),
        (["--base-url", "http://"], "must begin with http"),
        (["--base-url", "http://a:b"], "no URL"),
        (["--extra-body", "{"], "must be a JSON object"),
        (["--extra-body", "[]"], "must be a JSON object"),
        (["--scenario", "other"], "other"),
        (["--requests", "0"], "requests"),
    ],
)
def test_bad_options_are_a_sentence(
    arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serving", "--json", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("Error: ")
    assert words in err


def test_a_server_that_is_not_there_is_a_sentence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # Nothing listens on the discard port of this machine.
    assert main(["bench", "serving", "--base-url", "http://127.0.0.1:9/v1"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "no server answers at http://127.0.0.1:9/v1" in err


@pytest.mark.parametrize(
    ("pieces", "status"), [(["{}"], 200), (["<html>"], 200), (["{}"], 401)]
)
def test_what_lists_no_model_is_a_sentence(pieces: list[object], status: int) -> None:
    async def find() -> None:
        async with Endpoints(pieces, status).client() as client:
            await client.find_model()

    with pytest.raises(ConfigError, match=r"--model|--base-url"):
        asyncio.run(find())


_RUN_WITHOUT_TORCH = """
import sys

sys.modules["torch"] = sys.modules["transformers"] = None
from prefold.cli.main import main

sys.exit(0 if main(["bench", "serving", "--base-url", "http://127.0.0.1:9/v1"]) == 2 else 1)
"""


def test_it_needs_no_torch() -> None:
    run_python(_RUN_WITHOUT_TORCH)


class GuardedServer(BaseHTTPRequestHandler):
    """Answers who sends the right user and password, and remembers who does not."""

    strangers: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        events = [chunk("a"), END, USAGE]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._answer("".join([*lines, "data: [DONE]\n\n"]).encode())

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        sent = str(self.headers["authorization"])
        expected = base64.b64encode(b"canary-user:canary-word").decode()
        if sent != f"Basic {expected}":
            self.strangers.append(sent)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_password_in_the_url_is_sent_and_never_shown(
    form: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    GuardedServer.strangers.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), GuardedServer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.server_port}/v1"
        url = f"http://canary-user:canary-word@{address}"
        load = ["--requests", "2", "--concurrency", "1", "--shared-words", "1"]
        status = main(["bench", "serving", "--base-url", url, *load, *form])
        server.shutdown()
        thread.join()
    shown = capfd.readouterr()
    assert status == 0, shown.err
    assert not GuardedServer.strangers
    assert f"http://{address}" in shown.out
    assert "canary" not in shown.out + shown.err


@pytest.mark.parametrize(
    "url",
    [
        # Nobody answers there.
        "http://canary:canary@127.0.0.1:1/v1",
        "ftp://canary:canary@x/v1",
        "http://canary:canary@/v1",
        # What was not written as a URL wants it: no password, but a port or a path.
        "http://canary:canary/canary@x/v1",
        "http://canary:12/canary@x/v1",
        "http://x/v1#canary@x",
        "http://x/v1?canary@x",
    ],
)
@pytest.mark.parametrize("model", [[], ["--model", "m"]])
def test_no_message_shows_a_password(
    url: str, model: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    load = ["--requests", "1", "--shared-words", "1"]
    assert main(["bench", "serving", "--base-url", url, *load, *model]) != 0
    shown = capfd.readouterr()
    assert shown.err
    assert "canary" not in shown.out + shown.err


def test_no_representation_shows_a_password() -> None:
    target = Target(base_url="http://canary:canary@x/v1", model="m")
    assert "canary" not in repr(target)
    assert target.shown_url == "http://x/v1"
    plain = "http://X:80/v1"
    assert Target(base_url=plain, model="m").shown_url == plain
