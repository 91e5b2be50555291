"""``prefold cache explain`` and ``prefold cache misses`` against a plane on a socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from prefold.cli.main import main
from prefold.cli.miss_tables import explanation_lines, miss_rows
from prefold.server.config import ServerConfig
from support.live_server import serving
from support.planes_rig import MODEL, RigSettings, open_rig

HEAD = "the order of the day is on the table by the door and "


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefold.cli.main.signal.signal", lambda *_: None)


def test_a_miss_is_listed_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        settings = RigSettings(
            directory=tmp_path, server=ServerConfig(allow_prompt_text=True)
        )
        async with open_rig(settings) as rig, serving(rig.planes.admin) as port:
            place = [
                *("--url", f"http://127.0.0.1:{port}"),
                *("--token-file", str(tmp_path / "admin_token")),
            ]
            request_id = ""
            async with rig.public() as public:
                for hour in (1, 2):
                    prompt = f"{HEAD}it is 0{hour}:41:07 by the {HEAD}"
                    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
                    answer = await public.post("/v1/completions", json=body)
                    request_id = answer.headers["x-request-id"]

            async def shown(*arguments: str, code: int = 0) -> str:
                done = await asyncio.to_thread(main, ["cache", *arguments, *place])
                out, err = capsys.readouterr()
                assert done == code, err
                return out or err

            told = await shown("explain", request_id)
            assert "The clock's hour differs." in told
            assert "move it behind" in told
            assert "'1:41:07 by" in told
            document = json.loads(await shown("explain", request_id, "--json"))
            assert document["prompts"][0]["reason"]["culprit"]["kind"] == "clock"
            listed = await shown("misses", "--limit", "5")
            assert request_id in listed
            assert "The clock's hour differs." in listed
            assert len(json.loads(await shown("misses", "--json"))["data"]) == 2
            for unknown in ("other", "other/one", "", ".."):
                refused = await shown("explain", unknown, code=2)
                assert refused.count("\n") == 1, unknown
                assert "x-request-id" in refused, unknown

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_an_answer_lacks_is_left_out() -> None:
    assert explanation_lines({"prompts": [{"hit_tokens": 1, "prompt_tokens": 2}]}) == [
        "1 of 2 prompt tokens hit. -"
    ]
    assert not explanation_lines({})
    assert not miss_rows({"data": None})
    [row] = miss_rows({"data": [{"at": True, "reason": {"sentence": "It is so."}}]})
    assert (row["at"], row["why"]) == ("-", "It is so.")
