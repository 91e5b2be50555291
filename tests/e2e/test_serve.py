"""A signal ends a server at once, whatever it is doing before it serves."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from prefold.server import planes
from prefold.server.config import TenantConfig
from prefold.server.credentials import Authenticator
from prefold.server.keys import KeyFile
from support.processes import run_python

_SERVE_UNTIL = """
import os
import signal
import sys
import traceback
from unittest import mock

from prefold.server import serve
from prefold.server.config import PrefoldConfig, ServerConfig


def terminate(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
    os._exit(3)


async def terminate_on_the_loop(*_, **__):
    terminate()


def run(where):
    for name in ("open_doors", "assemble", "served_model", "make_planes"):
        setattr(serve, name, mock.MagicMock())
    setattr(serve, where, terminate)
    if where == "run_planes":
        serve.run_planes = terminate_on_the_loop
    config = PrefoldConfig(server=ServerConfig(port=0, admin_port=0))
    try:
        code = serve.serve(config, mock.MagicMock(), print)
    except SystemExit as end:
        code = end.code
    # Nothing of it stays: this would end the process without a word.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return code


# What is loaded once serves for all of them.
for where in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            os._exit(run(where))
        except BaseException:
            traceback.print_exc()
            os._exit(4)
    print(where, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_before_it_serves_a_signal_ends_it_with_zero() -> None:
    places = ["open_doors", "assemble", "served_model", "make_planes", "run_planes"]
    ends = run_python(_SERVE_UNTIL, *places).splitlines()
    assert ends == [f"{place} 0" for place in places]


def test_keys_are_read_anew_on_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planes, "CHECK_INTERVAL_S", 0.02)
    path = tmp_path / "keys.json"
    key_file = KeyFile(path)
    authenticator = Authenticator([TenantConfig(name="acme")], key_file)
    readers: list[threading.Thread] = []
    read = KeyFile._read

    def slow_read(own: KeyFile) -> object:
        readers.append(threading.current_thread())
        time.sleep(0.2)
        return read(own)

    async def main() -> None:
        made = KeyFile(path).create("acme")
        monkeypatch.setattr(KeyFile, "_read", slow_read)
        keeping = asyncio.create_task(planes._keep_fresh(authenticator))
        longest, found = 0.0, None
        async with asyncio.timeout(30):
            while found is None:
                began_at = time.monotonic()
                await asyncio.sleep(0)
                found = key_file.find(made.text)
                longest = max(longest, time.monotonic() - began_at)
        keeping.cancel()
        # The loop went on meanwhile.
        assert longest < 0.15
        assert found == made.entry

    asyncio.run(main())
    assert readers
    assert threading.main_thread() not in readers
