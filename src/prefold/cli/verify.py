"""Verify: runs prompts with and without the cache, and compares every bit."""

from __future__ import annotations

from collections.abc import Sequence

from prefold.cli.busy import busy_note
from prefold.cli.console import Screen
from prefold.cli.options import ModelOptions
from prefold.cli.verify_options import VerifyOptions
from prefold.engine.assembly import Assembly, assemble
from prefold.engine.model_settings import ModelSettings
from prefold.engine.verification import (
    VerificationReport,
    settings_of,
    subject_of,
    verify,
)
from prefold.engine.verification_prompts import (
    PromptLine,
    VerificationPrompt,
    built_in_prompts,
    encode_prompts,
    read_prompts,
    stand_ins,
)
from prefold.engine.verification_tally import Difference, DifferenceKind
from prefold.engine.verification_variants import VARIANTS
from prefold.errors import InvalidInputError

EXIT_NOT_IDENTICAL = 1

_HEADER = ("variant", "runs", "hit", "expected", "tokens", "logits", "preempt.", "evicted")
_WIDTHS = (12, 6, 8, 10, 8, 12, 10, 9)

_KINDS = {
    DifferenceKind.TOKEN: "another token was chosen",
    DifferenceKind.LOGITS: "the logits differ",
    DifferenceKind.ENDING: "a run did not end by its length",
    DifferenceKind.HIT_TOKENS: "the cache found another number of tokens than it had to",
    DifferenceKind.NO_RUNS: "no prompt could be run this way",
    DifferenceKind.STEPS: "the prompt took another number of steps",
    DifferenceKind.ALONE: "a sequence was alone in a step",
    DifferenceKind.NOT_EVICTED: "nothing was evicted",
    DifferenceKind.NOT_PREEMPTED: "nothing was preempted and resumed",
    DifferenceKind.NOT_SHARED: "forks had no block in common",
    DifferenceKind.SHARED_WRITE: "a block was written to that another sequence holds",
    DifferenceKind.LEAK: "blocks were still held at the end",
}


def run_verify(options: VerifyOptions) -> int:
    """Verify a model; return 1 if anything is not as it has to be."""
    with Screen(as_json=options.as_json) as screen:
        # Before the model is loaded: a mistake in the file is answered at once.
        lines = None if options.prompts is None else read_prompts(options.prompts)
        assembly = assemble(options.model.model, _settings(options.model), screen)
        prompts = _prompts(assembly, lines)
        if not prompts:
            raise InvalidInputError(
                f"max_model_len {assembly.config.limits.max_model_len} leaves no room for "
                "a prompt to verify; raise it"
            )
        screen.print_line(f"Model: {assembly.source}")
        screen.say(_describe_prompts(len(prompts), lines))
        detail = assembly.exactness.detail
        screen.say(
            f"Attention: {assembly.numerics.attention}. {detail[:1].upper()}{detail[1:]}."
        )
        note = busy_note()
        if note is not None:
            screen.say(note)
        report = verify(
            subject_of(assembly),
            prompts,
            settings_of(assembly, is_full=options.is_full),
            on_progress=_Steps(screen),
        )
        _show(report, screen)
    return 0 if report.identical else EXIT_NOT_IDENTICAL


class _Steps:
    """Shows each variant as a step."""

    __slots__ = ("_screen",)

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __call__(self, variant: str, num_runs: int) -> None:
        if num_runs == 0:
            place = list(VARIANTS).index(variant) + 1
            self._screen.begin(f"Running {variant} ({place} of {len(VARIANTS)})")


def _settings(options: ModelOptions) -> ModelSettings:
    return ModelSettings(
        # Each variant has a pool of its own; the assembly's is not used.
        cache_blocks=1,
        block_size=options.block_size,
        dtype=options.dtype or "float32",
        kv_dtype=options.kv_dtype,
        attention=options.attention,
        max_model_len=options.max_model_len,
        num_threads=options.threads,
        device=options.device,
        position_offset=options.position_offset,
        rehash=options.rehash,
    )


def _prompts(
    assembly: Assembly, lines: Sequence[PromptLine] | None
) -> list[VerificationPrompt]:
    limits, block_size = assembly.config.limits, assembly.layout.block_size
    if lines is None:
        return built_in_prompts(limits, block_size)
    own = encode_prompts(lines, assembly.loaded.tokenizer, limits)
    return [*own, *stand_ins(limits, block_size)]


def _describe_prompts(num_prompts: int, lines: Sequence[PromptLine] | None) -> str:
    if lines is not None:
        return (
            f"{len(lines)} prompts of the file, and {num_prompts - len(lines)} more for "
            "what they cannot show."
        )
    return (
        f"{num_prompts} prompts, {len(VARIANTS)} variants: about a minute for the demo "
        "model on two free cores, and more with --full."
    )


def _show(report: VerificationReport, screen: Screen) -> None:
    screen.say()
    screen.say(_line(_HEADER), style="bold")
    for variant in report.variants:
        counts = (
            variant.runs,
            variant.hit_tokens,
            variant.expected_hit_tokens,
            variant.tokens_compared,
            variant.logits_compared,
            variant.preemptions,
            variant.evictions,
        )
        screen.say(_line((variant.name, *(f"{count:,}" for count in counts))))
    screen.say()
    style = "bold" if report.identical else "bold red"
    screen.say(_verdict(report), style=style)
    if screen.as_json:
        screen.print_json(report.to_json())


def _line(cells: Sequence[str]) -> str:
    first, *rest = zip(cells, _WIDTHS, strict=True)
    return first[0].ljust(first[1]) + "".join(cell.rjust(width) for cell, width in rest)


def _verdict(report: VerificationReport) -> str:
    seconds = f"in {report.seconds:.0f} s"
    if report.first_difference is not None:
        return f"NOT identical: {_describe(report.first_difference)} ({seconds})."
    num_logits = sum(variant.logits_compared for variant in report.variants)
    if report.tolerance == 0.0:
        return f"Identical: {num_logits:,} logits have the same bits ({seconds})."
    return (
        f"Equal within tolerance: {num_logits:,} logits differ by at most "
        f"{report.tolerance:.0e} of the largest ({seconds})."
    )


def _describe(difference: Difference) -> str:
    place = f"in the variant {difference.variant}"
    if difference.prompt is not None:
        place += f", prompt {difference.prompt}"
    if difference.position is not None:
        place += f", token {difference.position}"
    return f"{_KINDS[difference.kind]} {place}"
