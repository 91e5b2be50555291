"""Both planes against their own OpenAPI documents: whatever comes in, answers conform."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from prefold.server.config import TenantConfig
from prefold.server.protocol_chat import ChatChunk
from prefold.server.protocol_completions import Completion
from support.planes_rig import MODEL, Rig, RigSettings, client_of, open_rig
from support.public_plane import PlaneRunner

pytestmark = [
    pytest.mark.e2e,
    # The generator's own, about what it uses.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

NUM_EXAMPLES = 200 if os.environ.get("PREFOLD_SOAK") else 15

_URL = "http://127.0.0.1:8000"

PUBLIC = [
    "DELETE /v1/files/{file_id}",
    "GET /health",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "POST /tokenize",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/files",
]
#: Their bodies name something that has to be there, or hold a file.
NAMING = frozenset(
    {
        "POST /adapters",
        "POST /cache/pin",
        "POST /cache/unpin",
        "POST /cache/withdraw",
        "POST /v1/files",
    }
)
ADMIN = [
    "DELETE /adapters/{name}",
    "DELETE /domains/{path}",
    "GET /adapters",
    "GET /cache/approvals",
    "GET /cache/explain/{request_id}",
    "GET /cache/figures",
    "GET /cache/misses",
    "GET /cache/runs",
    "GET /cache/runs/{id}",
    "GET /cache/stats",
    "GET /cache/tree",
    "GET /cache/whatif",
    "GET /cache/worth",
    "GET /health",
    "GET /health/live",
    "GET /health/ready",
    "GET /metrics",
    "GET /queue",
    "GET /requests/{request_id}/timing",
    "POST /adapters",
    "POST /cache/approve",
    "POST /cache/invalidate",
    "POST /cache/lookup",
    "POST /cache/pin",
    "POST /cache/reset",
    "POST /cache/runs/{id}/approve",
    "POST /cache/runs/{id}/invalidate",
    "POST /cache/search",
    "POST /cache/unpin",
    "POST /cache/warm",
    "POST /cache/withdraw",
    "POST /model/reload-template",
    "POST /model/swap",
]

OPERATIONS = [
    *(("public", label) for label in PUBLIC),
    *(("admin", label) for label in ADMIN),
]

#: Some prompts so short that the small model has room for a reply.
_PROMPTS = ["a", "the order of the day", [1, 2, 3], ["x", [5]]]


@dataclass(slots=True, kw_only=True)
class Surface:
    """A plane and its document, called from this thread."""

    loop: asyncio.Runner
    app: FastAPI
    authorization: str
    schema: Any

    def send(self, case: Case[Any]) -> httpx2.Response:
        """Carry a case as any client would, into the application and back."""
        given = case.as_transport_kwargs(base_url=_URL)
        headers = httpx2.Headers(given.get("headers", {}))
        headers["authorization"] = self.authorization
        body: dict[str, Any] = {}
        if "json" in given:
            body["content"] = json.dumps(given["json"]).encode()
            headers.setdefault("content-type", "application/json")
        elif given.get("data") is not None:
            body["content"] = given["data"]
        request = httpx2.Request(
            given["method"],
            given["url"],
            params=given.get("params"),
            headers=headers,
            **body,
        )

        async def carry() -> httpx2.Response:
            async with client_of(self.app) as client:
                return await client.send(request)

        return self.loop.run(carry())


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, loop: asyncio.Runner) -> Iterator[Rig]:
    rig_settings = RigSettings(
        directory=tmp_path_factory.mktemp("planes"),
        tenants=(TenantConfig(name="acme"),),
        # Whoever asks for all that the context leaves is soon done.
        max_model_len=96,
        num_blocks=64,
        # Unlike the rig's own, this one has log-probabilities of prompts.
        wrap_runner=lambda _: PlaneRunner(64),
    )
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(open_rig(rig_settings)))
    loop.run(stack.aclose())


@pytest.fixture(scope="module")
def surfaces(rig: Rig, loop: asyncio.Runner) -> dict[str, Surface]:
    load_all_checks()
    planes = {
        "public": (rig.planes.public, f"Bearer {rig.keys['acme']}"),
        "admin": (rig.planes.admin, rig.token.authorization),
    }

    async def read(app: FastAPI, authorization: str) -> Any:
        async with client_of(app, authorization) as client:
            document = (await client.get("/openapi.json")).json()
        # Who may come in is another test's matter; here everybody has the credential.
        for operations in document["paths"].values():
            for operation in operations.values():
                operation.pop("security", None)
        return document

    found = {}
    for name, (app, authorization) in planes.items():
        document = loop.run(read(app, authorization))
        found[name] = Surface(
            loop=loop,
            app=app,
            authorization=authorization,
            schema=schemathesis.openapi.from_dict(document),
        )
    return found


def test_the_documents_have_exactly_these_operations(
    surfaces: dict[str, Surface],
) -> None:
    for name, labels in (("public", PUBLIC), ("admin", ADMIN)):
        schema = surfaces[name].schema
        found = [result.ok().label for result in schema.get_all_operations()]
        assert sorted(found) == labels


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("plane", "label"), OPERATIONS)
def test_answers_conform(
    plane: str, label: str, mode: str, surfaces: dict[str, Surface]
) -> None:
    surface = surfaces[plane]
    operation = surface.schema.find_operation_by_label(label)
    seen: Counter[int] = Counter()
    is_negative = mode == "negative"
    if is_negative and not operation.body and not operation.query:
        return  # there is nothing in its requests that could be wrong

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def check(case: Case[Any]) -> None:
        if not is_negative and seen.total() % 2:
            _fit(case)
        seen[_call_and_check(surface, case, is_negative=is_negative)] += 1

    check()
    # What the document's types allow may still be refused, but not all of it; unless it
    # has to name something that is there, or the model has no next version.
    names_something = "{" in label or "/model/" in label or label in NAMING
    assert is_negative or names_something or seen[200], seen


def test_requests_that_fit_are_answered(surfaces: dict[str, Surface]) -> None:
    """The documents' own requests, with prompts that have a reply."""
    for path in ("/v1/completions", "/tokenize", "/cache/warm", "/cache/lookup"):
        plane = "admin" if path.startswith("/cache") else "public"
        operation = surfaces[plane].schema.find_operation_by_label(f"POST {path}")
        for prompt in _PROMPTS:
            if path == "/tokenize" and not isinstance(prompt, str):
                continue
            body: dict[str, Any] = {"prompt": prompt}
            if plane == "public":
                body["model"] = MODEL
            for more in _VARIANTS if path == "/v1/completions" else [{}]:
                case = operation.Case(body={**body, **more}, media_type="application/json")
                assert _call_and_check(surfaces[plane], case, is_negative=False) == 200
    chat = surfaces["public"].schema.find_operation_by_label("POST /v1/chat/completions")
    messages = [{"role": "user", "content": "hello"}]
    for more in ({}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}, {"stream": True}):
        body = {"model": MODEL, "messages": messages, **more}
        case = chat.Case(body=body, media_type="application/json")
        assert _call_and_check(surfaces["public"], case, is_negative=False) == 200


