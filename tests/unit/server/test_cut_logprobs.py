"""What a stop text cuts off has no log-probabilities, whole or streamed."""

from __future__ import annotations

from typing import Any

import pytest

from support.public_plane import CHAT, TEXT, PublicPlane, chat_body, public_plane, run
from support.public_plane import text_body as plain_body

PROMPT = "the long beginning that all of these prompts have in common, and more of it. "


async def choices_of(plane: PublicPlane, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the pieces of a stream of one choice."""
    answer = await plane.post(path, {**body, "stream": True})
    assert answer.events[-1] == "[DONE]"
    return [choice for event in answer.events[:-1] for choice in event["choices"]]


@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("echo", [False, True])
def test_completions_list_the_tokens_of_their_text(length: int, *, echo: bool) -> None:
    async def test() -> None:
        async with public_plane() as plane:
            full = (await plane.complete(PROMPT, max_tokens=40))["choices"][0]["text"]
            stop = full[17 : 17 + length]
            body = plain_body(PROMPT, max_tokens=40, logprobs=1, stop=stop, echo=echo)
            answer = (await plane.post(TEXT, body)).json
            [choice] = answer["choices"]
            rows = choice["logprobs"]
            text = full[: full.index(stop)]
            assert choice["text"] == (PROMPT if echo else "") + text
            # One byte is one token here, so the tokens of the text are its characters.
            assert len(rows["tokens"]) == len(rows["text_offset"])
            assert "".join(rows["tokens"]) == choice["text"]
            assert all(offset < len(choice["text"]) for offset in rows["text_offset"])
            assert answer["usage"]["completion_tokens"] > len(text)
            pieces = await choices_of(plane, TEXT, body)
            assert "".join(piece["text"] for piece in pieces) == choice["text"]
            for name, values in rows.items():
                parts = [p["logprobs"][name] for p in pieces if p["logprobs"]]
                assert [value for part in parts for value in part] == values
            await plane.assert_nothing_is_held()

    run(test)


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_messages_list_the_tokens_of_their_text(length: int) -> None:
    async def test() -> None:
        async with public_plane() as plane:
            reply = await plane.chat(PROMPT, max_tokens=40)
            full = reply["choices"][0]["message"]["content"]
            stop = full[17 : 17 + length]
            body = chat_body(PROMPT, max_tokens=40, logprobs=True, stop=[stop, "never"])
            answer = (await plane.post(CHAT, body)).json
            [choice] = answer["choices"]
            content = choice["logprobs"]["content"]
            text = full[: full.index(stop)]
            assert choice["message"]["content"] == text
            assert "".join(entry["token"] for entry in content) == text
            assert answer["usage"]["completion_tokens"] > len(text)
            pieces = await choices_of(plane, CHAT, body)
            parts = [p["logprobs"]["content"] for p in pieces if p.get("logprobs")]
            assert [entry for part in parts for entry in part] == content
            await plane.assert_nothing_is_held()

    run(test)
