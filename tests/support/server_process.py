"""Servers for tests: the program as a user runs it, on free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2

#: For the slowest machine; nothing waits that long on purpose.
LONG_S = 120.0


class ServerProcess:
    """A running server.

    Attributes:
        ready: What it said when it was ready.
    """

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self.process = process
        self.directory = directory
        self.ready: Mapping[str, object] = {}

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.err
        self.ready = json.loads(line)

    @property
    def token(self) -> str:
        return Path(str(self.ready["admin_token_file"])).read_text().strip()

    @property
    def err(self) -> str:
        """What it has written on standard error so far."""
        return (self.directory / "stderr").read_text()

    def public(self, key: str | None = None) -> httpx2.Client:
        return self._client("public_url", key)

    def admin(self) -> httpx2.Client:
        return self._client("admin_url", self.token)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, if it still runs; return exit code and the rest it printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=LONG_S)
        return self.process.returncode, out

    def _client(self, name: str, secret: str | None) -> httpx2.Client:
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        return httpx2.Client(
            base_url=str(self.ready[name]),
            headers=headers,
            timeout=LONG_S,
            trust_env=False,
        )


@contextmanager
def start_server(
    model: Path, directory: Path, *arguments: str, config: str = ""
) -> Iterator[ServerProcess]:
    """Start the program; whatever becomes of the test, it ends."""
    (directory / "prefold.toml").write_text(config)
    command = [sys.executable, "-m", "prefold.cli.main", "serve", str(model)]
    command += ["--config", str(directory / "prefold.toml"), "--json"]
    command += ["--port", "0", "--admin-port", "0", "--threads", "1", *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "XDG_STATE_HOME": str(directory / "state"),
        "PREFOLD_CACHE_DIR": str(directory / "cache"),
        "PREFOLD_MASTER_SECRET_FILE": str(directory / "secret"),
    }
    for name in ("PREFOLD_CONFIG", "PREFOLD_TENANTS", "PREFOLD_KEY_FILE"):
        environment.pop(name, None)
    with (directory / "stderr").open("w") as err:
        process = subprocess.Popen(  # noqa: S603 -- our own program
            command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment
        )
    try:
        yield ServerProcess(process, directory)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LONG_S)
