"""Lazy loading: a command's work, imported when the command is run.

torch and transformers take seconds to import. ``prefold --help``, a mistyped option and
shell completion need none of it, so the modules that describe the commands import only
the standard library, typer and rich, and name the module that does the work. An import
statement inside a function would do the same, but hides from readers and tools that a
module depends on another; here every such place is a call of ``load``.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def load(module: str, name: str) -> Callable[..., int]:
    """Import ``module`` and return its function ``name``, which returns an exit code."""
    with _announced(), collector_paused():
        return load_light(module, name)


def load_light(module: str, name: str) -> Callable[..., int]:
    """Do the same for a module that takes no time worth a word, since it needs no torch."""
    function: Callable[..., int] = vars(importlib.import_module(module))[name]
    return function


@contextmanager
def _announced() -> Iterator[None]:
    """Say what takes so long, on a terminal, and take it away again."""
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.write("Importing torch and transformers ...")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Spare the garbage collector what the body makes, which lives until the end.

    It would walk those objects again and again. After an import that is a seventh of its
    time, and a pause in every later full collection.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
