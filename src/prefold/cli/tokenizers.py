"""Tokenizers: a model's own, to count the tokens of texts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Protocol

from prefold.advisor.traffic import Encode
from prefold.errors import InvalidInputError


class _Encoding(Protocol):
    ids: list[int]


class _Tokenizer(Protocol):
    def encode(self, sequence: str, *, add_special_tokens: bool) -> _Encoding: ...


def load_encode(directory: Path) -> Encode:
    """Return what makes token ids of texts as the model in a directory does.

    Raises:
        InvalidInputError: There is no tokenizer that can be used.
    """
    path = directory / "tokenizer.json" if directory.is_dir() else directory
    if not path.is_file():
        raise InvalidInputError(f"there is no tokenizer.json in {directory}")
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path} is no tokenizer") from error
    # Needed by this option alone.
    library = importlib.import_module("tokenizers")
    # The library raises nothing narrower than Exception.
    try:
        tokenizer: _Tokenizer = library.Tokenizer.from_str(text)
    except Exception as error:
        raise InvalidInputError(f"{path} is no tokenizer") from error
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