def test_what_operators_share_and_drop_is_answered(surfaces: dict[str, Surface]) -> None:
    surface = surfaces["admin"]

    def send(label: str, body: dict[str, Any]) -> None:
        operation = surface.schema.find_operation_by_label(f"POST {label}")
        case = operation.Case(body=body, media_type="application/json")
        assert _call_and_check(surface, case, is_negative=False) == 200

    prefix = {"prompt": list(range(32)), "domain": "acme", "label": "rules"}
    send("/cache/approve", prefix)
    send("/cache/approve", {**prefix, "domain": "public", "pinned": True, "ttl_s": 9.5})
    listed = surface.schema.find_operation_by_label("GET /cache/approvals")
    assert _call_and_check(surface, listed.Case(), is_negative=False) == 200

    async def first() -> str:
        async with client_of(surface.app, surface.authorization) as client:
            answer = await client.get("/cache/approvals", params={"domain": "acme"})
        return str(answer.json()["approvals"][0]["id"])

    send("/cache/withdraw", {"id": surface.loop.run(first())})
    for selector in (
        *({"domain": "acme"}, {"domain": "acme", "below": False}, {"approval": "none"}),
        *({"prompt": list(range(16)), "domain": None}, {"older_than_s": 1.5}),
        *({"field": "weights", "value": "current"}, {"field": "adapter", "value": None}),
        {"everything": True},
    ):
        send("/cache/invalidate", selector)
    revoke = surface.schema.find_operation_by_label("DELETE /domains/{path}")
    case = revoke.Case(path_parameters={"path": "nobody"}, query={"requests": "drain"})
    assert _call_and_check(surface, case, is_negative=False) == 200


