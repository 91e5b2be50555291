"""Bench load: which requests are sent, in which order, and by how many clients.

::

    shared-prefix   [ opening ][ own 1 ]
                    [ opening ][ own 2 ]
    multi-turn      [ opening 1 ][ turn 1 ]
                    [ opening 1 ][ turn 1 ][ reply ][ turn 2 ]
    unique          [ opening 1 ][ own 1 ]
                    [ opening 2 ][ own 2 ]

Every client sends its next request when it has read its last answer. The turns of one
conversation are one client's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from prefold.cli.bench_client import Answer, BenchClient, Question
from prefold.cli.bench_options import Endpoint, LoadOptions, ScenarioName

# Short common words, which most tokenizers have as one token each.
_TEXT = (
    "time year people way day man thing woman life child world school state family "
    "student group country problem hand part place case week company system program "
    "question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head "
    "house service friend father power hour game line end member law car city name"
)
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What one client says in turn.

    Attributes:
        opening: What everything begins with; empty for nothing.
        turns: At least one.
    """

    opening: str = field(repr=False)
    turns: tuple[str, ...] = field(repr=False)


def make_conversations(options: LoadOptions) -> list[Conversation]:
    """Return as many as it takes to send ``options.requests`` requests."""
    generator = random.Random(options.seed)  # noqa: S311 -- texts, not secrets
    shared = _text(generator, options.shared_words)

    def own() -> str:
        return _text(generator, options.own_words)

    def opening() -> str:
        if options.scenario is ScenarioName.SHARED_PREFIX:
            return shared
        return _text(generator, options.shared_words)

    num_turns = options.turns if options.scenario is ScenarioName.MULTI_TURN else 1
    conversations = []
    for start in range(0, options.requests, num_turns):
        size = min(num_turns, options.requests - start)
        turns = tuple(own() for _ in range(size))
        conversations.append(Conversation(opening=opening(), turns=turns))
    return conversations


async def run_load(
    client: BenchClient,
    conversations: list[Conversation],
    *,
    concurrency: int,
    max_tokens: int,
    on_answer: Callable[[Answer], None] = lambda _: None,
) -> list[Answer]:
    """Play all conversations; return the answers in the order in which they ended.

    A conversation ends at its first failure.
    """
    waiting = iter(conversations)
    answers: list[Answer] = []

    async def play_next() -> None:
        # Between taking one and the next nothing else runs, so none is played twice.
        for conversation in waiting:
            async for answer in _play(client, conversation, max_tokens):
                answers.append(answer)
                on_answer(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(conversations))):
            group.create_task(play_next())
    return answers


async def _play(
    client: BenchClient, conversation: Conversation, max_tokens: int
) -> AsyncIterator[Answer]:
    said: list[Mapping[str, str]] = []
    if conversation.opening:
        said.append({"role": "system", "content": conversation.opening})
    for turn in conversation.turns:
        said.append({"role": "user", "content": turn})
        question = _question(client.target.endpoint, said)
        answer = await client.ask(question, max_tokens)
        yield answer
        if answer.error is not None:
            return
        # Some servers refuse empty messages.
        said.append({"role": "assistant", "content": answer.text or "."})


def _question(endpoint: Endpoint, said: list[Mapping[str, str]]) -> Question:
    if endpoint is Endpoint.CHAT:
        return list(said)
    return "\n\n".join(message["content"] for message in said)


def _text(generator: random.Random, num_words: int) -> str:
    return " ".join(generator.choices(_WORDS, k=num_words))
