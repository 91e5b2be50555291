"""The public plane's replies: whole and streamed, counted, shared and not shared."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from support.asgi_call import Answer
from support.public_plane import (
    CHAT,
    TEXT,
    PublicPlane,
    cached_tokens,
    chat_body,
    make_authenticator,
    public_plane,
    run,
    text_body,
)
from support.tiny_models import END_TOKEN, VOCAB_SIZE, make_tokenizer

PROMPT = "the long beginning that all of these prompts have in common, and more of it. "
USAGE = {"include_usage": True}


async def stream(plane: PublicPlane, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the events of a stream that must be complete, without the last one."""
    answer = await plane.post(path, {**body, "stream": True})
    assert answer.status == 200, answer.body
    *events, last = answer.events
    assert last == "[DONE]"
    heads = {(event["id"], event["created"], event["model"]) for event in events}
    assert len(heads) == 1
    return events


def joined(events: list[Any], index: int, field: str = "text") -> str:
    """Return the text of one choice of a stream."""
    pieces = []
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                part = choice if field == "text" else choice["delta"]
                pieces.append(part.get(field) or "")
    return "".join(pieces)


def ends(events: list[Any]) -> dict[int, str]:
    """Return each choice's finish reason; it has exactly one, in its last piece."""
    found: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            assert choice["index"] not in found
            if choice["finish_reason"] is not None:
                found[choice["index"]] = choice["finish_reason"]
    return found


# -- whole replies -----------------------------------------------------------------------


def test_a_completion_has_the_shape_that_clients_read() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            answer = await plane.post(TEXT, text_body(PROMPT, max_tokens=4))
            reply = answer.json
            assert reply.pop("id").startswith("cmpl-")
            assert isinstance(reply.pop("created"), int)
            assert reply.pop("system_fingerprint").startswith("fp_")
            [choice] = reply.pop("choices")
            assert len(choice.pop("text")) == 4
            assert choice == {"index": 0, "logprobs": None, "finish_reason": "length"}
            num_tokens = len(plane.tokenizer.encode(PROMPT))
            assert reply == {
                "object": "text_completion",
                "model": "chain",
                "usage": {
                    "prompt_tokens": num_tokens,
                    "completion_tokens": 4,
                    "total_tokens": num_tokens + 4,
                    "prompt_tokens_details": {"cached_tokens": 0},
                },
            }
            assert answer.headers["x-prefold-cached-tokens"] == "0"
            assert answer.headers["content-type"] == "application/json"

    run(test)


