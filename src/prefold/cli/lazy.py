"""Lazy loading: a command's work, imported when the command is run.

torch and transformers take seconds to import. ``prefold --help``, a mistyped option and
shell completion need none of it, so the modules that describe the commands import only
the standard library, typer and rich, and name the module that does the work. An import
statement inside a function would do the same, but hides from readers and tools that a
module depends on another; here every such place is a call of ``load``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable


def load(module: str, name: str) -> Callable[..., int]:
    """Import ``module`` and return its function ``name``, which returns an exit code."""
    function: Callable[..., int] = vars(importlib.import_module(module))[name]
    return function
