"""Bench client: one streamed request to an OpenAI-compatible server, and its times.

Times are the client's: from before the request is sent to when a piece of the answer has
been read. The first piece of a chat only says who speaks, so what counts there is the
first one with content.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, cast

import httpx2

from prefold.cli.bench_options import Endpoint
from prefold.errors import ConfigError

#: Read of an answer that is no stream, for its message.
_MAX_ERROR_BYTES = 10_000

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go.

    Attributes:
        base_url: Up to and with ``/v1``. It may hold a user and a password, which are
            sent; what is printed is ``shown_url``.
        extra: Fields that are added to every body.
        timeout_s: Of one request.
    """

    base_url: str = field(repr=False)
    model: str
    api_key: str | None = field(default=None, repr=False)
    endpoint: Endpoint = Endpoint.CHAT
    extra: Mapping[str, object] = field(default_factory=dict)
    timeout_s: float = 600.0

    @property
    def shown_url(self) -> str:
        """The base URL without user and password."""
        url = httpx2.URL(self.base_url)
        return str(url.copy_with(userinfo=b"")) if url.userinfo else self.base_url


#: A prompt as text or token ids, or the messages of a chat.
Question = str | Sequence[int] | Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request.

    Attributes:
        error: Why it failed, in a few words; None if it did not.
        text: All of the reply.
        ttft_s: Until the first piece of the reply; None if there was none.
        tpot_s: Mean distance of the tokens after the first; None below two.
        cached_tokens: As the server reports them; None where it does not.
        request_id: The header ``x-request-id``.
    """

    error: str | None
    text: str = field(default="", repr=False)
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    request_id: str | None = None


class BenchClient:
    """Sends requests over kept connections. Used on one event loop."""

    def __init__(
        self,
        target: Target,
        *,
        max_connections: int,
        clock: Callable[[], float] = time.perf_counter,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.target = target
        self._clock = clock
        headers = {}
        if target.api_key is not None:
            headers["authorization"] = f"Bearer {target.api_key}"
        self._client = httpx2.AsyncClient(
            base_url=_base_of(target.base_url),
            headers=headers,
            timeout=httpx2.Timeout(target.timeout_s),
            limits=httpx2.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
            # A proxy of the environment has no business with this machine's own server.
            trust_env=httpx2.URL(target.base_url).host not in _LOOPBACK,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def find_model(self) -> str:
        """Return the first model that the server lists.

        Raises:
            ConfigError: It does not answer, or lists none.
        """
        try:
            response = await self._client.get("models")
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
        except httpx2.HTTPStatusError as exc:
            raise ConfigError(
                f"the server answers {exc.response.status_code} to the question for its "
                "models; check the base URL and the API key, or name one with --model"
            ) from exc
        except httpx2.HTTPError as exc:
            raise ConfigError(
                f"no server answers at {self.target.shown_url} ({type(exc).__name__}); "
                "start one or give another --base-url"
            ) from exc
        except (ValueError, LookupError, TypeError) as exc:
            raise ConfigError(
                f"what answers at {self.target.shown_url} lists no model; give another "
                "--base-url, or name one with --model"
            ) from exc

    async def ask(self, question: Question, max_tokens: int) -> Answer:
        """Send one request and read its answer to the end. Never raises for a failure."""
        reading = _Reading(self._clock)
        try:
            async with asyncio.timeout(self.target.timeout_s):
                await self._read(question, max_tokens, reading)
        except TimeoutError:
            reading.error = f"no end within {self.target.timeout_s:g} s"
        except (httpx2.HTTPError, httpx2.StreamError) as exc:
            reading.error = f"{type(exc).__name__} while talking to the server"
        except (ValueError, LookupError, TypeError, AttributeError):
            reading.error = "the server's answer is not what OpenAI's interface says"
        return reading.answer()

    async def _read(self, question: Question, max_tokens: int, reading: _Reading) -> None:
        target = self.target
        body = _body(target, question, max_tokens)
        path = "chat/completions" if target.endpoint is Endpoint.CHAT else "completions"
        async with self._client.stream("POST", path, json=body) as response:
            reading.request_id = response.headers.get("x-request-id")
            if response.status_code != 200:
                reading.error = await _failure(response)
                return
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    reading.take(line[5:].strip())


class _Reading:
    """What has been read of one answer so far."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.error: str | None = None
        self.request_id: str | None = None
        self._clock = clock
        self._began_at = clock()
        self._first_at: float | None = None
        self._last_at: float | None = None
        self._num_pieces = 0
        self._texts: list[str] = []
        self._usage: Mapping[str, object] | None = None
        self._is_done = False

    def take(self, data: str) -> None:
        """Take in the data of one event."""
        if data == "[DONE]":
            self._is_done = True
            return
        chunk = json.loads(data)
        if chunk.get("error"):
            self.error = _sentence_of(chunk)
            return
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        for choice in chunk.get("choices") or ():
            self._take_choice(choice)

    def _take_choice(self, choice: Mapping[str, object]) -> None:
        part = choice if choice.get("delta") is None else choice["delta"]
        content = cast("Mapping[str, object]", part)
        text = content.get("text") or content.get("content")
        # What a model thinks, and calls of tools, are parts of a reply as well; and one
        # without any text is there when it ends.
        others = (content.get("reasoning_content"), content.get("tool_calls"))
        if not text and not any(others) and choice.get("finish_reason") is None:
            return
        now = self._clock()
        if self._first_at is None:
            self._first_at = now
        self._last_at = now
        self._num_pieces += 1
        self._texts.append(str(text or ""))

    def answer(self) -> Answer:
        """Return what came of it."""
        if self.error is None and not self._is_done:
            self.error = "the stream broke off"
        usage = self._usage or {}
        completion = _count(usage, "completion_tokens")
        details = usage.get("prompt_tokens_details")
        first, last = self._first_at, self._last_at
        num_tokens = self._num_pieces if completion is None else completion
        tpot_s = None
        if first is not None and last is not None and num_tokens > 1:
            tpot_s = (last - first) / (num_tokens - 1)
        return Answer(
            error=self.error,
            text="".join(self._texts),
            ttft_s=None if first is None else first - self._began_at,
            tpot_s=tpot_s,
            total_s=self._clock() - self._began_at,
            prompt_tokens=_count(usage, "prompt_tokens"),
            cached_tokens=(
                _count(details, "cached_tokens") if isinstance(details, dict) else None
            ),
            completion_tokens=completion,
            request_id=self.request_id,
        )


def _body(target: Target, question: Question, max_tokens: int) -> dict[str, object]:
    body: dict[str, object] = {
        "model": target.model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.endpoint is Endpoint.COMPLETIONS:
        body["prompt"] = question if isinstance(question, str) else list(question)
    elif isinstance(question, str):
        body["messages"] = [{"role": "user", "content": question}]
    else:
        body["messages"] = list(question)
    body.update(target.extra)
    return body


async def _failure(response: httpx2.Response) -> str:
    data = b""
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > _MAX_ERROR_BYTES:
            break
    try:
        sentence = _sentence_of(json.loads(data[:_MAX_ERROR_BYTES]))
    except ValueError:
        sentence = "without a reason"
    return f"status {response.status_code}: {sentence}"


def _sentence_of(document: object) -> str:
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    text = message if isinstance(message, str) else "without a reason"
    return " ".join(text.split())[:300]


def _count(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _base_of(url: str) -> str:
    return url if url.endswith("/") else f"{url}/"