def test_a_message_has_the_shape_that_clients_read() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            reply = await plane.chat("hello", max_tokens=3)
            assert reply["id"].startswith("chatcmpl-")
            assert reply["object"] == "chat.completion"
            [choice] = reply["choices"]
            assert len(choice["message"].pop("content")) == 3
            assert choice == {
                "index": 0,
                "message": {"role": "assistant", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
            assert reply["usage"]["completion_tokens"] == 3

    run(test)


def test_a_message_without_a_stated_length_fills_the_context() -> None:
    async def test() -> None:
        async with public_plane(max_model_len=100) as plane:
            reply = await plane.chat("hello")
            assert reply["usage"]["total_tokens"] == 100
        async with public_plane(max_model_len=1000, num_blocks=10) as plane:
            # No more than the cache memory can ever hold, one token spare.
            reply = await plane.chat("hello")
            assert reply["usage"]["total_tokens"] == 159
            await plane.assert_nothing_is_held()

    run(test)


def test_defaults_are_those_of_openai() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            body = {"model": "chain", "prompt": PROMPT}
            replies = [(await plane.post(TEXT, body)).json for _ in range(6)]
            assert {r["usage"]["completion_tokens"] for r in replies} == {16}
            # Tokens are drawn, not taken greedily.
            assert len({r["choices"][0]["text"] for r in replies}) > 1

    run(test)


def test_ids_tell_nothing() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            replies = [await plane.complete("x", max_tokens=1) for _ in range(3)]
            ids = {reply["id"].removeprefix("cmpl-") for reply in replies}
            assert len(ids) == 3
            assert all(len(name) == 32 for name in ids)

    run(test)


# -- counting ------------------------------------------------------------------------------


def test_cached_tokens_are_counted_on_every_route_and_way() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            for path, body in (
                (TEXT, text_body(PROMPT, max_tokens=2)),
                (CHAT, chat_body(PROMPT, max_tokens=2)),
            ):
                cold = await plane.post(path, body)
                warm = await plane.post(path, body)
                num_tokens = warm.json["usage"]["prompt_tokens"]
                hit = cached_tokens(warm.json)
                assert cached_tokens(cold.json) == 0
                assert hit >= (num_tokens - 1) // 16 * 16
                assert hit < num_tokens
                assert warm.headers["x-prefold-cached-tokens"] == str(hit)
                *events, last = await stream(plane, path, {**body, "stream_options": USAGE})
                assert last["choices"] == []
                assert last["usage"] == warm.json["usage"]
                assert all(event["usage"] is None for event in events)
                assert all("usage" not in e for e in await stream(plane, path, body))

    run(test)


def test_every_prompt_counts_once_whatever_the_number_of_replies() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            prompts = [PROMPT, PROMPT + "x", "y" + PROMPT]
            alone = [await plane.complete(p, max_tokens=2, n=2) for p in prompts]
            await plane.assert_nothing_is_held()
            hits = [cached_tokens(await plane.complete(p, max_tokens=2)) for p in prompts]
            together = await plane.complete(prompts, max_tokens=2, n=3)
            assert len(together["choices"]) == 9
            assert cached_tokens(together) == sum(hits)
            assert together["usage"]["prompt_tokens"] == sum(
                reply["usage"]["prompt_tokens"] for reply in alone
            )
            assert together["usage"]["completion_tokens"] == 18
            assert cached_tokens(alone[0]) == 0

    run(test)


def test_choices_are_numbered_prompt_by_prompt() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            prompts: list[Any] = [PROMPT, plane.tokenizer.encode("an array"), "short"]
            alone = [await plane.complete(p, max_tokens=5) for p in prompts]
            texts = [reply["choices"][0]["text"] for reply in alone]
            together = await plane.complete(prompts, max_tokens=5, n=2)
            assert [c["index"] for c in together["choices"]] == list(range(6))
            assert [c["text"] for c in together["choices"]] == [
                text for text in texts for _ in range(2)
            ]
            events = await stream(plane, TEXT, text_body(prompts, max_tokens=5, n=2))
            assert [joined(events, i) for i in range(6)] == [
                text for text in texts for _ in range(2)
            ]
            await plane.assert_nothing_is_held()

    run(test)


def test_preempted_requests_count_the_hit_that_they_met_first() -> None:
    async def test() -> None:
        # Room for one and a half of them.
        async with public_plane(num_blocks=24) as plane:
            bodies = [
                text_body(f"{index} {PROMPT}", max_tokens=150, stream_options=USAGE)
                for index in range(4)
            ]
            results = await asyncio.gather(*(stream(plane, TEXT, b) for b in bodies))
            assert plane.engine.engine.counters.num_preemptions > 0
            for events in results:
                usage = events[-1]["usage"]
                assert usage["completion_tokens"] == 150
                assert usage["prompt_tokens_details"]["cached_tokens"] == 0
            await plane.assert_nothing_is_held()

    run(test)


# -- streams -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 1},
        {"n": 3, "temperature": 1.0, "seed": 7},
        {"stop": ["e", "k"]},
        {"echo": True},
        {"echo": True, "max_tokens": 0},
        {"logprobs": 0},
        {"logprobs": 2},
        {"logprobs": 2, "n": 2},
        {"logprobs": 3, "echo": True},
        {"logprobs": 1, "echo": True, "n": 2},
        {"logprobs": 1, "echo": True, "max_tokens": 0},
        {"max_tokens": 0},
    ],
    ids=str,
)
def test_a_streamed_completion_is_the_whole_one_in_pieces(fields: dict[str, Any]) -> None:
    async def test() -> None:
        async with public_plane() as plane:
            body = text_body(PROMPT, **{"max_tokens": 12, **fields})
            whole = (await plane.post(TEXT, body)).json
            events = await stream(plane, TEXT, body)
            assert ends(events) == {
                c["index"]: c["finish_reason"] for c in whole["choices"]
            }
            for choice in whole["choices"]:
                index = choice["index"]
                assert joined(events, index) == choice["text"]
                assert merged_logprobs(events, index) == choice["logprobs"]
            await plane.assert_nothing_is_held()

    run(test)


