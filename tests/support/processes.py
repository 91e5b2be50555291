"""Other processes for tests: Python scripts run to their end."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(script: str, *arguments: str, hash_seed: str = "random") -> str:
    """Run ``script`` with this process's import path; return what it printed.

    Fails with what it wrote to standard error if it does not end well.
    """
    done = subprocess.run(  # noqa: S603 -- the tests' own scripts
        [sys.executable, "-c", script, *arguments],
        env={
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
