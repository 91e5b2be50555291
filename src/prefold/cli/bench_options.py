"""Options of ``prefold bench``: what was asked for, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import typer

from prefold.cli.options import ModelOptions


class ScenarioName(Enum):
    """What the prompts of a load have in common."""

    #: All begin with the same text.
    SHARED_PREFIX = "shared-prefix"
    #: Conversations, each turn of which begins with the turns before.
    MULTI_TURN = "multi-turn"
    #: Nothing: what a prefix cache cannot help with.
    UNIQUE = "unique"


class Endpoint(Enum):
    """Which of OpenAI's two."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What is sent.

    Attributes:
        requests: In all.
        concurrency: At the same time, at most.
        shared_words: Of the text that prompts, or the turns of one, have in common.
        own_words: Of what each adds.
        turns: Of a conversation.
        max_tokens: Of a reply.
        seed: Equal seeds make equal texts.
    """

    scenario: Annotated[ScenarioName, typer.Option(help="What prompts have in common.")] = (
        ScenarioName.SHARED_PREFIX
    )
    requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 32
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Clients.")] = 4
    shared_words: Annotated[
        int, typer.Option(min=0, help="Words that each prompt begins with.")
    ] = 800
    own_words: Annotated[int, typer.Option(min=1, help="Words that each adds.")] = 25
    turns: Annotated[int, typer.Option(min=1, help="Turns of a conversation.")] = 4
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of each reply at most.")
    ] = 32
    seed: Annotated[int, typer.Option(help="Equal seeds, equal texts.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What ``bench serving`` is to do.

    Attributes:
        base_url: Up to and with ``/v1``.
        model: None asks the server.
        extra_body: Fields that are added to every request, as a JSON object.
        timeout_s: Of one request.
    """

    base_url: str = field(repr=False)
    model: str | None
    api_key: str | None = field(repr=False)
    endpoint: Endpoint
    load: LoadOptions
    extra_body: str
    timeout_s: float
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """What ``bench throughput`` is to do.

    Attributes:
        sequences: That decode together; one alone is measured as well.
        prompt_tokens: Of each prompt; they have nothing in common.
        steps: Decode steps that count.
        has_profile: Measure the parts of a step, in runs of their own.
    """

    model: ModelOptions
    sequences: int
    prompt_tokens: int
    steps: int
    has_profile: bool
    as_json: bool
