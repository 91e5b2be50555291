"""The page's files: open to everybody, the same for everybody, and able to do little."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from prefold.server import page
from prefold.server.page import load_page
from support.planes_rig import Rig, RigSettings, assert_error, client_of, open_rig

UI = Path(page.__file__).with_name("ui")
MODULES = sorted(UI.glob("*.js"))


def run(check: Callable[[Rig], Awaitable[None]], directory: Path) -> None:
    async def main() -> None:
        async with open_rig(RigSettings(directory=directory)) as rig:
            await check(rig)

    asyncio.run(main())


def test_every_file_is_served_with_its_type_and_without_a_token(tmp_path: Path) -> None:
    types = {"": "text/html", ".js": "text/javascript", ".css": "text/css"}

    async def check(rig: Rig) -> None:
        async with client_of(rig.planes.admin) as client:
            for path, file in load_page().items():
                answer = await client.get(path)
                assert (answer.status_code, answer.content) == (200, file.content)
                kind = answer.headers["content-type"].split(";")[0]
                assert kind == types.get(Path(path).suffix, "image/svg+xml")

    run(check, tmp_path)
    served = {"index.html" if path == "/ui" else Path(path).name for path in load_page()}
    assert served == {each.name for each in UI.iterdir()}


def test_the_headers_let_it_do_what_it_needs_and_no_more(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with client_of(rig.planes.admin) as client:
            for path in load_page():
                headers = (await client.get(path)).headers
                policy = dict(
                    part.strip().split(" ", 1)
                    for part in headers["content-security-policy"].split(";")
                )
                assert policy == {
                    "default-src": "'none'",
                    "script-src": "'self'",
                    "style-src": "'self'",
                    "img-src": "'self'",
                    "connect-src": "'self'",
                    "base-uri": "'none'",
                    "form-action": "'none'",
                    "frame-ancestors": "'none'",
                    "require-trusted-types-for": "'script'",
                }
                assert headers["x-content-type-options"] == "nosniff"
                assert headers["referrer-policy"] == "no-referrer"
                assert headers["cross-origin-resource-policy"] == "same-origin"
                assert "access-control-allow-origin" not in headers
                assert "set-cookie" not in headers

    run(check, tmp_path)


def test_what_a_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with client_of(rig.planes.admin) as client:
            first = await client.get("/ui/app.js")
            assert first.headers["cache-control"] == "no-cache"
            etag = first.headers["etag"]
            again = await client.get("/ui/app.js", headers={"if-none-match": etag})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == etag
            other = await client.get("/ui/app.js", headers={"if-none-match": '"old"'})
            assert other.content == first.content
            head = await client.head("/ui/app.js")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(first.content))

    run(check, tmp_path)


@pytest.mark.parametrize(
    "path",
    ["/ui/", "//ui", "/ui/../cache/stats", "/ui/..%2fcache/stats", "/ui/x.js", "/UI"],
)
def test_nothing_else_is_open(path: str, tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with client_of(rig.planes.admin) as client:
            assert_error(await client.get(path), 401)
        # Nor is the page on the other plane.
        async with rig.public() as public:
            assert_error(await public.get("/ui"), 404)

    run(check, tmp_path)


@pytest.mark.parametrize("module", MODULES, ids=lambda it: it.name)
def test_scripts_make_nothing_of_text(module: Path) -> None:
    source = module.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 400
    for unsafe in (
        *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("),
        *("new Function", "localStorage", "document.cookie", "javascript:", "DOMParser"),
    ):
        assert unsafe not in source


@pytest.mark.parametrize("file", sorted(UI.iterdir()), ids=lambda it: it.name)
def test_nothing_is_loaded_from_elsewhere(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", source))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in source
    assert "@import" not in source


def test_the_document_has_no_script_or_style_of_its_own() -> None:
    source = (UI / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>([^<]*)</script>", source) == [""]
    assert "<style" not in source
    assert not re.search(r"\s(on\w+|style)=", source)
    # A field without a name is in no address, whatever becomes of the scripts.
    token = re.search(r'<input id="token"[^>]*>', source)
    assert token is not None
    assert "name=" not in token[0]
    named = set(re.findall(r'(?:src|href)="ui/([^"]+)"', source))
    assert named == {each.name for each in UI.iterdir()} - {"index.html"}
