"""Counters: what an engine has done since it started, in plain numbers."""

from __future__ import annotations


class EngineCounters:
    """Sums since the start; changed by the engine and its scheduler, read by anybody.

    Attributes:
        num_steps: Steps that computed something.
        num_computed_tokens: Positions computed, of prompts and replies.
        num_hit_tokens: Positions not computed because their KV was there, those that a
            preempted sequence found again included.
        num_sampled_tokens: Tokens produced.
        num_admissions: Times a sequence was given a lease, after preemptions too.
        num_preemptions: Times a running sequence gave its blocks back.
        num_failed_steps: Steps that the runner could not carry out.
        num_regretted_tokens: Positions computed though they had been cached before, and
            were evicted.
        regretted_s: Seconds of prefill that these took, as far as the cost is known.
        num_waits: Times a request began to wait for the prefix another one computes.
    """

    __slots__ = (
        "num_admissions",
        "num_computed_tokens",
        "num_failed_steps",
        "num_hit_tokens",
        "num_preemptions",
        "num_regretted_tokens",
        "num_sampled_tokens",
        "num_steps",
        "num_waits",
        "regretted_s",
    )

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_computed_tokens = 0
        self.num_hit_tokens = 0
        self.num_sampled_tokens = 0
        self.num_admissions = 0
        self.num_preemptions = 0
        self.num_failed_steps = 0
        self.num_waits = 0
        self.num_regretted_tokens = 0
        self.regretted_s = 0.0
