"""Outermost shell: runs a command and turns whatever happens into an exit code.

| exit code | means |
|---|---|
| 0 | done |
| 1 | done, but a result is not as it should be; or a bug, with its traceback |
| 2 | bad input, or no room: one sentence on standard error |
| 130 | interrupted: one line on standard error |

Importing this module costs next to nothing, so that there is hardly a moment at which
Ctrl-C meets Python's own answer to it.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from prefold.errors import InvariantError, PrefoldError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
#: Quietly: whoever closed the pipe has seen enough.
EXIT_BROKEN_PIPE = 1

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments``, or the program's own, name."""
    for stream in (sys.stdout, sys.stderr):
        # A reply may hold characters that a terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    interrupt = _Interrupt()
    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        try:
            code = _run(sys.argv[1:] if arguments is None else arguments)
        except BaseException as error:  # noqa: BLE001 -- explained, or raised again
            # A library may turn the interrupt into an error of its own, or a failing
            # clean-up may hide it.
            code = EXIT_INTERRUPTED if interrupt.came else _explain(error)
        # The option parser answers an interrupt with the exit code alone.
        if interrupt.came or code == EXIT_INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _complain("Interrupted.")
            return _flush(EXIT_INTERRUPTED)
        return _flush(code)
    finally:
        signal.signal(signal.SIGINT, previous)


class _Interrupt:
    """Answers SIGINT as Python does, and remembers that it came."""

    __slots__ = ("came",)

    def __init__(self) -> None:
        self.came = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self.came = True
        raise KeyboardInterrupt


def _run(arguments: Sequence[str]) -> int:
    # Not at the top: typer and rich take a moment, in which Ctrl-C must be answered.
    app = importlib.import_module("prefold.cli.app")
    code: int = app.run(arguments)
    return code


def _explain(error: BaseException) -> int:
    """Write the error's sentence and return its exit code; raise it if it is a bug."""
    if isinstance(error, SystemExit):
        return _status(error.code)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return EXIT_BROKEN_PIPE
    sentence = _sentence(error)
    if sentence is None:
        raise error
    _complain(f"Error: {sentence}")
    return EXIT_BAD_INPUT


def _sentence(error: BaseException) -> str | None:
    """Say what an error that is nobody's bug means; ``None`` for any other."""
    if isinstance(error, PrefoldError):
        return _one_line(str(error))
    if isinstance(error, MemoryError):
        return "there is not enough memory; a smaller --cache-memory or model may fit"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"the disk is full{_of(error)}: make room and try again"
    if isinstance(error, OSError) and not isinstance(error, InvariantError):
        return _one_line(f"{error.strerror or error}{_of(error)}")
    return None


def _of(error: OSError) -> str:
    return f" ({error.filename})" if isinstance(error.filename, str) else ""


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "something is wrong, but nothing says what"


def _status(code: object) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


def _complain(line: str) -> None:
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody listens
        return


def _flush(code: int) -> int:
    """Write what is still buffered, while a closed pipe can still be answered."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end; that one must find an open descriptor.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or EXIT_BROKEN_PIPE
    return code


if __name__ == "__main__":
    sys.exit(main())
