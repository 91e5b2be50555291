"""Bad requests: each is one sentence that says what to change, and shows nothing sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefold.server.config import ServerConfig
from support.asgi_call import Answer
from support.public_plane import (
    CHAT,
    MODEL,
    TEXT,
    chat_body,
    public_plane,
    run,
    text_body,
)

#: In every body, where nothing else has to stand. No answer may hold it.
CANARY = "canary-7f3a"

_MESSAGE = {"role": "user", "content": CANARY}
_TOOL = {"type": "function", "function": {"name": "f"}}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

#: Fields of both routes that make a request a bad one, and the field that is to blame.
COMMON: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"n": 10**30}, "n"),
    ({"n": 1.0}, "n"),
    ({"n": True}, "n"),
    ({"n": "1"}, "n"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2049}, "max_tokens"),
    ({"max_tokens": 10**400}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 100.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": -1}, "presence_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a" * 1025]}, "stop"),
    ({"stop": [["a"]]}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"01": 1}}, "logit_bias"),
    ({"logit_bias": {"264": 1}}, "logit_bias"),
    ({"logit_bias": {str(t): 1 for t in range(1025)}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"cache_salt": ["a"]}, "cache_salt"),
    ({"cache_salt": "a" * 257}, "cache_salt"),
    ({"cache_salt": "é" * 129}, "cache_salt"),
    ({"cache_salt": "\ud800"}, "cache_salt"),
    ({"cache_salt": "a" * 1_000_000}, "cache_salt"),
    ({"cache": True}, "cache"),
    ({"cache": {"read": 1}}, "cache.read"),
    ({"cache": {"ttl_s": 0}}, "cache.ttl_s"),
    ({"cache": {"ttl_s": -1}}, "cache.ttl_s"),
    ({"cache": {"ttl_s": 31_536_001}}, "cache.ttl_s"),
    ({"cache": {"ttl_s": "5"}}, "cache.ttl_s"),
    ({"cache": {"ttl_s": True}}, "cache.ttl_s"),
    ({"cache": {"ttl_s": [5]}}, "cache.ttl_s"),
    ({"cache": {"priority": 101}}, "cache.priority"),
    ({"cache": {"priority": -101}}, "cache.priority"),
    ({"cache": {"priority": 0.5}}, "cache.priority"),
    ({"cache": {"priority": True}}, "cache.priority"),
    ({"cache": {"priority": "high"}}, "cache.priority"),
    ({"cache": {"ends_conversation": 1}}, "cache.ends_conversation"),
    ({"cache": {"ends_conversation": "yes"}}, "cache.ends_conversation"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"prompt_cache_retention": 86_400}, "prompt_cache_retention"),
    (
        {"prompt_cache_retention": "24h", "cache": {"ttl_s": 86_401}},
        "prompt_cache_retention",
    ),
    ({"cache": {"colour": 5}}, "cache.colour"),
    ({"user": 5}, "user"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"service_tier": "first class"}, "service_tier"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ({"temprature": 1}, "temprature"),
    ({"extra_key": "x"}, "extra_key"),
    ({"domain": "victim"}, "domain"),
    ({"tenant": "victim"}, "tenant"),
]

ONLY_TEXT: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [[1, "a"]]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": ["a"] * 257}, "prompt"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"suffix": "a"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"best_of": 3, "n": 2}, "best_of"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"echo": "yes"}, "echo"),
    ({"messages": [_MESSAGE]}, "messages"),
]

ONLY_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [_MESSAGE] * 4097}, "messages"),
    ({"messages": [{}]}, "messages[0]"),
    ({"messages": [{"content": "a"}]}, "messages[0]"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0]"),
    ({"messages": [{"role": "function", "content": "a"}]}, "messages[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [_MESSAGE, {**_MESSAGE, "colour": 5}]}, "messages[1].colour"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content",
    ),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
    (
        {"messages": [_MESSAGE, {"role": "assistant", "function_call": {}}]},
        "messages[1].function_call",
    ),
    (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}]},
        "messages[0].tool_calls[0].type",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{**_CALL, "type": "code"}]}]},
        "messages[0].tool_calls[0].type",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [_CALL] * 129}]},
        "messages[0].tool_calls",
    ),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 2049}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{**_TOOL, "type": "code"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        "tools[0].function.parameters",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        "tools[0].function.strict",
    ),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"functions": []}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"response_format": "text"}, "response_format"),
    ({"response_format": {}}, "response_format"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"modalities": []}, "modalities"),
    ({"audio": {"voice": "v"}}, "audio"),
    ({"store": True}, "store"),
    ({"prediction": {}}, "prediction"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"prompt": "a"}, "prompt"),
]

CASES = [
    *((TEXT, *case) for case in COMMON + ONLY_TEXT),
    *((CHAT, *case) for case in COMMON + ONLY_CHAT),
]


def assert_is_a_sentence(answer: Answer, status: int = 400) -> str:
    message = answer.message
    assert answer.status == status, message
    assert CANARY not in answer.body.decode()
    assert 10 < len(message) < 300
    assert "\n" not in message
    assert "pydantic" not in message
    return message


def test_every_bad_field_is_named_and_nothing_reaches_the_engine() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            for path, fields, blamed in CASES:
                body = text_body(CANARY) if path == TEXT else chat_body(CANARY)
                # Half a surrogate pair can be written in JSON, as an escape only.
                data = json.dumps({**body, **fields}).encode()
                answer = await plane.post(path, data)
                message = assert_is_a_sentence(answer)
                assert blamed.split(".")[0].split("[")[0] in message, (fields, message)
                param = answer.json["error"]["param"]
                assert param in (blamed, None), (fields, answer.json)
            core = plane.engine.engine
            assert core.counters.num_steps == 0
            assert core.cache.counts.free == core.cache.num_blocks
            assert len(plane.watcher.refused) == len(CASES)
            await plane.assert_nothing_is_held()

    run(test)


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize"])
def test_bodies_that_are_no_json_object_are_refused(path: str) -> None:
    bodies = [
        b"",
        b"{",
        b'{"a": }',
        b'{"model": "' + CANARY.encode(),
        b"canary-7f3a",
        b"[]",
        b'"canary-7f3a"',
        b"5",
        b"null",
        b"NaN",
        b'{"model": "chain", "prompt": "x", "temperature": NaN}',
        b'{"model": "chain", "prompt": "x", "temperature": Infinity}',
        b'{"model": "chain", "prompt": "x", "temperature": 1e999}',
        b'{"model": "chain", "prompt": "x", "n": ' + b"9" * 5000 + b"}",
        b'{"model": "chain", "prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b'{"model": "\xff"}',
        b'{"model": "chain", "prompt": "x", "canary-7f3a !": 1}',
    ]

    async def test() -> None:
        async with public_plane() as plane:
            for body in bodies:
                assert_is_a_sentence(await plane.post(path, body))

    run(test)


def test_bodies_at_and_over_the_limit() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            overhead = len(json.dumps(text_body("")))
            for size, status in ((10_000_000, 413), (10_000_001, 413), (9_999_999, 400)):
                answer = await plane.post(TEXT, text_body("a" * (size - overhead)))
                assert_is_a_sentence(answer, status)

    run(test)


def test_a_prompt_that_can_never_fit_is_refused_at_once() -> None:
    async def test() -> None:
        async with public_plane(num_blocks=16) as plane:
            plane.runner.is_open.clear()
            for answer in (
                await plane.post(TEXT, text_body("x " * 5000)),
                await plane.post(TEXT, text_body("x" * 250, max_tokens=100)),
                await plane.post(TEXT, text_body([5] * 2048)),
                await plane.post(CHAT, chat_body("x" * 2100)),
                await plane.post(CHAT, chat_body("x" * 300)),
                await plane.post(CHAT, chat_body("x" * 100, max_tokens=1000)),
            ):
                message = assert_is_a_sentence(answer)
                assert "shorten the prompt" in message

    run(test)


def test_prompts_of_no_tokens_and_of_foreign_ones_are_refused() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            prompts: list[object] = ["", [""], [[]], [264], [-1], [2**63], [10**30]]
            for prompt in [*prompts, [[5], [264]]]:
                assert_is_a_sentence(await plane.post(TEXT, text_body(prompt)))
            assert plane.engine.engine.counters.num_steps == 0

    run(test)


def test_an_unknown_model_is_a_404() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            for path, body in (
                (TEXT, text_body("x")),
                (CHAT, chat_body("x")),
                ("/tokenize", {"prompt": "x"}),
            ):
                answer = await plane.post(path, {**body, "model": CANARY})
                assert_is_a_sentence(answer, 404)
                assert answer.json["error"]["code"] == "model_not_found"
                assert "'chain'" in answer.message
            assert_is_a_sentence(await plane.get(f"/v1/models/{CANARY}"), 404)

    run(test)


def test_unknown_routes_and_wrong_methods() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            for path in ("/", "/v1", "/v1/embeddings", "/metrics", "/docs", "/redoc"):
                assert_is_a_sentence(await plane.get(path), 404)
            for path in ("/cache/stats", "/cache/tree", "/cache/warm", "/cache/reset"):
                assert_is_a_sentence(await plane.get(path), 404)
                assert_is_a_sentence(await plane.post(path, {}), 404)
            answer = await plane.get(TEXT)
            assert_is_a_sentence(answer, 405)
            assert answer.headers["allow"] == "POST"
            assert_is_a_sentence(await plane.post("/v1/models", {}), 405)
            assert_is_a_sentence(await plane.post("/health", {}), 405)
            assert_is_a_sentence(await plane.get(f"{TEXT}/"), 404)

    run(test)


def test_tokenize_wants_one_thing() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            messages = [{"role": "user", "content": "x"}]
            bodies: list[dict[str, Any]] = [
                {},
                {"prompt": "x", "messages": messages},
                {"prompt": "x", "tools": [_TOOL]},
                {"prompt": 5},
                {"prompt": [5]},
                {"messages": []},
                {"prompt": "x", "colour": 1},
            ]
            for body in bodies:
                assert_is_a_sentence(await plane.post("/tokenize", body))

    run(test)


def test_other_media_types_are_refused() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            headers = {"content-type": "text/plain"}
            answer = await plane.post(TEXT, text_body(CANARY), headers=headers)
            assert_is_a_sentence(answer, 415)

    run(test)


def test_the_cap_of_choices_is_the_configured_one() -> None:
    async def test() -> None:
        async with public_plane(config=ServerConfig(max_n=2)) as plane:
            assert "at most 2" in assert_is_a_sentence(
                await plane.post(TEXT, text_body("x", n=3))
            )
            await plane.complete("x", n=2, max_tokens=1)

    run(test)


def test_harmless_fields_are_taken() -> None:
    common: dict[str, Any] = {
        "user": "u",
        "safety_identifier": "s",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logit_bias": None,
        "stop": None,
        "stream": False,
        "stream_options": None,
        "cache": None,
        "cache_salt": None,
        "prompt_cache_retention": "in_memory",
        "seed": 5,
    }
    chat: dict[str, Any] = {
        "store": False,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "audio": None,
        "functions": None,
        "reasoning_effort": None,
        "max_completion_tokens": 2,
        "max_tokens": 2,
    }
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }

    async def test() -> None:
        async with public_plane() as plane:
            text = {"best_of": 1, "n": 1, "suffix": None, "echo": False, "max_tokens": 2}
            await plane.complete("x", **common, **text)
            await plane.chat("x", **common, **chat)
            messages = [{"role": "user", "content": "x", "name": "Anna"}, echoed]
            await plane.chat("x", messages=messages, max_tokens=1)

    run(test)


def test_an_object_of_very_many_fields_is_one_complaint() -> None:
    many = {f"f{i}": 1 for i in range(100)}
    wide_message = {"role": "user", "content": "x", **many}

    async def test() -> None:
        async with public_plane() as plane:
            answer = await plane.post(TEXT, text_body("x", **many))
            assert answer.status == 400
            assert answer.message == "the body has more than 64 fields"
            body = {"model": MODEL, "messages": [wide_message]}
            answer = await plane.post(CHAT, body)
            assert answer.status == 400
            assert answer.message == "messages[0] has more than 64 fields"

    run(test)


def test_a_biased_token_id_is_not_repeated() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            body = text_body("x", logit_bias={"9876543210": 1})
            answer = await plane.post(TEXT, body)
            assert answer.status == 400
            assert "9876543210" not in answer.body.decode()

    run(test)
