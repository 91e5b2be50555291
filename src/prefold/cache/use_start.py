"""Use start: what is known of a request's use of the cache while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the tokens do not tell where a trace is replayed: a position is a block there.

    Attributes:
        num_prompt_tokens: Of the request as it was.
        num_reply_tokens: Tokens that it produced.
        tokens_per_position: Tokens that one position stands for.
    """

    num_prompt_tokens: int
    num_reply_tokens: int
    tokens_per_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UseStart:
    """What is known of a request's use of the cache when it begins.

    Attributes:
        turn: As in ``Use``, as are ``is_fork`` and ``gap_s``.
        num_prompt_positions: Positions of its prompt.
        num_known_positions: Of those, leading ones that are cached or were evicted.
    """

    turn: int
    is_fork: bool
    gap_s: float | None
    num_prompt_positions: int
    num_known_positions: int
