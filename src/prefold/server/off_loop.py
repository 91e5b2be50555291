"""Off the loop: long computations, which would keep every other client waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

#: Characters or tokens that are worth a thread: some milliseconds of tokenizing.
_MIN_SIZE = 20_000


async def run_sized(size: int, function: Callable[[], _T]) -> _T:
    """Run a function here if it has little to do, or on a thread.

    Args:
        size: Characters that it reads.
        function: What to run.
    """
    if size < _MIN_SIZE:
        return function()
    return await asyncio.to_thread(function)
