"""Async adapters: adapters for an engine on its own thread, while it serves.

::

    a thread         reads and checks the files, and packs the matrices
    engine thread    puts the result on the shelf, between two steps
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from prefold.engine.adapter import Adapter, AdapterHost
from prefold.engine.adapter_loading import load_adapter
from prefold.engine.adapter_shelf import AdapterInfo
from prefold.engine.engine import Engine

_T = TypeVar("_T")


class EngineThread(Protocol):
    """The engine, reached from an event loop."""

    async def call(self, function: Callable[[Engine], _T]) -> _T:
        """Run ``function`` there, between two steps."""
        ...


class AsyncAdapters:
    """Loads and unloads adapters of a running engine. Used on one loop."""

    __slots__ = ("_thread",)

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread

    async def load(
        self, name: str, path: str | os.PathLike[str], *, reload: bool = False
    ) -> None:
        """As ``AdapterShelf.load``; requests are served while the files are read.

        Raises:
            ConfigError: It cannot be served, or not under this name; nothing was changed.
            UnknownAdapterError: It is to replace one that is not there.
            EngineStoppedError: The engine has stopped.
        """

        def check(engine: Engine) -> AdapterHost:
            engine.adapters.check_name(name, replaces=reload)
            return engine.adapters.needed_host()

        host = await self._thread.call(check)
        adapter = await asyncio.to_thread(load_adapter, path, host)
        # Asked once more: somebody else may have been faster.
        await self._thread.call(lambda it: it.adapters.put(name, adapter, replaces=reload))

    async def unload(self, name: str) -> Adapter:
        """As ``AdapterShelf.unload``.

        Raises:
            UnknownAdapterError: There is none of that name.
            EngineStoppedError: The engine has stopped.
        """
        return await self._thread.call(lambda it: it.adapters.unload(name))

    async def infos(self) -> tuple[AdapterInfo, ...]:
        """As ``AdapterShelf.infos``.

        Raises:
            EngineStoppedError: The engine has stopped.
        """
        return await self._thread.call(lambda it: it.adapters.infos())
