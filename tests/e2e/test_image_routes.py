"""Images over HTTP: two families end to end, uploads, and everything that is refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest
from PIL import Image

from prefold.engine.assembly import Assembly, Silence, assemble
from prefold.engine.engine import Engine
from prefold.engine.model_settings import ModelSettings
from prefold.server.config import ModelConfig, PrefoldConfig, ServerConfig, TenantConfig
from prefold.server.images_config import ImagesConfig
from prefold.server.keys import KeyFile
from prefold.server.serve import make_planes, open_doors, served_model
from support.planes_rig import client_of
from support.tiny_vision import (
    make_pixels,
    make_png,
    save_idefics3,
    save_qwen2_5_vl,
    to_png,
)

pytestmark = pytest.mark.e2e

TENANTS = ("acme", "other")


@dataclass(frozen=True)
class Site:
    """A server's public plane, and what the engine behind it has."""

    clients: Mapping[str, httpx2.AsyncClient]
    admin: httpx2.AsyncClient
    engine: Engine

    async def ask(
        self, *parts: object, tenant: str = "acme", **fields: object
    ) -> httpx2.Response:
        content = [
            part if isinstance(part, dict) else {"type": "text", "text": part}
            for part in parts
        ]
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 3,
            **fields,
        }
        return await self.clients[tenant].post("/v1/chat/completions", json=body)


def image(file: bytes, *, bare: bool = False, kind: str = "image/png") -> dict[str, object]:
    text = base64.b64encode(file).decode()
    return {
        "type": "image_url",
        "image_url": {"url": text if bare else f"data:{kind};base64,{text}"},
    }


def cached(response: httpx2.Response) -> int:
    assert response.status_code == 200, response.text
    found: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.fixture(scope="module", params=["idefics3", "qwen2_5_vl"])
