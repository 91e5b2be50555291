"""Free memory: how much of a device cached KV may take unless a size is given."""

from __future__ import annotations

import os
from pathlib import Path

import torch

#: Share of the free memory that cached KV takes by default. The rest is left to the
#: steps themselves and to other programs.
DEFAULT_SHARE = 0.3

_MEMORY_FILE = Path("/proc/meminfo")


def free_memory_bytes(device: torch.device) -> int | None:
    """Return the memory that can be taken without harm, or None if nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = _MEMORY_FILE.read_text(encoding="ascii").splitlines()
    except OSError:
        return _free_pages_bytes()
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return _free_pages_bytes()


def _free_pages_bytes() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
