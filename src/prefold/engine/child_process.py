"""Child processes: one program run to its end, watched, and never left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_TICK_S = 0.2
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildResult:
    """How a child ended.

    Attributes:
        status: Its exit status, or minus the signal that killed it.
        output: What it wrote to standard output and standard error, in one.
    """

    status: int
    output: str

    @property
    def last_line(self) -> str:
        """The last line that is not blank, where programs say what went wrong."""
        lines = self.output.split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    on_tick: Callable[[], None],
) -> ChildResult:
    """Run ``command`` without input; the child is gone when this returns or raises.

    Its standard input is a pipe that ends when this process does, however that happens:
    a child that waits for this can end itself.

    Args:
        command: The program and its arguments.
        environment: Added to this process's own.
        on_tick: Called a few times a second meanwhile, and once at the end.

    Raises:
        OSError: The program cannot be started.
    """
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 -- callers name the interpreter itself
            command,
            env={**os.environ, **environment},
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=_TICK_S)
            except subprocess.TimeoutExpired:
                on_tick()
            else:
                on_tick()
                return ChildResult(status=process.returncode, output=output)
    finally:
        _end(process)
        os.close(write_end)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