def merged_logprobs(events: list[Any], index: int) -> Any:
    parts = [
        choice["logprobs"]
        for event in events
        for choice in event["choices"]
        if choice["index"] == index and choice["logprobs"] is not None
    ]
    if not parts:
        return None
    return {
        name: (
            None
            if parts[0][name] is None
            else [value for part in parts for value in part[name]]
        )
        for name in parts[0]
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "temperature": 1.0, "seed": 7},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 4, "n": 2},
        {"stop": "e"},
    ],
    ids=str,
)
def test_a_streamed_message_is_the_whole_one_in_pieces(fields: dict[str, Any]) -> None:
    async def test() -> None:
        async with public_plane() as plane:
            body = chat_body(PROMPT, max_tokens=12, **fields)
            whole = (await plane.post(CHAT, body)).json
            events = await stream(plane, CHAT, body)
            assert ends(events) == {
                c["index"]: c["finish_reason"] for c in whole["choices"]
            }
            for choice in whole["choices"]:
                index = choice["index"]
                own = [c for e in events for c in e["choices"] if c["index"] == index]
                assert own[0]["delta"] == {"role": "assistant", "content": ""}
                assert all("role" not in c["delta"] for c in own[1:])
                assert own[-1]["delta"] == {}
                assert joined(events, index, "content") == choice["message"]["content"]
                content = [
                    entry
                    for c in own
                    for entry in (c.get("logprobs") or {}).get("content", [])
                ]
                assert content == (choice["logprobs"] or {}).get("content", [])
            await plane.assert_nothing_is_held()

    run(test)


def test_stop_texts_never_show() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            text = (await plane.complete(PROMPT, max_tokens=40))["choices"][0]["text"]
            stop = text[20:23]
            for body in (
                text_body(PROMPT, max_tokens=40, stop=stop),
                text_body(PROMPT, max_tokens=40, stop=[stop, "never"]),
            ):
                [choice] = (await plane.post(TEXT, body)).json["choices"]
                assert choice["text"] == text[: text.index(stop)]
                assert choice["finish_reason"] == "stop"
                events = await stream(plane, TEXT, body)
                assert joined(events, 0) == choice["text"]

    run(test)


def test_stop_ids_end_a_reply_and_biases_make_one() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            [z] = plane.tokenizer.encode("z")
            fields = {"logit_bias": {str(z): 100}, "max_tokens": 3}
            reply = await plane.complete(PROMPT, **fields)
            assert reply["choices"][0]["text"] == "zzz"
            [choice] = (await plane.complete(PROMPT, **fields, stop_token_ids=[z]))[
                "choices"
            ]
            assert (choice["text"], choice["finish_reason"]) == ("", "stop")

    run(test)


def test_equal_seeds_give_equal_replies() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            fields: dict[str, Any] = {"temperature": 3.0, "max_tokens": 20}
            first, again, other = [
                (await plane.complete(PROMPT, **fields, seed=seed))["choices"][0]["text"]
                for seed in (5, 5, 6)
            ]
            assert first == again != other

    run(test)


# -- log-probabilities -------------------------------------------------------------------


def test_an_echo_with_logprobs_is_the_whole_text_token_by_token() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            for prompt in (PROMPT, plane.tokenizer.encode(PROMPT)):
                reply = await plane.complete(prompt, echo=True, logprobs=2, max_tokens=3)
                [choice] = reply["choices"]
                rows = choice["logprobs"]
                assert choice["text"].startswith(PROMPT)
                assert "".join(rows["tokens"]) == choice["text"]
                num_tokens = reply["usage"]["total_tokens"]
                assert {len(values) for values in rows.values()} == {num_tokens}
                assert rows["token_logprobs"][0] is None
                assert rows["top_logprobs"][0] is None
                assert all(value <= 0 for value in rows["token_logprobs"][1:])
                for token, offset in zip(rows["tokens"], rows["text_offset"], strict=True):
                    assert choice["text"][offset:].startswith(token)
                for token, value, top in list(
                    zip(
                        rows["tokens"],
                        rows["token_logprobs"],
                        rows["top_logprobs"],
                        strict=True,
                    )
                )[1:]:
                    assert top[token] == value
                    assert 2 <= len(top) <= 3

    run(test)


