"""Verification tally: compares runs with their references and keeps count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from prefold.engine.request import FinishReason, RequestOutput
from prefold.engine.verification_ledger import ExpectedHit
from prefold.engine.verification_prompts import VerificationPrompt
from prefold.engine.verification_rig import Rig


class DifferenceKind(Enum):
    """What was not as it has to be."""

    #: A sampled token.
    TOKEN = "token"  # noqa: S105 -- a token of text
    #: A logit, in at least one bit, or by more than the tolerance.
    LOGITS = "logits"
    #: A run ended otherwise than by its length.
    ENDING = "ending"
    #: Tokens were computed that are cached, or the other way round.
    HIT_TOKENS = "hit_tokens"
    #: A variant had nothing to run.
    NO_RUNS = "no_runs"
    #: A chunked run took another number of steps.
    STEPS = "steps"
    #: A sequence that was to have company was alone in a step.
    ALONE = "alone"
    NOT_EVICTED = "not_evicted"
    #: Not preempted, or not resumed as often as preempted.
    NOT_PREEMPTED = "not_preempted"
    #: Forks had no block in common.
    NOT_SHARED = "not_shared"
    #: A sequence wrote to a block that another one holds.
    SHARED_WRITE = "shared_write"
    #: Something is still held after the last run.
    LEAK = "leak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first thing that was not as it has to be.

    Attributes:
        prompt: The prompt's name, if it is about one.
        position: Of the sampled token, counted from the prompt's first one.
    """

    variant: str
    prompt: str | None
    position: int | None
    kind: DifferenceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """What a variant did.

    Attributes:
        runs: Requests compared.
        logits_compared: Numbers, not rows.
        preemptions: Times a sequence had to give its blocks back.
        evictions: Blocks evicted.
    """

    name: str
    runs: int
    hit_tokens: int
    expected_hit_tokens: int
    tokens_compared: int
    logits_compared: int
    preemptions: int
    evictions: int


class Tally:
    """Counts of one variant, and its first difference.

    Args:
        tolerance: Largest difference between logits, as a share of the largest one (at
            least of 1); 0 for none in any bit.
        on_progress: Told the name and the number of runs after each.
    """

    __slots__ = (
        "_counts",
        "_on_progress",
        "_tolerance",
        "first_difference",
        "name",
        "num_evictions",
        "num_preemptions",
    )

    def __init__(
        self, name: str, tolerance: float, on_progress: Callable[[str, int], None]
    ) -> None:
        self.name = name
        self.first_difference: Difference | None = None
        self.num_evictions = 0
        self.num_preemptions = 0
        self._tolerance = tolerance
        self._on_progress = on_progress
        self._counts = dict.fromkeys(("runs", "hits", "expected", "tokens", "logits"), 0)

    @property
    def runs(self) -> int:
        return self._counts["runs"]

    def require(
        self,
        condition: bool,  # noqa: FBT001 -- what is required comes first
        kind: DifferenceKind,
        prompt: VerificationPrompt | None = None,
        position: int | None = None,
    ) -> None:
        """Note a difference unless ``condition`` holds."""
        if condition or self.first_difference is not None:
            return
        self.first_difference = Difference(
            variant=self.name,
            prompt=None if prompt is None else prompt.name,
            position=position,
            kind=kind,
        )

    def compare(
        self,
        prompt: VerificationPrompt,
        reference: RequestOutput,
        output: RequestOutput,
        expected: ExpectedHit,
    ) -> None:
        """Compare a run's hits, tokens and logits with what they have to be."""
        self.count_run(prompt, output, expected)
        if reference.logits is None or output.logits is None:
            self.require(False, DifferenceKind.ENDING, prompt)  # noqa: FBT003
            return
        self.require(
            len(output.token_ids) <= len(reference.token_ids), DifferenceKind.ENDING, prompt
        )
        for index, (wanted, token_id) in enumerate(
            zip(reference.token_ids, output.token_ids, strict=False)
        ):
            position = prompt.num_tokens + index
            row = reference.logits[index]
            self.compare_logits(prompt, position, row, output.logits[index])
            self._counts["tokens"] += 1
            if token_id != wanted:
                self.require(self._is_tie(row), DifferenceKind.TOKEN, prompt, position)
                return

    def count_run(
        self, prompt: VerificationPrompt, output: RequestOutput, expected: ExpectedHit
    ) -> None:
        """Count a run and check its hits and its ending."""
        hits = output.usage.cached_tokens
        wanted = expected.nearest(hits)
        self._counts["runs"] += 1
        self._counts["hits"] += hits
        self._counts["expected"] += wanted
        is_ended = output.finish_reason is FinishReason.LENGTH
        self.require(is_ended, DifferenceKind.ENDING, prompt)
        self.require(hits == wanted, DifferenceKind.HIT_TOKENS, prompt)
        self._on_progress(self.name, self.runs)

    def compare_logits(
        self,
        prompt: VerificationPrompt,
        position: int,
        wanted: torch.Tensor,
        row: torch.Tensor,
    ) -> None:
        """Compare the logits that one token was chosen from."""
        self._counts["logits"] += len(row)
        self.require(self._is_equal(wanted, row), DifferenceKind.LOGITS, prompt, position)

    def count_rig(self, rig: Rig) -> None:
        """Add what became of a rig's blocks; call it when its runs have ended."""
        num_evictions, num_preemptions = rig.take_counts()
        self.num_evictions += num_evictions
        self.num_preemptions += num_preemptions
        self.require(rig.recorder.num_shared_writes == 0, DifferenceKind.SHARED_WRITE)
        self.require(rig.is_clean(), DifferenceKind.LEAK)

    def result(self) -> VariantResult:
        counts = self._counts
        return VariantResult(
            name=self.name,
            runs=counts["runs"],
            hit_tokens=counts["hits"],
            expected_hit_tokens=counts["expected"],
            tokens_compared=counts["tokens"],
            logits_compared=counts["logits"],
            preemptions=self.num_preemptions,
            evictions=self.num_evictions,
        )

    def _is_equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        if self._tolerance == 0.0:
            # As integers: equal bits, where 0.0 and -0.0 are two numbers.
            return torch.equal(one.view(torch.int32), other.view(torch.int32))
        return bool((one - other).abs().max() <= self._tolerance * _scale(one))

    def _is_tie(self, row: torch.Tensor) -> bool:
        """Whether the tolerance alone can make another token the best one."""
        best, second = torch.topk(row, 2).values.tolist()
        limit = 2 * self._tolerance * _scale(row)
        return self._tolerance > 0.0 and best - second <= limit


def _scale(row: torch.Tensor) -> float:
    return max(1.0, float(row.abs().max()))
