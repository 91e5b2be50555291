"""Eviction report: hit rates of policies as a Markdown table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: What the others are measured from.
BASELINE = "lru"

#: Told apart on white and on black, and by people who see fewer colours.
_COLOURS = ("#0a84d6", "#d9730d", "#2a9d5c", "#b45fc4", "#c9485b")
_GREY = "#808080"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Hit rates at one capacity of one trace: hit tokens over prompt tokens.

    Attributes:
        percent: Of the trace's distinct blocks.
        hit_rates: By policy.
        bound_holding_prompts: The bound for a cache that holds all of a prompt while it
            is served.
    """

    trace: str
    requests: int
    block_size: int
    percent: int
    blocks: int
    hit_rates: dict[str, float]
    bound: float
    bound_holding_prompts: float

    def gap_closed(self, policy: str, bound: float) -> float | None:
        """Return how far a policy comes from LRU to a bound, None if that is nothing."""
        base = self.hit_rates.get(BASELINE)
        if base is None or bound <= base:
            return None
        return (self.hit_rates[policy] - base) / (bound - base)


def markdown_table(hits: Sequence[Hits], policies: Sequence[str]) -> str:
    """Return a row a trace and capacity; in brackets, shares of the gaps closed."""
    head = ["trace", "capacity", "blocks", *policies, "bound", "bound, prompts held"]
    lines = [_row(head), _row(["---", *["--:"] * (len(head) - 1)])]
    for row in hits:
        cells = [_cell(row, policy) for policy in policies]
        lines.append(
            _row(
                [
                    row.trace,
                    f"{row.percent} %",
                    f"{row.blocks:,}",
                    *cells,
                    f"{row.bound:.3f}",
                    f"{row.bound_holding_prompts:.3f}",
                ]
            )
        )
    return "\n".join(lines) + "\n"


def _cell(row: Hits, policy: str) -> str:
    rate = row.hit_rates[policy]
    if rate < row.hit_rates.get(BASELINE, 0.0):
        return f"{rate:.3f} (below)"
    bounds = (row.bound, row.bound_holding_prompts)
    closed = [row.gap_closed(policy, bound) for bound in bounds]
    if policy == BASELINE or None in closed:
        return f"{rate:.3f}"
    return f"{rate:.3f} ({', '.join(f'{share:.0%}' for share in closed)})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw_hits(hits: Sequence[Hits], policies: Sequence[str], path: Path) -> None:
    """Draw hit rate over capacity, a panel a trace, as an SVG file.

    Equal figures give equal files. Text stays text and the ground is transparent, so that
    the plot is small and can be read on light and dark pages.
    """
    # Here, because without a plot nothing needs it.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    traces = list(dict.fromkeys(row.trace for row in hits))
    with mpl.rc_context(
        {
            "text.color": _GREY,
            "axes.edgecolor": _GREY,
            "axes.labelcolor": _GREY,
            "xtick.color": _GREY,
            "ytick.color": _GREY,
            "grid.color": _GREY,
            "font.size": 8,
            "svg.fonttype": "none",
            "svg.hashsalt": "prefold",
        }
    ):
        figure = Figure(figsize=(2.1 * len(traces), 2.6), layout="constrained")
        panels = figure.subplots(1, len(traces), sharey=True, squeeze=False)[0]
        for panel, trace in zip(panels, traces, strict=True):
            rows = [row for row in hits if row.trace == trace]
            percents = [row.percent for row in rows]
            bound = [row.bound for row in rows]
            panel.plot(percents, bound, color=_GREY, linestyle="--", label="bound")
            for number, policy in enumerate(policies):
                rates = [row.hit_rates[policy] for row in rows]
                colour = _COLOURS[number % len(_COLOURS)]
                panel.plot(percents, rates, color=colour, marker=".", label=policy)
            panel.set_xscale("log")
            panel.set_xticks(percents, [f"{percent} %" for percent in percents])
            panel.minorticks_off()
            panel.set_ylim(0, 1)
            panel.grid(alpha=0.25)
            panel.set_title(trace.replace("_", " "), fontsize=8)
            panel.set_facecolor("none")
        panels[0].set_ylabel("token hit rate")
        figure.supxlabel("capacity, of distinct blocks", fontsize=8)
        # A frame would be filled with white.
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside right center",
            frameon=False,
        )
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