def assembly(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Assembly:
    directory = tmp_path_factory.mktemp(request.param)
    save = save_idefics3 if request.param == "idefics3" else save_qwen2_5_vl
    save(directory)
    settings = ModelSettings(cache_blocks=256, block_size=4)
    return assemble(directory, settings, Silence())


@asynccontextmanager
async def open_site(
    assembly: Assembly, directory: Path, images: ImagesConfig | None = None
) -> AsyncIterator[Site]:
    key_file = KeyFile(directory / "keys.json")
    keys = {name: key_file.create(name).text for name in TENANTS}
    config = PrefoldConfig(
        model=ModelConfig(source="tiny", served_name="tiny"),
        server=ServerConfig(
            key_file=directory / "keys.json",
            admin_token_file=directory / "token",
            allow_prompt_text=True,
        ),
        images=images or ImagesConfig(),
        tenants=tuple(TenantConfig(name=name) for name in TENANTS),
    )
    doors = open_doors(config)
    model = served_model(assembly, config)
    planes = make_planes(config, doors, assembly.parts, model)
    await planes.engine.start()
    try:
        yield Site(
            clients={n: client_of(planes.public, f"Bearer {k}") for n, k in keys.items()},
            admin=client_of(planes.admin, doors.token.authorization),
            engine=planes.engine.engine,
        )
        planes.engine.engine.check_invariants()
    finally:
        await planes.engine.stop(drain_s=0.0)


def test_images_are_seen_shared_and_kept_apart(assembly: Assembly, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_site(assembly, tmp_path) as site:
            text = "what is on this picture? "
            first = await site.ask(text, image(make_png(1)), " say it")
            prompt = first.json()["usage"]["prompt_tokens"]
            assert cached(first) == 0
            assert cached(await site.ask(text, image(make_png(1)), " say it")) >= prompt - 5
            # The same file as bare base64, or as what it is not, is the same image.
            for same in (
                image(make_png(1), bare=True),
                image(make_png(1), kind="image/gif"),
            ):
                assert cached(await site.ask(text, same, " say it")) >= prompt - 5
            other = cached(await site.ask(text, image(make_png(2)), " say it"))
            assert 0 < other < prompt - 5
            # Nobody else's.
            assert (
                cached(await site.ask(text, image(make_png(1)), " say it", tenant="other"))
                == 0
            )
            streamed = await site.ask(text, image(make_png(1)), " say it", stream=True)
            assert streamed.status_code == 200
            assert "[DONE]" in streamed.text
            both = await site.ask(image(make_png(1)), image(make_png(2)), "?", n=2)
            assert len(both.json()["choices"]) == 2
            text_only = await site.ask("no picture at all")
            assert text_only.status_code == 200
            for path in ("/metrics", "/cache/misses", "/cache/tree", "/cache/runs"):
                assert (await site.admin.get(path)).status_code == 200

    asyncio.run(run())


def test_what_diverges_in_an_image_is_explained(assembly: Assembly, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_site(assembly, tmp_path) as site:
            text = "which of them is this picture? "
            first = await site.ask(text, image(make_png(1)), " say it")
            second = await site.ask(text, image(make_png(2)), " say it")
            request_id = second.headers["x-request-id"]
            explained = await site.admin.get(f"/cache/explain/{request_id}")
            assert explained.status_code == 200, explained.text
            [prompt] = explained.json()["prompts"]
            assert prompt["reason"]["kind"] == "diverged"
            assert prompt["reason"]["culprit"] is None
            earlier = prompt["earlier"]
            assert earlier["request_id"] == first.headers["x-request-id"]
            # Tokens are the same up to the image, and then nothing is.
            assert earlier["common_tokens"] == prompt["reason"]["at_token"] > 0
            shown = earlier["text"]
            assert "picture?" in shown["before"]
            for side in ("earlier", "later"):
                assert shown[side].startswith("[image]")
                assert "say it" in shown[side]

    asyncio.run(run())


def test_an_uploaded_image_is_the_tenants_own(assembly: Assembly, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_site(assembly, tmp_path, ImagesConfig(max_uploads=2)) as site:
            acme = site.clients["acme"]
            files = {"file": ("cat.png", make_png(1), "image/png")}
            sent = await acme.post("/v1/files", files=files, data={"purpose": "vision"})
            assert sent.status_code == 200, sent.text
            reply = sent.json()
            assert reply["bytes"] == len(make_png(1))
            part = {"type": "file", "file": {"file_id": reply["id"]}}
            first = await site.ask("look ", part, " now")
            assert first.status_code == 200, first.text
            again = await site.ask("look ", image(make_png(1)), " now")
            assert cached(again) >= first.json()["usage"]["prompt_tokens"] - 5
            foreign = await site.ask("look ", part, " now", tenant="other")
            assert foreign.status_code == 404
            await acme.post("/v1/files", files=files, data={"purpose": "vision"})
            full = await acme.post("/v1/files", files=files, data={"purpose": "vision"})
            assert full.status_code == 429
            assert (await acme.delete(f"/v1/files/{reply['id']}")).json()["deleted"]
            assert (await site.ask("look ", part, " now")).status_code == 404
            wrong = await acme.post("/v1/files", json={"file": "x"})
            assert wrong.status_code == 415
            cut = await acme.post(
                "/v1/files",
                content=b"--x\r\n",
                headers={"content-type": "multipart/form-data; boundary=x"},
            )
            assert cut.status_code == 400

    asyncio.run(run())


def animated() -> bytes:
    frames = [Image.fromarray(make_pixels(seed)) for seed in (1, 2)]
    return to_png(frames[0], save_all=True, append_images=frames[1:])


def bomb() -> bytes:
    """A file of some kilobytes that says it has 100 million pixels."""
    return to_png(Image.new("1", (10_000, 10_000)))


def test_what_is_no_image_is_refused_with_a_constant_sentence(
    assembly: Assembly, tmp_path: Path
) -> None:
    whole = make_png(1, 64, 64)
    cases = {
        "truncated": (image(whole[: len(whole) // 2]), "cannot be read"),
        "empty": (image(b""), "cannot be read"),
        "text": (image(b"not an image"), "cannot be read"),
        "svg": (image(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "cannot be read"),
        "damaged": (image(whole[:60] + b"\xff" * 40 + whole[100:]), "cannot be read"),
        "animated": (image(animated()), "cannot be read"),
        "bomb": (image(bomb()), "million pixels"),
        "no base64": ({"type": "image_url", "image_url": {"url": "data:,x"}}, "base64"),
        "neither": ({"type": "image_url", "image_url": {"url": "??"}}, "neither"),
        "remote": (
            {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}},
            "images by URL are off",
        ),
        "audio": ({"type": "input_audio", "input_audio": {}}, "'image_url'"),
    }

    async def run() -> None:
        async with open_site(assembly, tmp_path) as site:
            for name, (part, message) in cases.items():
                response = await site.ask("see ", part, " end")
                assert response.status_code == 400, (name, response.text)
                error = response.json()["error"]
                assert message in error["message"], (name, error)
                assert "0x" not in error["message"]
            many = await site.ask(*[image(make_png(1))] * 9)
            assert (many.status_code, "9" in many.text) == (400, True)
            placeholder = assembly.mixer.images.placeholder
            injected = await site.ask(f"a {placeholder} b ", image(make_png(1)))
            assert "placeholder" in injected.json()["error"]["message"]
            large = {"type": "image_url", "image_url": {"url": "A" * (17 * 2**20)}}
            assert (await site.ask(large)).status_code == 413
            # And the engine serves on.
            assert (await site.ask("see ", image(make_png(1)), " end")).status_code == 200

    asyncio.run(run())


def test_a_server_whose_model_takes_no_images_says_so(
    assembly: Assembly, tmp_path: Path
) -> None:
    async def run() -> None:
        mixer = type(assembly.mixer)
        from prefold.engine.prompt_mixer import NoImages  # noqa: PLC0415

        blind = mixer(
            NoImages("images need Pillow"),
            hidden_size=48,
            dtype=assembly.loaded.dtype,
            check_embeddings=lambda: None,
        )
        parts = replace(assembly.parts, mixer=blind)
        changed = replace(assembly, mixer=blind, parts=parts)
        async with open_site(changed, tmp_path) as site:
            response = await site.ask("see ", image(make_png(1)))
            assert response.status_code == 400
            assert "Pillow" in response.json()["error"]["message"]

    asyncio.run(run())