def test_a_token_that_begins_every_text_is_no_part_of_the_echo() -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_TOKEN} $A", special_tokens=[(END_TOKEN, VOCAB_SIZE - 2)]
    )

    async def test() -> None:
        async with public_plane(tokenizer=tokenizer) as plane:
            fields: dict[str, Any] = {"echo": True, "logprobs": 0, "max_tokens": 0}
            for prompt in ("xy", f"{END_TOKEN}xy"):
                tokens = tokenizer.encode(prompt)
                assert tokens[0] == VOCAB_SIZE - 2
                [choice] = (await plane.complete(prompt, **fields))["choices"]
                assert choice["text"] == prompt
                rows = choice["logprobs"]
                begin = prompt.index("xy")
                assert rows["tokens"][-2:] == ["x", "y"]
                assert rows["text_offset"][-2:] == [begin, begin + 1]
                # As tokens, nothing was added and everything is shown.
                [choice] = (await plane.complete(tokens, **fields))["choices"]
                assert choice["text"] == tokenizer.decode(tokens)
                assert choice["text"].startswith(END_TOKEN)

    run(test)


def test_logprobs_of_a_prompt_are_the_same_cold_and_warm() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            fields: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 0}
            cold = await plane.complete(PROMPT, **fields)
            warm = await plane.complete(PROMPT, **fields)
            off = await plane.complete(
                PROMPT, **fields, cache={"read": False, "write": False}
            )
            assert cold["choices"] == warm["choices"] == off["choices"]
            assert (cached_tokens(cold), cached_tokens(off)) == (0, 0)
            assert cached_tokens(warm) > 0

    run(test)


def test_chat_lists_bytes_and_alternatives() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            reply = await plane.chat("x", max_tokens=3, logprobs=True, top_logprobs=2)
            [choice] = reply["choices"]
            content = choice["logprobs"]["content"]
            assert [e["token"] for e in content] == list(choice["message"]["content"])
            for entry in content:
                assert bytes(entry["bytes"]).decode() == entry["token"]
                assert len(entry["top_logprobs"]) == 2
                # Greedy: it is the likeliest.
                assert entry["top_logprobs"][0]["token"] == entry["token"]
                assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]

    run(test)


# -- who shares what -----------------------------------------------------------------------


def test_a_salt_shares_with_itself_only() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            salts = [None, "a", "aa", "é", "x" * 256]
            for path, body in (
                (TEXT, text_body(PROMPT, max_tokens=1)),
                (CHAT, chat_body(PROMPT, max_tokens=1)),
            ):
                for expect_hit in (False, True):
                    for salt in salts:
                        answer = await plane.post(path, {**body, "cache_salt": salt})
                        assert (cached_tokens(answer.json) > 0) == expect_hit

    run(test)


def test_a_request_can_stay_out_of_the_cache() -> None:
    async def test() -> None:
        async with public_plane() as plane:

            async def hit(**cache: bool) -> int:
                reply = await plane.complete(PROMPT, max_tokens=1, cache=cache)
                return cached_tokens(reply)

            assert await hit(write=False) == 0
            assert await hit() == 0
            assert await hit(read=False) == 0
            assert await hit(write=False) > 0
            assert await hit(read=True, write=True) > 0

    run(test)


def test_tenants_share_nothing_on_any_route(tmp_path: Path) -> None:
    authenticator, keys = make_authenticator(tmp_path / "keys.json")

    async def test() -> None:
        async with public_plane(authenticator=authenticator) as plane:
            bodies: list[tuple[str, dict[str, Any]]] = [
                (TEXT, text_body(PROMPT, max_tokens=1)),
                (TEXT, text_body(PROMPT + "2", max_tokens=1, cache_salt="s")),
                (TEXT, text_body(PROMPT + "3", max_tokens=0, echo=True, logprobs=1)),
                (CHAT, chat_body(PROMPT, max_tokens=1)),
                (CHAT, chat_body(PROMPT + "2", max_tokens=1, cache_salt="s")),
            ]
            for path, body in bodies:
                answers = {
                    name: [await plane.post(path, body, key=key) for _ in range(2)]
                    for name, key in keys.items()
                }
                own = cached_tokens(answers["acme"][0].json)
                full = cached_tokens(answers["acme"][1].json)
                assert full >= (answers["acme"][1].json["usage"]["prompt_tokens"] - 5)
                # The other one meets exactly what the first one met, who was alone.
                assert [cached_tokens(a.json) for a in answers["globex"]] == [own, full]
            await plane.assert_nothing_is_held("acme")
            await plane.assert_nothing_is_held("globex")

    run(test)


