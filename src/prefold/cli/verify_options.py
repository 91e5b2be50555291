"""Options of ``verify``, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefold.cli.options import ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What ``verify`` is to do.

    Attributes:
        prompts: A file with one prompt a line; ``None`` for the built-in ones.
        is_full: Run every prompt in every variant.
    """

    model: ModelOptions
    prompts: Path | None
    is_full: bool
    as_json: bool
