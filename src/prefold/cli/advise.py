"""The work of ``prefold advise``: read, replay, lint, and show what came out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prefold.advisor.advice import Prices
from prefold.advisor.advice_document import make_document
from prefold.advisor.appraisal import appraise
from prefold.advisor.lint import Lint, lint
from prefold.advisor.progress import Progress
from prefold.advisor.report import render_report
from prefold.advisor.request_log import BYTES_PER_TOKEN
from prefold.advisor.trace_reader import TraceOptions
from prefold.advisor.traffic import Encode, Traffic, read_traffic
from prefold.advisor.verdict import Thresholds
from prefold.advisor.worth import MemoryPrice
from prefold.cli.advise_options import AdviseOptions
from prefold.cli.advise_text import show_advice
from prefold.cli.console import Screen
from prefold.cli.lazy import collector_paused
from prefold.cli.replay import trace_format_of
from prefold.cli.tokenizers import load_encode
from prefold.engine.config import parse_memory
from prefold.errors import InvalidInputError
from prefold.eviction.cost import CostFit

_MAX_SHOWN_PROBLEMS = 5


def run_advise(options: AdviseOptions) -> int:
    """Say whether a prefix cache pays for recorded traffic, and what breaks prefixes."""
    prices = _prices(options)
    capacity = None if options.capacity is None else float(parse_memory(options.capacity))
    trace_options = TraceOptions(
        trace_format=trace_format_of(options.trace_format),
        block_size=options.block_size,
        is_strict=options.is_strict,
    )
    if options.report is not None:
        _check_writable(options.report)
    # A trace is millions of small objects, none of which is garbage before the end.
    with Screen(as_json=options.as_json) as screen, collector_paused():
        encode = _encode(options.tokenizer, screen)
        with screen.step(f"Reading {options.source.name}"):
            traffic = read_traffic(options.source, trace_options, encode)
        advice = appraise(
            traffic.trace,
            prices,
            capacity_bytes=capacity,
            has_times=traffic.has_times,
            progress=Progress(begin=screen.begin_runs, advance=screen.advance),
        )
        linted = _lint(traffic, prices, encode, screen)
        _report_problems(traffic, screen)
        if options.report is not None:
            page = render_report(advice, traffic, linted)
            options.report.write_text(page, encoding="utf-8")
        if options.as_json:
            screen.print_json(make_document(advice, traffic, linted))
        else:
            show_advice(advice, traffic, linted, screen)
            if options.report is not None:
                screen.say(f"All of it, with plots: {options.report}")
    return 0


def _prices(options: AdviseOptions) -> Prices:
    machine_bytes = float(parse_memory(options.machine_memory))
    return Prices(
        prefill=CostFit(
            per_step=0.0,
            per_token=options.ms_per_token / 1e3,
            per_pair=options.ms_per_1k_depth / 1e6,
        ),
        decode_ms=options.ms_per_output_token,
        bytes_per_token=options.bytes_per_token,
        thresholds=Thresholds(price=MemoryPrice(machine_bytes=machine_bytes)),
    )


def _check_writable(report: Path) -> None:
    """Refuse now what would fail after minutes of work."""
    if report.is_dir() or not report.parent.is_dir():
        raise InvalidInputError(
            f"the report cannot be written to {report}; name a file in a directory that "
            "exists"
        )


def _encode(directory: Path | None, screen: Screen) -> Encode | None:
    if directory is None:
        return None
    try:
        return load_encode(directory)
    except InvalidInputError as error:
        screen.warn(f"{error}; {BYTES_PER_TOKEN} bytes count as a token instead")
        return None


def _lint(
    traffic: Traffic, prices: Prices, encode: Encode | None, screen: Screen
) -> Lint | None:
    texts = [prompt for prompt in traffic.prompts if prompt.token_ids is None]
    if not texts:
        return None
    screen.begin_runs("Looking for what breaks prefixes", len(texts))
    return lint(texts, prices, _count_tokens(encode), screen.advance)


def _count_tokens(encode: Encode | None) -> Callable[[str], float]:
    if encode is None:
        return lambda text: len(text.encode(errors="surrogatepass")) / BYTES_PER_TOKEN
    return lambda text: float(len(encode(text)))


def _report_problems(traffic: Traffic, screen: Screen) -> None:
    for problem in traffic.problems[:_MAX_SHOWN_PROBLEMS]:
        screen.warn(problem.describe())
    more = traffic.num_problems - min(len(traffic.problems), _MAX_SHOWN_PROBLEMS)
    if more > 0:
        screen.warn(f"... and {more:,} more")
