"""Report: advice as one HTML page that needs nothing besides itself.

No script, no font, no picture from elsewhere; nothing of any prompt's text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from prefold.advisor.advice import Advice, Figures, PrefixWorth
from prefold.advisor.lint import Breaker, Lint
from prefold.advisor.plots import Axis, draw_bars, draw_line
from prefold.advisor.traffic import Traffic
from prefold.advisor.words import (
    bytes_text,
    duration_text,
    ms_text,
    rate_text,
    share_text,
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #5b6470;
  --line: #d5dae0; --mark: #1f6feb; --yes: #116329; --no: #a40e26; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --paper: #14171b;
  --soft: #9aa4b0; --line: #333a42; --mark: #6cb0ff; --yes: #6fd08c; --no: #ff8e8e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1180px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.verdict { font-size: 1.1rem; padding: 12px 16px; border-left: 5px solid var(--no); }
.verdict.pays { border-color: var(--yes); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr));
  gap: 12px; margin: 0; } .figures div { border: 1px solid var(--line); padding: 8px 12px;
  border-radius: 6px; } dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.plots { display: grid; gap: 24px 16px; margin-top: 24px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
figure { margin: 0; } figcaption { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--line); text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th.text, td.text { text-align: left;
  white-space: normal; min-width: 9rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--line); } svg .bar, svg .dot { fill: var(--mark); }
svg .line { fill: none; stroke: var(--mark); stroke-width: 2; }
"""


def render_report(advice: Advice, traffic: Traffic, linted: Lint | None) -> str:
    """Return the page.

    Args:
        advice: On the traffic.
        traffic: What it is on.
        linted: What was found in its texts; None if it has none.
    """
    title = escape(f"Is a prefix cache worth it? {advice.name}")
    kind = "verdict pays" if advice.verdict.pays else "verdict"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{title}</h1>",
            f'<p class="{kind}">{escape(advice.verdict.sentence)}</p>',
            _main_figures(advice),
            f'<div class="plots">{_plots(advice)}</div>',
            *_breakers(linted),
            *_tenants(advice),
            *_prefixes("Best prefixes", advice.best),
            *_prefixes("Worst prefixes", advice.worst),
            "<h2>What was used, and what was assumed</h2>",
            _list([*traffic.notes, *assumptions(advice)]),
            *_problems(traffic),
            "</body></html>\n",
        ]
    )


def _main_figures(advice: Advice) -> str:
    load, lengths = advice.total.load, advice.total.hit_lengths
    reuse, price = load.reuse, advice.prices.thresholds.price
    held = (
        "all of it" if advice.capacity_bytes is None else bytes_text(advice.capacity_bytes)
    )
    rows = {
        "Requests": f"{load.num_requests:,}",
        "Prompt tokens": f"{load.num_prompt_tokens:,}",
        "Seen before": share_text(load.repetition_rate),
        "Cache holds": held,
        "Hit rate": share_text(load.hit_rate),
        "Hit length, median": f"{lengths.quantiles['p50']:,.0f} tokens",
        "Prefill saved": duration_text(load.saved_ms),
        "Saved a request": ms_text(load.saved_ms_per_request),
        "Held on average": bytes_text(load.held_bytes),
        "Held at most": bytes_text(advice.peak_bytes),
        "Computed again after eviction": duration_text(advice.total.evicted_ms),
    }
    if reuse is not None:
        rows |= {
            "Saved by each GiB, a second": ms_text(reuse.saved_ms_per_gib_s),
            "Pays from": _requests_text(reuse.break_even_per_s(price)),
            "Requests": f"{load.num_requests:,}, {rate_text(reuse.per_s)}",
        }
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in rows.items()
    )
    return f'<dl class="figures">{cells}</dl>'


def _requests_text(per_s: float) -> str:
    return "no rate" if math.isinf(per_s) else f"{rate_text(per_s)} requests"


def _plots(advice: Advice) -> str:
    sizes = Axis(
        title="size of the cache", labels=[bytes_text(it.num_bytes) for it in advice.curve]
    )
    rates = [100 * it.hit_rate for it in advice.curve]
    counts = advice.total.hit_lengths.counts
    starts = Axis(
        title="hit length in tokens, from",
        labels=[
            f"{0 if not place else 2 ** (place - 1):,}" for place in range(len(counts))
        ],
    )
    plots = [
        (
            draw_line(rates, sizes, "hit rate in %", "Hit rate against size of the cache"),
            "Prompt tokens that LRU hits in a cache of each size.",
        ),
        (
            draw_bars(counts, starts, "requests", "Distribution of hit lengths"),
            "Requests by how many tokens they hit.",
        ),
    ]
    if advice.total.load.span_s:
        saved = [it.saved_ms / advice.total.load.span_s for it in advice.curve]
        name = "Prefill saved against size of the cache"
        plots.append(
            (
                draw_line(saved, sizes, "ms saved a second", name),
                "Prefill that hits save each second, in a cache of each size.",
            )
        )
    return "".join(
        f"<figure>{plot}<figcaption>{escape(text)}</figcaption></figure>"
        for plot, text in plots
    )


