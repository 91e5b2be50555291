from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Undo what silencing other libraries changes in the process."""
    environment = dict(os.environ)
    names = ("transformers", "huggingface_hub", "torch", "filelock")
    levels = [logging.getLogger(name).level for name in names]
    yield
    os.environ.clear()
    os.environ.update(environment)
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)
