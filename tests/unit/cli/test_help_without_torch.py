from __future__ import annotations

from importlib.util import find_spec

import pytest

from support.processes import run_python

# As `python -m prefold.cli.main ARGUMENTS`, where torch cannot be imported.
_RUN_MAIN = """
import runpy, sys

sys.modules["torch"] = sys.modules["transformers"] = None
sys.argv[0] = "prefold"
runpy.run_module("prefold.cli.main", run_name="__main__")
"""


@pytest.mark.skipif(find_spec("prefold.cli") is None, reason="there is no command line yet")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["demo", "--help"], ["verify", "--help"]]
)
def test_help_imports_no_torch(arguments: list[str]) -> None:
    assert "Usage" in run_python(_RUN_MAIN, *arguments)
