"""Words: amounts as people read them."""

from __future__ import annotations

import math


def bytes_text(num_bytes: float) -> str:
    """Return a size in B, KiB, MiB, GiB or TiB."""
    size = num_bytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.3g} {unit}" if size < 999.5 else f"{size:,.0f} {unit}"
        size /= 1024
    return f"{size:,.3g} TiB" if size < 999.5 else f"{size:,.0f} TiB"


def ms_text(milliseconds: float) -> str:
    """Return milliseconds with three digits that count."""
    if math.isinf(milliseconds):
        return "no limit"
    digits = 0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2
    return f"{milliseconds:,.{digits}f} ms"


def duration_text(milliseconds: float) -> str:
    """Return a sum of milliseconds as ms, s, min or h."""
    seconds = milliseconds / 1000
    if abs(seconds) < 1:
        return ms_text(milliseconds)
    if abs(seconds) < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if abs(seconds) < 7200 else f"{seconds / 3600:,.1f} h"


def rate_text(per_s: float) -> str:
    """Return how often something happens, a second, a minute, an hour or a day."""
    if math.isinf(per_s):
        return "never"
    if per_s == 0:
        return "0"
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if per_s * seconds >= 1:
            return f"{per_s * seconds:,.3g}/{unit}"
    return f"{per_s * 86_400:,.3g}/day"


def share_text(share: float) -> str:
    """Return a share in percent."""
    return f"{share:.1%}"
