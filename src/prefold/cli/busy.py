"""Busy: says when other work on the machine will spoil what is timed."""

from __future__ import annotations

import os


def busy_note() -> str | None:
    """Return a sentence if more wants to run than there are cores, else None."""
    cores = os.cpu_count() or 1
    # Not on every system.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores:
        return None
    return (
        f"This machine is busy (load {load:.1f} on {cores} cores): all of this will take "
        "longer, and times and ratios will be off."
    )
