"""User directories: where Prefold keeps what it can make again, and what it remembers.

The cache directory holds large things that a download or a computation brings back;
the state directory holds small things that belong to this user and machine. Both
follow the XDG base directory convention; this is the one place that computes them.
(The master secret, in a package that may not import this one, states the same rule.)
"""

from __future__ import annotations

import os
from pathlib import Path

from prefold.errors import ConfigError

#: Names the cache directory outright, in place of the convention.
CACHE_DIR_VARIABLE = "PREFOLD_CACHE_DIR"


def cache_dir() -> Path:
    """Return the cache directory, which need not exist yet.

    Raises:
        ConfigError: Nothing in the environment names one, and the user has no home.
    """
    named = os.environ.get(CACHE_DIR_VARIABLE)
    if named:
        # Absolute, so that it stays the same directory when the process changes its own.
        return Path(named).absolute()
    return _xdg_dir("XDG_CACHE_HOME", ".cache") / "prefold"


def state_dir() -> Path:
    """Return the state directory, which need not exist yet.

    Raises:
        ConfigError: Nothing in the environment names one, and the user has no home.
    """
    return _xdg_dir("XDG_STATE_HOME", ".local/state") / "prefold"


def _xdg_dir(variable: str, below_home: str) -> Path:
    directory = Path(os.environ.get(variable, ""))
    if directory.is_absolute():  # the convention is to ignore a relative one
        return directory
    try:
        return Path.home() / below_home
    except RuntimeError as exc:
        raise ConfigError(
            f"the user has no home directory; set {variable} to a directory"
        ) from exc
