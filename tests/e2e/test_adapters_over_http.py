"""Adapters of a real tiny model through HTTP: choosing, reloading, unloading, refusing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prefold.engine.adapter_weights import WEIGHTS_NAME
from prefold.engine.assembly import assemble
from prefold.engine.engine import Engine
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.model_settings import ModelSettings
from prefold.server.config import ModelConfig, PrefoldConfig, ServerConfig, TenantConfig
from prefold.server.keys import KeyFile
from prefold.server.planes import Planes
from prefold.server.serve import make_planes, open_doors, served_model
from support.planes_rig import assert_error, client_of
from support.tiny_adapters import save_adapter
from support.tiny_engines import threads
from support.tiny_models import make_llama, save_model

pytestmark = pytest.mark.e2e

TEXT = "the quick brown fox jumps over the lazy dog, again and again and again"
#: Of the text above, what a second request hits: all but what the last block needs.
COMMON = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": 2}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)
    with threads(1):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_llama(), tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def loaded(model: Path) -> LoadedModel:
    return load_model(model, LoadOptions())


@dataclass
class Clients:
    planes: Planes
    public: Mapping[str, httpx2.AsyncClient]
    admin: httpx2.AsyncClient

    @property
    def engine(self) -> Engine:
        return self.planes.engine.engine

    async def complete(
        self, name: str, tenant: str = "", *, prompt: str = TEXT, **changes: object
    ) -> httpx2.Response:
        body = {**COMMON, "model": name, "prompt": prompt, **changes}
        return await self.public[tenant].post("/v1/completions", json=body)

    async def ask(self, name: str, tenant: str = "") -> tuple[Any, int]:
        """Return the choices of a reply, and how much of the prompt was cached."""
        answer = await self.complete(name, tenant)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["model"] == name
        cached = document["usage"]["prompt_tokens_details"]["cached_tokens"]
        return (document["choices"], document["system_fingerprint"]), cached

    async def load(self, name: str, path: Path, **changes: object) -> httpx2.Response:
        body = {"name": name, "path": str(path), **changes}
        return await self.admin.post("/adapters", json=body)

    async def listed(self) -> list[dict[str, Any]]:
        answer = await self.admin.get("/adapters")
        assert answer.status_code == 200
        rows: list[dict[str, Any]] = answer.json()["adapters"]
        return rows


@asynccontextmanager
async def served(
    model: Path,
    directory: Path,
    adapters: Mapping[str, Path] | None = None,
    tenants: tuple[TenantConfig, ...] = (),
) -> AsyncIterator[Clients]:
    """Serve a model in this process."""
    key_file = KeyFile(directory / "keys.json")
    keys = {tenant.name: key_file.create(tenant.name).text for tenant in tenants}
    config = PrefoldConfig(
        model=ModelConfig(source=str(model)),
        server=ServerConfig(
            key_file=directory / "keys.json", admin_token_file=directory / "token"
        ),
        adapters=adapters or {},
        tenants=tenants,
    )
    doors = open_doors(config)
    assembly = assemble(model, ModelSettings(cache_blocks=256))
    planes = make_planes(config, doors, assembly.parts, served_model(assembly, config))
    await planes.engine.start()
    public = {name: client_of(planes.public, f"Bearer {key}") for name, key in keys.items()}
    try:
        yield Clients(
            planes=planes,
            public=public or {"": client_of(planes.public)},
            admin=client_of(planes.admin, doors.token.authorization),
        )
    finally:
        await planes.engine.call(Engine.check_invariants)
        await planes.engine.stop(drain_s=0.0)


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main(), 120))


def test_two_adapters_and_the_model_each_reply_and_cache_for_themselves(
    model: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    one, two = (save_adapter(loaded, tmp_path / f"a{i}", seed=i) for i in (1, 2))

    async def main() -> None:
        async with served(model, tmp_path, {"one": one}) as clients:
            assert (await clients.load("acme/two", two)).status_code == 200
            names = ("model", "one", "acme/two")
            cold = [await clients.ask(name) for name in names]
            warm = [await clients.ask(name) for name in names]
            assert [hit for _, hit in cold] == [0, 0, 0]
            assert min(hit for _, hit in warm) >= 48
            assert [reply for reply, _ in cold] == [reply for reply, _ in warm]
            texts = {json.dumps(choices) for (choices, _), _ in cold}
            prints = {fingerprint for (_, fingerprint), _ in cold}
            assert (len(texts), len(prints)) == (3, 3)
            together = await asyncio.gather(*(clients.ask(name) for name in names * 3))
            assert [reply for reply, _ in together] == [reply for reply, _ in cold] * 3
            models = (await clients.public[""].get("/v1/models")).json()["data"]
            assert [(each["id"], each["parent"]) for each in models] == [
                ("model", None),
                ("one", "model"),
                ("acme/two", "model"),
            ]
            found = await clients.public[""].get("/v1/models/acme/two")
            assert found.json()["root"] == "model"

    run(main)


def test_a_reload_never_hits_other_content_and_hits_the_same(
    model: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    path = save_adapter(loaded, tmp_path / "a", seed=1)

    async def main() -> None:
        async with served(model, tmp_path, {"one": path}) as clients:
            before, _ = await clients.ask("one")
            [digest] = [row["digest"] for row in await clients.listed()]
            save_adapter(loaded, path, seed=2)
            assert_error(await clients.load("one", path), 409)
            assert (await clients.load("one", path, reload=True)).status_code == 200
            after, hit = await clients.ask("one")
            assert hit == 0
            assert after != before
            save_adapter(loaded, path, seed=1)
            again = await clients.load("one", path, reload=True)
            assert again.json()["digest"] == digest
            assert await clients.ask("one") == (before, 48 + 16)
            # By its digest, its KV alone is dropped.
            chosen = {"field": "adapter", "value": digest}
            dropped = await clients.admin.post("/cache/invalidate", json=chosen)
            assert dropped.json()["dropped_blocks"] > 0
            assert (await clients.ask("one"))[1] == 0
            save_adapter(loaded, path, seed=2)
            assert (await clients.load("one", path, reload=True)).status_code == 200
            assert (await clients.ask("one"))[1] > 0

    run(main)


def test_unloading_lets_a_stream_finish_and_takes_no_more(
    model: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    path = save_adapter(loaded, tmp_path / "a", seed=1)

    async def main() -> None:
        async with served(model, tmp_path, {"one": path}) as clients:
            wanted = (await clients.complete("one", max_tokens=400)).json()
            await clients.admin.post("/cache/reset", json={})
            streaming = asyncio.create_task(
                clients.complete("one", max_tokens=400, stream=True)
            )
            while not any(row["open_requests"] for row in await clients.listed()):
                pass
            gone = await clients.admin.delete("/adapters/one")
            assert gone.status_code == 200, gone.text
            assert gone.json()["draining_requests"] == 1
            [left] = await clients.listed()
            assert (left["is_leaving"], left["open_requests"]) == (True, 1)
            message = assert_error(await clients.complete("one"), 404)
            assert message == "there is no such model; this server serves 'model'"
            lines = (await streaming).text.split("\n\n")
            pieces = [json.loads(each[6:]) for each in lines if each.startswith("data: {")]
            text = "".join(each["choices"][0]["text"] for each in pieces)
            assert text == wanted["choices"][0]["text"]
            assert await clients.listed() == []
            assert_error(await clients.admin.delete("/adapters/one"), 404)
            # What it left is still there for the same content under any name.
            assert (await clients.load("other", path)).status_code == 200
            assert (await clients.ask("other"))[1] > 0

    run(main)


def test_a_tenant_cannot_tell_an_adapter_of_others_from_none(
    model: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    one, two = (save_adapter(loaded, tmp_path / f"a{i}", seed=i) for i in (1, 2))
    tenants = (TenantConfig(name="acme", adapters=("one",)), TenantConfig(name="zeta"))

    async def main() -> None:
        async with served(model, tmp_path, {"one": one, "two": two}, tenants) as clients:
            assert (await clients.complete("one", "acme")).status_code == 200
            assert (await clients.complete("two", "zeta")).status_code == 200
            refused = await clients.complete("two", "acme")
            unknown = await clients.complete("three", "acme")
            assert refused.status_code == 404
            assert refused.json() == unknown.json()
            for path in ("/v1/models/two", "/v1/models/three"):
                answer = await clients.public["acme"].get(path)
                assert answer.json() == unknown.json()
            body = {"prompt": TEXT, "model": "two"}
            assert_error(await clients.public["acme"].post("/tokenize", json=body), 404)
            ids = [
                [each["id"] for each in (await c.get("/v1/models")).json()["data"]]
                for c in clients.public.values()
            ]
            assert ids == [["model", "one"], ["model", "one", "two"]]

    run(main)


def test_what_cannot_be_loaded_is_refused_with_a_sentence_and_changes_nothing(
    model: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    good = save_adapter(loaded, tmp_path / "good", seed=1)
    pickled = save_adapter(loaded, tmp_path / "pickled", seed=1)
    (pickled / WEIGHTS_NAME).rename(pickled / "adapter_model.bin")
    short = save_adapter(loaded, tmp_path / "short", seed=1)
    data = (short / WEIGHTS_NAME).read_bytes()
    (short / WEIGHTS_NAME).write_bytes(data[: len(data) // 2])

    async def main() -> None:
        async with served(model, tmp_path, {"one": good}) as clients:
            before = await clients.listed()
            for path, word in (
                (pickled, "pickled"),
                (short, "cut off"),
                (tmp_path / "nothing", "no directory"),
                (tmp_path, "adapter_config.json"),
            ):
                message = assert_error(await clients.load("bad", path), 400)
                assert word in message
            assert_error(await clients.load("one", good), 409)
            assert_error(await clients.load("model", good), 409)
            assert_error(await clients.load("new", good, reload=True), 404)
            assert_error(await clients.load("../up", good), 400)
            assert await clients.listed() == before
            answer = await client_of(clients.planes.admin).get("/adapters")
            assert_error(answer, 401)
            assert (await clients.complete("one")).status_code == 200

    run(main)


def test_operators_warm_and_look_up_for_an_adapter(
    model: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    path = save_adapter(loaded, tmp_path / "a", seed=1)

    async def main() -> None:
        async with served(model, tmp_path, {"one": path}) as clients:
            body = {"prompt": TEXT, "adapter": "one"}
            warmed = await clients.admin.post("/cache/warm", json=body)
            [row] = warmed.json()["prompts"]
            looked = await clients.admin.post("/cache/lookup", json=body)
            assert looked.json()["prompts"][0]["hit_tokens"] == row["hit_tokens"] > 0
            assert (await clients.ask("one"))[1] == row["hit_tokens"]
            assert (await clients.ask("model"))[1] == 0
            runs = (await clients.admin.get("/cache/runs")).json()["data"]
            answers = [
                await clients.admin.post(
                    f"/cache/runs/{run['id']}/approve", json={"label": str(index)}
                )
                for index, run in enumerate(runs)
            ]
            # The model's own can be shared, an adapter's not.
            assert {answer.status_code for answer in answers} == {200, 409}
            lost = {"prompt": TEXT, "adapter": "two"}
            assert_error(await clients.admin.post("/cache/warm", json=lost), 404)

    run(main)
