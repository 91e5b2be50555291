"""Changes of a real tiny model through HTTP: no old hit, and the bits of a fresh server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prefold.engine.assembly import assemble
from prefold.engine.model_settings import ModelSettings
from prefold.server.config import ModelConfig, PrefoldConfig, ServerConfig
from prefold.server.serve import make_planes, open_doors, served_model
from support.planes_rig import client_of
from support.tiny_engines import threads
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
OTHER = "{% for m in messages %}Now it is {{ m['content'] }}, at length.{% endfor %}"
TEXT = "the quick brown fox jumps over the lazy dog, again and again and again"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)
    with threads(1):
        yield


def write_template(path: Path, template: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)


def change(path: Path, what: str) -> None:
    """Change a model's directory."""
    if what == "weights":
        save_model(make_llama(), path, seed=1)
        write_template(path, TEMPLATE)
    elif what == "position_config":
        config = json.loads((path / "config.json").read_text())
        scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
        config["rope_parameters"] = scaled
        (path / "config.json").write_text(json.dumps(config))
    else:
        write_template(path, OTHER)


class Clients:
    def __init__(self, public: httpx2.AsyncClient, admin: httpx2.AsyncClient) -> None:
        self.public = public
        self.admin = admin

    async def ask(self) -> list[Any]:
        """Return what is said to a prompt and in a chat, and what was found of each."""
        common = {"model": "model", "temperature": 0, "max_tokens": 6, "ignore_eos": True}
        messages = [{"role": "user", "content": TEXT}]
        answers = [
            await self.public.post(
                "/v1/completions", json={**common, "prompt": TEXT, "logprobs": 3}
            ),
            await self.public.post(
                "/v1/chat/completions",
                json={**common, "messages": messages, "logprobs": True, "top_logprobs": 3},
            ),
        ]
        assert [each.status_code for each in answers] == [200, 200]
        return [
            {key: each.json()[key] for key in ("choices", "usage", "system_fingerprint")}
            for each in answers
        ]


@asynccontextmanager
async def served(path: Path, directory: Path) -> AsyncIterator[Clients]:
    """Serve a model in this process."""
    config = PrefoldConfig(
        model=ModelConfig(source=str(path)),
        server=ServerConfig(
            key_file=directory / "keys.json", admin_token_file=directory / "token"
        ),
    )
    doors = open_doors(config)
    assembly = assemble(path, ModelSettings(cache_blocks=128))
    model = served_model(assembly, config)
    planes = make_planes(config, doors, assembly.parts, model)
    await planes.engine.start()
    try:
        yield Clients(
            client_of(planes.public), client_of(planes.admin, doors.token.authorization)
        )
    finally:
        await planes.engine.stop(drain_s=0.0)


def hits(answers: list[Any]) -> list[int]:
    return [it["usage"]["prompt_tokens_details"]["cached_tokens"] for it in answers]


@pytest.mark.parametrize(
    ("route", "what"),
    [
        ("/model/swap", "weights"),
        ("/model/swap", "position_config"),
        ("/model/swap", "chat_template"),
        ("/model/reload-template", "chat_template"),
    ],
)
def test_after_a_change_replies_are_those_of_a_fresh_server(
    tmp_path: Path, route: str, what: str
) -> None:
    path = save_model(make_llama(), tmp_path / "model")
    write_template(path, TEMPLATE)

    async def main() -> None:
        async with served(path, tmp_path) as clients:
            await clients.ask()
            assert min(hits(await clients.ask())) > 0
            change(path, what)
            answer = await clients.admin.post(route, json={})
            assert answer.status_code == 200, answer.text
            assert answer.json()["changed"] == [what]
            assert answer.json()["dropped"]["dropped_blocks"] > 0
            cold, warm = await clients.ask(), await clients.ask()
        assert hits(cold) == [0, 0]
        async with served(path, tmp_path) as fresh:
            assert await fresh.ask() == cold
            assert await fresh.ask() == warm

    asyncio.run(asyncio.wait_for(main(), 120))
