"""Quiet: keeps other libraries' bars, warnings and telemetry off the screen, and calm.

They read the environment when they are imported, so this comes before their import.
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

_ALWAYS = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

#: Threads that wait for each other spin for a quarter of a millisecond and then sleep: to
#: be woken again takes longer than what is between two parts of a step. Without a limit, a
#: machine that does anything else besides would take many times the work itself.
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}

#: For models that are here: nothing is fetched, so there is nothing to show either.
_LOCAL = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
}


def quiet_libraries(model: str | None) -> None:
    """Silence what is about to be imported for ``model``.

    A model from the hub keeps the hub's own bars: a download of gigabytes must show
    that it moves, and they are on standard error.
    """
    os.environ.update(_ALWAYS)
    if not any(name in os.environ for name in _WAITING):
        os.environ.update(_WAITING)
    if model is None or Path(model).is_dir():
        os.environ.update(_LOCAL)
    warnings.filterwarnings("ignore")
    for name in ("transformers", "huggingface_hub", "torch", "filelock"):
        logging.getLogger(name).setLevel(logging.ERROR)
