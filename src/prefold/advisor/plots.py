"""Plots: small SVG pictures that stand in a page, without outside resources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 52
_INNER_WIDTH = _WIDTH - _LEFT - _RIGHT
_INNER_HEIGHT = _HEIGHT - _TOP - _BOTTOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What is shown along one side.

    Attributes:
        title: With its unit.
        labels: Of the places for the horizontal axis, of levels for the vertical one.
    """

    title: str
    labels: Sequence[str]


def draw_bars(values: Sequence[float], x: Axis, y_title: str, name: str) -> str:
    """Return a bar chart of ``values``, none of them negative, as SVG.

    Args:
        values: One a bar.
        x: With a label for each bar.
        y_title: Of the values.
        name: Of the picture, for who cannot see it.
    """
    top, levels = _levels(max(values, default=0.0))
    step = _INNER_WIDTH / max(len(values), 1)
    bars = []
    for place, value in enumerate(values):
        height = _INNER_HEIGHT * value / top
        left = _LEFT + place * step + step * 0.1
        label = escape(f"{x.labels[place]}: {value:,.6g}")
        bars.append(
            f'<rect class="bar" x="{left:.1f}" y="{_TOP + _INNER_HEIGHT - height:.1f}" '
            f'width="{step * 0.8:.1f}" height="{height:.1f}"><title>{label}</title></rect>'
        )
    places = [_LEFT + (place + 0.5) * step for place in range(len(values))]
    return _frame("".join(bars), x, places, (y_title, top, levels), name)


def draw_line(values: Sequence[float], x: Axis, y_title: str, name: str) -> str:
    """Return a line through ``values``, none of them negative, as SVG.

    Args:
        values: At even distances.
        x: With a label for each of them.
        y_title: Of the values.
        name: Of the picture, for who cannot see it.
    """
    top, levels = _levels(max(values, default=0.0))
    step = _INNER_WIDTH / max(len(values), 1)
    places = [_LEFT + (place + 0.5) * step for place in range(len(values))]
    heights = [_TOP + _INNER_HEIGHT * (1 - value / top) for value in values]
    points = " ".join(
        f"{left:.1f},{height:.1f}" for left, height in zip(places, heights, strict=True)
    )
    dots = "".join(
        f'<circle class="dot" cx="{left:.1f}" cy="{height:.1f}" r="4">'
        f"<title>{escape(f'{label}: {value:,.6g}')}</title></circle>"
        for left, height, label, value in zip(
            places, heights, x.labels, values, strict=True
        )
    )
    line = f'<polyline class="line" points="{points}"/>'
    return _frame(line + dots, x, places, (y_title, top, levels), name)


def _frame(
    inside: str,
    x: Axis,
    places: Sequence[float],
    y: tuple[str, float, Sequence[float]],
    name: str,
) -> str:
    y_title, top, levels = y
    lines = []
    for level in levels:
        height = _TOP + _INNER_HEIGHT * (1 - level / top)
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" '
            f'y2="{height:.1f}"/><text x="{_LEFT - 6}" y="{height + 4:.1f}" '
            f'text-anchor="end">{level:,.4g}</text>'
        )
    # Labels that would run into each other are left out.
    every = max(1, math.ceil(len(places) * max(map(len, x.labels), default=1) * 7 / 480))
    for place, (left, label) in enumerate(zip(places, x.labels, strict=True)):
        if place % every == 0:
            lines.append(
                f'<text x="{left:.1f}" y="{_HEIGHT - _BOTTOM + 18}" '
                f'text-anchor="middle">{escape(label)}</text>'
            )
    middle = _TOP + _INNER_HEIGHT / 2
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">'
        f"{''.join(lines)}{inside}"
        f'<text class="title" x="{_LEFT + _INNER_WIDTH / 2}" y="{_HEIGHT - 8}" '
        f'text-anchor="middle">{escape(x.title)}</text>'
        f'<text class="title" x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">{escape(y_title)}</text></svg>'
    )


def _levels(most: float) -> tuple[float, list[float]]:
    """Return where the axis ends, and round numbers up to there."""
    if most <= 0:
        return 1.0, [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(most))
    # Four lines or so, whatever the size.
    for factor in (0.2, 0.25, 0.5, 1.0, 2.0):
        if most / (step * factor) <= 5:
            step *= factor
            break
    count = math.ceil(most / step - 1e-9)
    return count * step, [step * number for number in range(count + 1)]
