"""Verification: shows on a model and its prompts that the cache changes no bit.

Every prompt runs once without the cache, alone and in as few steps as possible. Then it
runs in chunks, warm, beside strangers, after an eviction, after a preemption and as a
fork, and the tokens and logits of each run are compared with those of the first. A
variant that did not do what its name says counts as a difference too: otherwise a cache
that never hits would pass.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from prefold.engine.assembly import Assembly
from prefold.engine.batch import Runner
from prefold.engine.kv_store import KvStore
from prefold.engine.model_runner import ModelRunner
from prefold.engine.verification_prompts import VerificationPrompt
from prefold.engine.verification_references import Verification
from prefold.engine.verification_rig import Subject
from prefold.engine.verification_tally import (
    Difference,
    DifferenceKind,
    Tally,
    VariantResult,
)
from prefold.engine.verification_variants import VARIANTS
from prefold.errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """The outcome, and what it rests on.

    Attributes:
        prompts: Prompts that ran, stand-ins included.
        tolerance: By how much logits may differ, as a share of the largest one; 0 for
            not in any bit.
        attention: Name of the attention implementation.
        numerics: What may move the last bit: implementations, libraries, threads.
    """

    identical: bool
    prompts: int
    seconds: float
    tolerance: float
    attention: str
    numerics: Mapping[str, str | int]
    first_difference: Difference | None
    variants: tuple[VariantResult, ...]

    def to_json(self) -> dict[str, object]:
        """Return it as a value of plain dictionaries, lists and numbers."""
        difference = self.first_difference
        return {
            "identical": self.identical,
            "prompts": self.prompts,
            "seconds": round(self.seconds, 3),
            "tolerance": self.tolerance,
            "attention": self.attention,
            "numerics": dict(self.numerics),
            "first_difference": None
            if difference is None
            else {**dataclasses.asdict(difference), "kind": difference.kind.value},
            "variants": [dataclasses.asdict(variant) for variant in self.variants],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationSettings:
    """How much is run, and how exact it has to be.

    Attributes:
        is_full: Run every prompt in every variant that can take it.
        tolerance: See ``VerificationReport``.
        attention: See ``VerificationReport``.
        numerics: See ``VerificationReport``.
    """

    is_full: bool = False
    tolerance: float = 0.0
    attention: str
    numerics: Mapping[str, str | int]


#: Shares of the largest logit, where equal bits are not promised.
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def subject_of(assembly: Assembly) -> Subject:
    """Return an assembled model as a subject; it leaves the assembly's own cache alone."""
    loaded, layout = assembly.loaded, assembly.layout
    dtype, row_multiple = assembly.kv_dtype, assembly.exactness.row_multiple

    def make_runner(num_blocks: int) -> Runner:
        try:
            store = KvStore(layout, num_blocks, dtype=dtype, device=loaded.device)
        except MemoryError as error:
            raise CapacityError(
                f"verifying these prompts takes {num_blocks * layout.block_bytes} bytes of "
                "memory for KV, which there are not; use fewer or shorter ones"
            ) from error
        return ModelRunner(loaded, store, row_multiple=row_multiple)

    return Subject(
        make_runner=make_runner,
        fingerprint=assembly.parts.fingerprint,
        limits=assembly.config.limits,
        block_size=layout.block_size,
    )


def settings_of(assembly: Assembly, *, is_full: bool) -> VerificationSettings:
    """Return how exact an assembled model has to be."""
    loaded = assembly.loaded
    # In float32 even a probe that found a difference takes nothing back: then it shows.
    is_promised = loaded.device.type == "cpu" and (
        loaded.dtype == torch.float32 or assembly.exactness.is_exact
    )
    return VerificationSettings(
        is_full=is_full,
        tolerance=0.0 if is_promised else _TOLERANCES[loaded.dtype],
        attention=assembly.numerics.attention,
        numerics=assembly.numerics.describe(),
    )


def _ignore(_variant: str, _num_runs: int) -> None:
    pass


def verify(
    subject: Subject,
    prompts: Sequence[VerificationPrompt],
    settings: VerificationSettings,
    *,
    clock: Callable[[], float] = time.monotonic,
    on_progress: Callable[[str, int], None] = _ignore,
) -> VerificationReport:
    """Run all variants and compare them.

    Args:
        subject: The model.
        prompts: At least one.
        settings: How.
        clock: Seconds, for the duration.
        on_progress: Told a variant and how many of its runs are done, from 0 on.
    """
    started_at = clock()
    verification = Verification(subject, prompts, settings.is_full)
    tallies: list[Tally] = []
    for name, variant in VARIANTS.items():
        tally = Tally(name, settings.tolerance, on_progress)
        tallies.append(tally)
        on_progress(name, 0)
        variant(verification, tally)
        tally.require(tally.runs > 0, DifferenceKind.NO_RUNS)
    differences = [tally.first_difference for tally in tallies]
    first = next((each for each in differences if each is not None), None)
    return VerificationReport(
        identical=first is None,
        prompts=len(prompts),
        seconds=clock() - started_at,
        tolerance=settings.tolerance,
        attention=settings.attention,
        numerics=settings.numerics,
        first_difference=first,
        variants=tuple(tally.result() for tally in tallies),
    )
