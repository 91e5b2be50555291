from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from prefold.server.off_loop import CollectionPause, run_sized


def test_what_is_small_runs_here_and_what_is_large_on_a_thread() -> None:
    async def main() -> None:
        here = threading.get_ident()
        assert await run_sized(10, threading.get_ident) == here
        assert await run_sized(1_000_000, threading.get_ident) != here

    asyncio.run(main())


def test_nothing_is_collected_while_a_large_thing_is_made() -> None:
    async def main() -> None:
        assert await run_sized(1_000_000, gc.isenabled) is False
        assert gc.isenabled()

        def fail() -> None:
            raise ValueError("on purpose")

        with pytest.raises(ValueError, match="on purpose"):
            await run_sized(1_000_000, fail)
        assert gc.isenabled()

    asyncio.run(main())


def test_collection_comes_back_with_the_last_holder() -> None:
    pause = CollectionPause()
    first, second = pause.hold(), pause.hold()
    with first:
        with second:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with CollectionPause().hold():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
