"""Another model under a running server: what clients and operators see of it."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from transformers import PreTrainedConfig

from prefold.cache import ByFingerprint
from prefold.engine.assembly import assemble
from prefold.engine.engine import Engine
from prefold.engine.model_runner import ModelRunner
from prefold.engine.model_settings import ModelSettings
from prefold.engine.prepared_model import PreparedModel, prepare_template
from prefold.engine.request_stream import RequestStream
from prefold.engine.swapping import SwapReceipt
from prefold.server.config import ModelConfig, PrefoldConfig, ServerConfig, TenantConfig
from prefold.server.planes import Planes
from prefold.server.serve import make_planes, open_doors, served_model
from support.planes_rig import MODEL, Rig, RigSettings, assert_error, client_of, open_rig
from support.tiny_engines import threads
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e


CHAT = "/v1/chat/completions"
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
OTHER = "{% for m in messages %}Now it is {{ m['content'] }}, at length.{% endfor %}"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)
    with threads(1):
        yield


def write_model(
    path: Path, *, seed: int = 0, template: str = TEMPLATE, **changes: object
) -> Path:
    config: PreTrainedConfig = make_llama(**changes)
    save_model(config, path, seed=seed)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return path


class Site:
    """Both planes over a tiny model in ``path``."""

    def __init__(self, planes: Planes, authorization: str, path: Path) -> None:
        self.planes = planes
        self.path = path
        self.public = client_of(planes.public)
        self.admin = client_of(planes.admin, authorization)

    async def swap(self, **body: object) -> httpx2.Response:
        return await self.admin.post("/model/swap", json=body)

    async def complete(self, prompt: str, **fields: object) -> Any:
        body = {"model": "model", "prompt": prompt, "temperature": 0, "max_tokens": 8}
        answer = await self.public.post("/v1/completions", json={**body, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def chat(self, text: str) -> Any:
        messages = [{"role": "user", "content": text}]
        body = {"model": "model", "messages": messages, "temperature": 0, "max_tokens": 4}
        answer = await self.public.post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def model(self) -> Any:
        [found] = (await self.public.get("/v1/models")).json()["data"]
        return found


@asynccontextmanager
async def open_site(directory: Path) -> AsyncIterator[Site]:
    path = write_model(directory / "model")
    config = PrefoldConfig(
        model=ModelConfig(source=str(path)),
        server=ServerConfig(
            key_file=directory / "keys.json", admin_token_file=directory / "admin_token"
        ),
    )
    doors = open_doors(config)
    assembly = assemble(path, ModelSettings(cache_blocks=128))
    model = served_model(assembly, config)
    planes = make_planes(config, doors, assembly.parts, model)
    del assembly
    await planes.engine.start()
    try:
        yield Site(planes, doors.token.authorization, path)
    finally:
        await planes.engine.stop(drain_s=0.0)


def run(test: Callable[[Site], Awaitable[None]], directory: Path) -> None:
    async def work() -> None:
        async with open_site(directory) as site:
            await test(site)
            await site.planes.engine.call(lambda it: it.check_invariants())

    asyncio.run(asyncio.wait_for(work(), 120))


LONG = "the quick brown fox jumps over the lazy dog, again and again and again"


def test_everything_follows_a_swap(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        before, model = await site.complete(LONG), await site.model()
        assert (await site.complete(LONG))["usage"]["prompt_tokens_details"] != {
            "cached_tokens": 0
        }
        write_model(site.path, seed=1, max_position_embeddings=512)
        answer = await site.swap()
        assert answer.status_code == 200, answer.text
        receipt = answer.json()
        assert receipt["model"] == "model"
        assert {"weights"} <= set(receipt["changed"])
        assert receipt["dropped"]["dropped_blocks"] > 0
        assert receipt["dropped"]["leased_blocks"] == 0
        assert (receipt["num_ended"], receipt["num_recomputed"]) == (0, 0)
        after = await site.complete(LONG)
        assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert after["choices"] != before["choices"]
        assert after["system_fingerprint"] == receipt["fingerprint"]
        assert after["system_fingerprint"] != before["system_fingerprint"]
        assert model["max_model_len"] == 2048
        assert (await site.model())["max_model_len"] == 512
        assert (await site.model())["id"] == model["id"]
        stats = (await site.admin.get("/cache/stats")).json()
        assert stats["fingerprint"] == receipt["fingerprint"]
        tokens = await site.public.post("/tokenize", json={"prompt": LONG})
        assert tokens.json()["max_model_len"] == 512
        too_long = {"model": "model", "prompt": "x" * 600, "max_tokens": 1}
        refused = await site.public.post("/v1/completions", json=too_long)
        assert "512" in assert_error(refused, 400)

    run(test, tmp_path)


def test_the_old_model_is_let_go(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        await site.complete(LONG)
        runner = site.planes.engine.engine.parts.runner
        assert isinstance(runner, ModelRunner)
        old = weakref.ref(runner._loaded.model)
        del runner
        write_model(site.path, seed=1)
        assert (await site.swap()).status_code == 200
        await site.complete(LONG)
        gc.collect()
        assert old() is None

    run(test, tmp_path)


def test_a_template_is_read_again(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        before = await site.chat(LONG)
        write_model(site.path, template=OTHER)
        answer = await site.admin.post("/model/reload-template", json={})
        assert answer.status_code == 200, answer.text
        assert answer.json()["changed"] == ["chat_template"]
        after = await site.chat(LONG)
        assert after["usage"]["prompt_tokens"] > before["usage"]["prompt_tokens"]
        assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert after["system_fingerprint"] == answer.json()["fingerprint"]
        messages = {"messages": [{"role": "user", "content": LONG}]}
        tokens = (await site.public.post("/tokenize", json=messages)).json()
        assert tokens["count"] == after["usage"]["prompt_tokens"]
        found = (await site.admin.post("/cache/lookup", json=messages)).json()
        assert found["prompts"][0]["prompt_tokens"] == tokens["count"]
        assert found["prompts"][0]["hit_tokens"] > 0
        again = await site.admin.post("/model/reload-template", json={})
        assert (again.json()["changed"], again.json()["dropped"]) == ([], None)

    run(test, tmp_path)


def test_what_cannot_be_swapped_is_said_and_changes_nothing(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        before = await site.complete(LONG)
        other = write_model(site.path.parent / "other", num_hidden_layers=3)
        refused = await site.swap(source=str(other))
        assert "3 layers" in assert_error(refused, 409)
        assert refused.json()["error"]["code"] == "incompatible_model"
        missing = await site.swap(source=str(site.path / "nowhere"))
        assert "not a directory" in assert_error(missing, 400)
        (site.path / "tokenizer.json").write_text("{}")
        assert_error(await site.admin.post("/model/reload-template", json={}), 400)
        same = await site.complete(LONG)
        assert same["choices"] == before["choices"]
        assert same["system_fingerprint"] == before["system_fingerprint"]
        assert same["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("swap", {"source": ""}),
        ("swap", {"source": 5}),
        ("swap", {"source": "x" * 1025}),
        ("swap", {"drain": 1}),
        ("swap", {"drain": "true"}),
        ("swap", {"deadline_s": -1}),
        ("swap", {"deadline_s": "5"}),
        ("swap", {"deadline_s": True}),
        ("swap", {"deadline_s": 1e9}),
        ("swap", {"path": "model"}),
        ("swap", []),
        ("reload-template", {"template": "text"}),
    ],
)
def test_a_wrong_body_is_refused(tmp_path: Path, path: str, body: object) -> None:
    async def test() -> None:
        async with open_rig(RigSettings(directory=tmp_path)) as rig:
            parts = rig.engine.parts
            async with rig.admin() as admin:
                assert_error(await admin.post(f"/model/{path}", json=body), 400)
            assert rig.engine.parts is parts

    asyncio.run(test())


def test_only_operators_may_and_one_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_rig(RigSettings(directory=tmp_path)) as rig:
            for path in ("/model/swap", "/model/reload-template"):
                async with client_of(rig.planes.admin) as stranger:
                    assert_error(await stranger.post(path, json={}), 401)
                async with rig.public() as public:
                    assert_error(await public.post(path, json={}), 404)
            async with rig.admin() as admin:
                assert "next version" in assert_error(
                    await admin.post("/model/swap", json={}), 400
                )
                rig.planes.engine.swaps._is_loading = True
                for path in ("/model/swap", "/model/reload-template"):
                    refused = await admin.post(path, json={})
                    assert "already" in assert_error(refused, 409)
                    assert refused.json()["error"]["code"] == "swap_under_way"

    asyncio.run(test())


# -- between reading and submitting ----------------------------------------------------


def change_before_submitting(rig: Rig, num_times: int) -> list[int]:
    """Let the model change so many times just before a call comes to the engine."""
    engine = rig.planes.engine
    submit = engine.submit_together
    left = [num_times]

    async def change_and_submit(*args: Any, **more: Any) -> list[RequestStream]:
        if left[0]:
            left[0] -= 1
            await engine.reload_template(OTHER + "!" * left[0])
        return await submit(*args, **more)

    engine.submit_together = change_and_submit  # type: ignore[method-assign]
    return left


ACME = TenantConfig(name="acme", tokens_per_minute=100_000)
CHAT_BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": LONG}],
    "max_tokens": 3,
    "temperature": 0,
}


def test_a_prompt_that_was_read_before_a_change_is_read_again(tmp_path: Path) -> None:
    async def test() -> None:
        settings = RigSettings(directory=tmp_path, tenants=(ACME,))
        async with open_rig(settings) as rig, rig.public("acme") as client:
            plain = (await client.post(CHAT, json=CHAT_BODY)).json()
            change_before_submitting(rig, 1)
            changed = await client.post(CHAT, json=CHAT_BODY)
            assert changed.status_code == 200
            reply = changed.json()
            assert reply["system_fingerprint"] != plain["system_fingerprint"]
            again = (await client.post(CHAT, json=CHAT_BODY)).json()
            assert reply["usage"]["prompt_tokens"] == again["usage"]["prompt_tokens"]
            assert reply["choices"] == again["choices"]
            assert reply["system_fingerprint"] == again["system_fingerprint"]
            body = {"tenant": "acme", "messages": CHAT_BODY["messages"]}
            change_before_submitting(rig, 2)
            async with rig.admin() as admin:
                warmed = await admin.post("/cache/warm", json=body)
            assert warmed.status_code == 200, warmed.text

    asyncio.run(test())


def test_token_ids_that_came_before_another_tokenizer_are_not_computed(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with open_rig(RigSettings(directory=tmp_path)) as rig, rig.public() as client:
            engine = rig.planes.engine
            submit = engine.submit_together

            def change(core: Engine, tokenizer: bytes) -> None:
                fingerprint = replace(core.parts.fingerprint, tokenizer=tokenizer)
                parts = replace(core.parts, fingerprint=fingerprint)
                core.swap(PreparedModel(parts=parts, limits=core.config.limits))

            async def change_and_submit(*args: Any, **more: Any) -> list[RequestStream]:
                await engine.call(lambda core: change(core, b"other"))
                return await submit(*args, **more)

            async def ask(prompt: object) -> int:
                body = {"model": MODEL, "max_tokens": 2, "prompt": prompt}
                return (await client.post("/v1/completions", json=body)).status_code

            for prompt, status in ((LONG, 200), ([5, 6, 7], 503), ([[5, 6], [7]], 503)):
                await engine.call(lambda core: change(core, b"first"))
                engine.submit_together = change_and_submit  # type: ignore[method-assign]
                assert await ask(prompt) == status
                engine.submit_together = submit  # type: ignore[method-assign]
                assert await ask(prompt) == 200

    asyncio.run(test())


def test_a_model_that_goes_on_changing_is_a_503(tmp_path: Path) -> None:
    async def test() -> None:
        settings = RigSettings(directory=tmp_path, tenants=(ACME,))
        async with open_rig(settings) as rig, rig.public("acme") as client:
            left = change_before_submitting(rig, 9)
            for stream in (False, True):
                answer = await client.post(CHAT, json={**CHAT_BODY, "stream": stream})
                assert_error(answer, 503)
                assert answer.json()["error"]["code"] == "model_replaced"
            assert left == [3]
            body = {"tenant": "acme", "prompt": LONG}
            async with rig.admin() as admin:
                assert_error(await admin.post("/cache/warm", json=body), 503)
            assert await rig.planes.engine.call(lambda it: it.num_open) == 0

    asyncio.run(test())


# -- requests that a swap ends ---------------------------------------------------------


def replace_weights(engine: Engine) -> SwapReceipt:
    fingerprint = replace(engine.parts.fingerprint, weights=b"other")
    parts = replace(engine.parts, fingerprint=fingerprint)
    return engine.swap(PreparedModel(parts=parts, limits=engine.config.limits), drain=False)


def test_a_request_that_a_swap_ends_is_told_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_rig(RigSettings(directory=tmp_path)) as rig, rig.public() as client:
            body = {**CHAT_BODY, "max_tokens": 3900, "ignore_eos": True}

            async def ask(stream: bool) -> httpx2.Response:  # noqa: FBT001
                return await client.post(CHAT, json={**body, "stream": stream})

            asking = [asyncio.ensure_future(ask(stream)) for stream in (False, True)]
            engine = rig.planes.engine
            for _ in range(10_000):
                if await engine.call(lambda it: it.counters.num_sampled_tokens) >= 20:
                    break
                await asyncio.sleep(0.001)
            receipt = await engine.call(replace_weights)
            assert receipt.num_ended == 2
            whole, streamed = await asyncio.gather(*asking)
            assert "the model was replaced" in assert_error(whole, 503)
            last = streamed.text.strip().split("data: ")[-1]
            assert json.loads(last)["error"]["code"] == "model_replaced"
            assert (await rig.samples())['prefold_requests_total{outcome="aborted"}'] == 2
            await engine.call(lambda it: it.check_invariants())

    asyncio.run(asyncio.wait_for(test(), 60))


def test_changing_the_template_keeps_nothing_of_the_old_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_rig(RigSettings(directory=tmp_path)) as rig, rig.public() as client:
            await client.post(CHAT, json=CHAT_BODY)
            old = rig.engine.parts.fingerprint
            prepared = prepare_template(rig.engine.parts, rig.engine.config.limits, OTHER)
            receipt = await rig.planes.engine.call(lambda it: it.swap(prepared))
            assert receipt.fingerprint != old
            left = await rig.planes.engine.call(
                lambda it: it.cache.invalidate(ByFingerprint(fingerprint=old))
            )
            assert left.num_blocks == 0

    asyncio.run(test())