def _breakers(linted: Lint | None) -> Iterable[str]:
    if linted is None:
        return
    yield "<h2>What breaks prefixes</h2>"
    if not linted.breakers:
        yield "<p>Nothing that would pay to change.</p>"
        return
    yield (
        "<p>Most costly first; each is counted with those above it put right, by replaying "
        "the rewritten prompts in a cache that keeps everything.</p>"
    )
    header = (
        "What",
        "Where",
        "At token",
        "Requests",
        "Saves tokens",
        "Saves prefill",
        "Do",
    )
    yield _table(header, [_breaker_row(it) for it in linted.breakers], texts={0, 1, 6})


def _breaker_row(breaker: Breaker) -> Sequence[str]:
    return (
        breaker.detail,
        f"{breaker.segment}; see lines {breaker.lines[1]:,} and {breaker.lines[0]:,}",
        f"{breaker.at_token:,}",
        f"{breaker.num_requests:,} ({share_text(breaker.share)})",
        f"{breaker.saved_tokens:,}",
        duration_text(breaker.saved_ms),
        breaker.remedy,
    )


def _tenants(advice: Advice) -> Iterable[str]:
    if not advice.tenants:
        return
    header = ("Tenant", "Requests", "Seen before", "Hit rate", "Saved", "Held", "Verdict")
    yield "<h2>Tenants</h2>"
    yield "<p>Memory that several of them use is split equally between those.</p>"
    yield _table(header, [_tenant_row(it) for it in advice.tenants], texts={0, 6})


def _tenant_row(figures: Figures) -> Sequence[str]:
    load = figures.load
    return (
        figures.name or "(no tenant)",
        f"{load.num_requests:,}",
        share_text(load.repetition_rate),
        share_text(load.hit_rate),
        duration_text(load.saved_ms),
        bytes_text(load.held_bytes),
        figures.verdict.sentence,
    )


def _prefixes(title: str, prefixes: Sequence[PrefixWorth]) -> Iterable[str]:
    if not prefixes:
        return
    header = (
        "Tokens",
        "First in request",
        "Used by",
        "Saved",
        "Held",
        "Reuses",
        "Pays from",
    )
    yield f"<h2>{escape(title)}</h2>"
    yield _table(header, [_prefix_row(it) for it in prefixes], texts=set())


def _prefix_row(prefix: PrefixWorth) -> Sequence[str]:
    reuse, even = prefix.reuse, prefix.break_even_per_s
    return (
        f"{prefix.begin:,} to {prefix.end:,}",
        f"{prefix.first_request:,}",
        f"{prefix.num_uses:,}",
        duration_text(prefix.saved_ms),
        "-" if reuse is None else bytes_text(reuse.held_bytes),
        "-" if reuse is None else rate_text(reuse.per_s),
        "-" if even is None else rate_text(even),
    )


def assumptions(advice: Advice) -> list[str]:
    """Return what the figures rest on, in sentences."""
    prices = advice.prices
    price = prices.thresholds.price
    prefill = (
        f"Prefill takes {prices.prefill.per_token * 1e3:g} ms a token, and "
        f"{prices.prefill.per_pair * 1e6:g} ms more for every 1,000 tokens before it; a "
        f"reply's token takes {prices.decode_ms:g} ms."
    )
    memory = (
        f"A token's KV has {prices.bytes_per_token:,.0f} bytes. The machine has "
        f"{bytes_text(price.machine_bytes)} for KV, so a GiB has to save "
        f"{ms_text(price.ms_per_gib_s)} a second."
    )
    return [prefill, memory]


def _problems(traffic: Traffic) -> Iterable[str]:
    if traffic.problems:
        yield "<h2>What could not be read</h2>"
        yield _list([problem.describe() for problem in traffic.problems])


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, texts: set[int]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        classes = [' class="text"' if place in texts else "" for place in range(len(cells))]
        written = [
            f"<{tag}{each}>{escape(cell)}</{tag}>"
            for each, cell in zip(classes, cells, strict=True)
        ]
        return f"<tr>{''.join(written)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    head = row(header, "th")
    return (
        f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    )
