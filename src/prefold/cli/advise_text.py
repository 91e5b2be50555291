"""Advice as text: what ``prefold advise`` shows on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from prefold.advisor.advice import Advice, Figures, PrefixWorth
from prefold.advisor.lint import Lint
from prefold.advisor.report import assumptions
from prefold.advisor.traffic import Traffic
from prefold.advisor.words import (
    bytes_text,
    duration_text,
    ms_text,
    rate_text,
    share_text,
)
from prefold.cli.console import Screen

#: Tenants shown; the page and the JSON have more.
_MAX_TENANTS = 10
_NAME_WIDTH = 20
_WIDTH = 12


def show_advice(
    advice: Advice, traffic: Traffic, linted: Lint | None, screen: Screen
) -> None:
    """Show the verdict, the figures behind it, and what to change."""
    screen.say(advice.verdict.sentence, style="bold")
    _show_figures(advice, screen)
    _show_breakers(linted, screen)
    _show_curve(advice, screen)
    _show_tenants(advice.tenants, screen)
    _show_prefixes("Best prefixes", advice.best, screen)
    _show_prefixes("Worst prefixes", advice.worst, screen)
    _head("What was used, and what was assumed", screen)
    for note in (*traffic.notes, *assumptions(advice)):
        screen.say(note, indent=2)


def _head(title: str, screen: Screen) -> None:
    screen.print_line("")
    screen.print_line(title, style="bold")


def _show_figures(advice: Advice, screen: Screen) -> None:
    load, lengths = advice.total.load, advice.total.hit_lengths
    reuse, price = load.reuse, advice.prices.thresholds.price
    held = "holds everything"
    if advice.capacity_bytes is not None:
        held = f"has {bytes_text(advice.capacity_bytes)}"
    quantiles = ", ".join(f"{name} {it:,.0f}" for name, it in lengths.quantiles.items())
    screen.print_line("")
    screen.say(
        f"{load.num_requests:,} requests with {load.num_prompt_tokens:,} prompt tokens, of "
        f"which {share_text(load.repetition_rate)} were seen before."
    )
    screen.say(
        f"A cache that {held} hits {share_text(load.hit_rate)}; hit lengths in tokens: "
        f"{quantiles}."
    )
    screen.say(
        f"That saves {duration_text(load.saved_ms)} of prefill, "
        f"{ms_text(load.saved_ms_per_request)} a request and "
        f"{share_text(load.saved_share)} of the serving time."
    )
    screen.say(
        f"It holds {bytes_text(load.held_bytes)} on average and "
        f"{bytes_text(advice.peak_bytes)} at most; what eviction took cost "
        f"{duration_text(advice.total.evicted_ms)} of prefill."
    )
    if reuse is not None and load.saved_ms:
        screen.say(
            f"Each GiB held saves {ms_text(reuse.saved_ms_per_gib_s)} a second; it pays "
            f"from {rate_text(reuse.break_even_per_s(price))} requests on, and there are "
            f"{rate_text(reuse.per_s)}."
        )


def _show_breakers(linted: Lint | None, screen: Screen) -> None:
    if linted is None:
        return
    _head("What breaks prefixes", screen)
    if not linted.breakers:
        screen.say("Nothing that would pay to change.", indent=2)
    for number, it in enumerate(linted.breakers, 1):
        screen.say(
            f"{number}. {it.detail} in {it.segment}, at token {it.at_token:,}, in "
            f"{share_text(it.share)} of the requests: {it.remedy}. That saves "
            f"{it.saved_tokens:,} tokens, {duration_text(it.saved_ms)} of prefill. See "
            f"lines {it.lines[1]:,} and {it.lines[0]:,}.",
            indent=2,
        )


def _show_curve(advice: Advice, screen: Screen) -> None:
    _head("By size of the cache", screen)
    screen.print_line(_row(("size", "hit rate", "saved", "held")))
    for it in advice.curve:
        cells = (
            bytes_text(it.num_bytes),
            share_text(it.hit_rate),
            duration_text(it.saved_ms),
            bytes_text(it.held_bytes),
        )
        screen.print_line(_row(cells))


def _show_tenants(tenants: Sequence[Figures], screen: Screen) -> None:
    if not tenants:
        return
    _head("Tenants (memory used by several is split equally)", screen)
    header = ("tenant", "requests", "seen", "hit rate", "saved", "held", "pays")
    screen.print_line(_named_row(header))
    for it in tenants[:_MAX_TENANTS]:
        cells = (
            it.name or "(no tenant)",
            f"{it.load.num_requests:,}",
            share_text(it.load.repetition_rate),
            share_text(it.load.hit_rate),
            duration_text(it.load.saved_ms),
            bytes_text(it.load.held_bytes),
            "yes" if it.verdict.pays else "no",
        )
        screen.print_line(_named_row(cells))
    if len(tenants) > _MAX_TENANTS:
        screen.say(f"... and {len(tenants) - _MAX_TENANTS:,} more", indent=2)


def _show_prefixes(title: str, prefixes: Sequence[PrefixWorth], screen: Screen) -> None:
    if not prefixes:
        return
    _head(title, screen)
    header = ("tokens", "used by", "saved", "has", "reuses", "pays from")
    screen.print_line(_named_row(header))
    for it in prefixes:
        reuse, even = it.reuse, it.break_even_per_s
        cells = (
            f"{it.begin:,} to {it.end:,}",
            f"{it.num_uses:,}",
            duration_text(it.saved_ms),
            "-" if reuse is None else bytes_text(reuse.held_bytes),
            "-" if reuse is None else rate_text(reuse.per_s),
            "-" if even is None else rate_text(even),
        )
        screen.print_line(_named_row(cells))


def _row(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(_WIDTH) for cell in cells)


def _named_row(cells: Sequence[str]) -> str:
    return f"  {cells[0][:_NAME_WIDTH]:<{_NAME_WIDTH}}" + _row(cells[1:])