_CHUNKS: dict[str, type[BaseModel]] = {
    "POST /v1/completions": Completion,
    "POST /v1/chat/completions": ChatChunk,
}


def _check_events(text: str, model: type[BaseModel]) -> None:
    frames = text.split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    assert frames
    for frame in frames:
        model.model_validate_json(frame.removeprefix("data: "))


_VARIANTS: list[dict[str, Any]] = [
    {},
    {"n": 2, "logprobs": 2},
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"stream": True, "stream_options": {"include_usage": True}},
]


def _fit(case: Case[Any]) -> None:
    """Bring numbers into the ranges that this model and server have."""
    if not isinstance(case.body, dict):
        return
    body: dict[str, Any] = {**case.body}
    if case.operation.label == "POST /cache/approve":
        # Less than a block is refused, and so are two labels of one prefix.
        prefix = {"prompt": list(range(32)), "label": "a"}
        body = {"domain": body["domain"], **prefix}
    if case.operation.label == "POST /cache/warm":
        # Images are refused, and so are names of what is not there.
        body = {name: body[name] for name in body if name in ("ttl_s", "priority")}
        body["prompt"] = "x"
    if case.operation.label == "POST /cache/invalidate":
        names = [name for name in body if name in ("domain", "older_than_s", "approval")]
        found = {name: body[name] for name in names[:1] if body[name] is not None}
        body = found or {"everything": True}
    if "prompt" in body:
        body["prompt"] = _fit_prompt(body["prompt"])
    for name, limit in (("n", 2), ("max_tokens", 8)):
        if isinstance(body.get(name), int):
            body[name] = min(body[name], limit)
    # Any text is a name by the document; there are no adapters.
    for name in (
        "adapter",
        "best_of",
        "logit_bias",
        "stream_options",
        "max_completion_tokens",
    ):
        body.pop(name, None)
    case.body = body


def _fit_prompt(prompt: Any) -> Any:
    if isinstance(prompt, list):
        return [_fit_prompt(part) for part in prompt]
    return prompt % 256 if isinstance(prompt, int) else prompt or "x"


def _call_and_check(surface: Surface, case: Case[Any], *, is_negative: bool) -> int:
    """Send a case, check its answer against the document, and return the status."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        # Any text is a name by the document; all but one end at a 404.
        case.body = {**case.body, "model": MODEL}
    response = surface.send(case)
    assert response.status_code < 500 or response.status_code == 503, response.text
    if response.status_code in (429, 503):
        assert int(response.headers["retry-after"]) >= 1
    if response.status_code >= 400:
        document = response.json()
        assert set(document) == {"error"}
        assert set(document["error"]) == {"message", "type", "param", "code"}
    names = [
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        *(["negative_data_rejection"] if is_negative else []),
    ]
    if response.headers["content-type"].startswith("text/event-stream"):
        # The document says that it is text; what the text is, the models say.
        _check_events(response.text, _CHUNKS[case.operation.label])
    else:
        names.append("response_schema_conformance")
    checks: list[Any] = [CHECKS.get_one(name) for name in names]
    case.validate_response(response, checks=checks)
    return response.status_code