def test_every_route_but_one_needs_a_key(tmp_path: Path) -> None:
    authenticator, keys = make_authenticator(tmp_path / "keys.json")
    table: list[tuple[str, str, Any, int]] = [
        ("GET", "/health", None, 200),
        ("GET", "/openapi.json", None, 200),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/models/{name:path}", None, 200),
        ("POST", TEXT, text_body("x", max_tokens=1), 200),
        ("POST", CHAT, chat_body("x", max_tokens=1), 200),
        ("POST", "/tokenize", {"prompt": "x"}, 200),
        # JSON is no file; but whose key is good is told so.
        ("POST", "/v1/files", {}, 415),
        ("DELETE", "/v1/files/{file_id}", None, 404),
    ]

    async def test() -> None:
        async with public_plane(authenticator=authenticator) as plane:
            document = (await plane.get("/openapi.json", key=keys["acme"])).json
            documented = {
                (method.upper(), path)
                for path, operations in document["paths"].items()
                for method in operations
            }
            assert documented == {
                (method, path.replace("{name:path}", "{name}"))
                for method, path, _, _ in table
                if path != "/openapi.json"
            }
            for method, path, body, status in table:
                url = path.replace("{name:path}", "chain")
                for key in (None, "wrong", keys["acme"][:-1] + "g", "pf_" + "0" * 81):
                    answer = await ask(plane, method, url, body, key)
                    assert answer.status == (200 if path == "/health" else 401)
                for key in keys.values():
                    assert (await ask(plane, method, url, body, key)).status == status
            # Who has no key cannot tell which routes there are.
            assert (await plane.get("/nothing/here")).status == 401
            assert (await plane.post("/nothing/here", {})).status == 401
            assert (await plane.get("/nothing/here", key=keys["acme"])).status == 404

    run(test)


async def ask(
    plane: PublicPlane, method: str, url: str, body: Any, key: str | None
) -> Answer:
    if method == "POST":
        return await plane.post(url, body, key=key)
    return await plane.ask(method, url, key=key)


# -- other routes ------------------------------------------------------------------------


def test_tokens_can_be_counted_before_they_are_sent() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            reply = (await plane.post("/tokenize", {"prompt": PROMPT})).json
            assert reply["tokens"] == plane.tokenizer.encode(PROMPT)
            assert reply["count"] == len(reply["tokens"])
            assert reply["max_model_len"] == 2048
            by_array = await plane.complete(reply["tokens"], max_tokens=2)
            by_text = await plane.complete(PROMPT, max_tokens=2)
            assert by_array["choices"] == by_text["choices"]
            assert cached_tokens(by_text) > 0

            body = chat_body(PROMPT)
            reply = (await plane.post("/tokenize", {"messages": body["messages"]})).json
            chat = await plane.chat(PROMPT, max_tokens=1)
            assert reply["count"] == chat["usage"]["prompt_tokens"]
            # What is somewhat too long for the model can still be counted.
            reply = (await plane.post("/tokenize", {"prompt": "x" * 4000})).json
            assert reply["count"] == 4000
            answer = await plane.post("/tokenize", {"prompt": "x" * 5_000_000})
            assert answer.status == 400

    run(test)


def test_the_model_can_be_found() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            models = (await plane.get("/v1/models")).json
            [model] = models["data"]
            assert model == (await plane.get("/v1/models/chain")).json
            assert model == {
                "id": "chain",
                "object": "model",
                "created": 1_700_000_000,
                "owned_by": "prefold",
                "max_model_len": 2048,
                "root": "chain",
                "parent": None,
            }

    run(test)


def test_a_model_without_a_template_takes_prompts_only() -> None:
    async def test() -> None:
        async with public_plane(chat_template=None) as plane:
            answer = await plane.post(CHAT, chat_body("x"))
            assert answer.status == 400
            assert "/v1/completions" in answer.message
            await plane.complete("x", max_tokens=1)

    run(test)


def test_nothing_that_was_said_enters_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def test() -> None:
        async with public_plane() as plane:
            for path, body in (
                (TEXT, text_body("canary", cache_salt="canary", user="canary")),
                (CHAT, chat_body("canary", metadata={"canary": "canary"}, stream=True)),
                (TEXT, text_body("canary", max_tokens="canary")),
                (TEXT, text_body("canary " * 3000)),
                ("/canary", {}),
            ):
                await plane.post(path, body, headers={"x-request-id": "canary canary"})
            plane.runner.fails = True
            await plane.post(TEXT, text_body("canary"))

    run(test)
    assert "prefold.server.exchange" in {record.name for record in caplog.records}
    assert "canary" not in caplog.text
