from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefold.engine.child_process import run_child


def run(script: str) -> tuple[int, str]:
    result = run_child(
        [sys.executable, "-c", script],
        environment={"PREFOLD_TEST": "set"},
        on_tick=lambda: None,
    )
    return result.status, result.last_line


def test_status_and_last_line_are_reported() -> None:
    script = "import os, sys; print(os.environ['PREFOLD_TEST']); print(); sys.exit(4)"
    assert run(script) == (4, "set")
    assert run("import sys; sys.stderr.write('to the other stream')")[1].startswith("to")
    assert run("") == (0, "")


def test_a_signal_is_a_negative_status() -> None:
    status, _ = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert status == -signal.SIGKILL


def test_much_output_and_foreign_bytes_do_no_harm() -> None:
    status, line = run(
        "import os; os.write(1, b'x' * 300_000); os.write(2, b'\\n\\xff end')"
    )
    assert (status, line) == (0, "\ufffd end")


KILLED = """
import os, signal, sys
from pathlib import Path
from prefold.engine.child_process import run_child
path = Path(sys.argv[1])
ticks = 0
def die():
    global ticks
    ticks += path.exists()
    if path.with_suffix(".ended").exists():
        sys.exit("the child ended before its parent")
    if ticks == 3:
        os.kill(os.getpid(), signal.SIGKILL)
script = f"echo $$ > {path}.new; mv {path}.new {path}; cat; touch {path}.ended"
run_child(["/bin/sh", "-c", script], environment={}, on_tick=die)
"""


def test_a_child_can_see_that_its_parent_was_killed(tmp_path: Path) -> None:
    process_id, ended = tmp_path / "id", tmp_path / "id.ended"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", KILLED, str(process_id)], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while not ended.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interrupt_ends_the_child_as_well(tmp_path: Path) -> None:
    process_id = tmp_path / "id"

    def interrupt() -> None:
        if process_id.exists():
            raise KeyboardInterrupt

    script = f"echo $$ > {process_id}.new; mv {process_id}.new {process_id}; exec sleep 600"
    with pytest.raises(KeyboardInterrupt):
        run_child(["/bin/sh", "-c", script], environment={}, on_tick=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(process_id.read_text()), 0)
