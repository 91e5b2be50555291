"""Approvals and invalidation on the admin plane."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefold.errors import ModelChangedError
from prefold.server import sharing
from prefold.server.config import ServerConfig, TenantConfig
from prefold.server.grants import Grants
from prefold.server.prompt_reader import PromptReader
from prefold.server.served_model import ServedModel
from prefold.server.sharing_protocol import ApproveRequest, InvalidateRequest
from support.planes_rig import Rig, assert_error
from support.sharing import PROMPT, RULES, check_idle, done, hit, post, run
from support.tiny_models import make_tokenizer

pytestmark = pytest.mark.e2e


ACME, BLUE = TenantConfig(name="acme"), TenantConfig(name="blue", domain="blue/search")


# -- approvals -----------------------------------------------------------------------------


def test_an_approval_says_what_is_shared_with_whom(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        body = {"domain": "blue", "label": "rules", "pinned": True, "ttl_s": 60}
        made = await done(rig, "/cache/approve", prompt=PROMPT, **body)
        assert 0 < made.pop("expires_in_s") <= 60
        approval_id = made.pop("id")
        assert made == {
            "label": "rules",
            "domain": "blue",
            "tokens": 48,
            "blocks": 3,
            "pinned": True,
        }
        assert [await hit(rig, name, PROMPT) for name in ("acme", "blue")] == [0, 48]
        async with rig.admin() as admin:
            [listed] = (await admin.get("/cache/approvals")).json()["approvals"]
            assert (listed["id"], listed["label"]) == (approval_id, "rules")
            stats = (await admin.get("/cache/stats")).json()
            assert (stats["num_approvals"], stats["num_pinned_blocks"]) == (1, 3)
            [tree] = (await admin.get("/cache/tree")).json()["runs"]
        assert (tree["approvals"], tree["audience"]) == (["rules"], "approved")
        samples = await rig.samples()
        assert samples["prefold_approvals"] == 1
        assert samples["prefold_pinned_blocks"] == 3

    run(check, tmp_path, ACME, BLUE)


def test_an_approved_conversation_is_found_by_all_that_begin_with_it(
    tmp_path: Path,
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}

    async def check(rig: Rig) -> None:
        rules = [
            {"role": "system", "content": "the rules of this house are many and plain"},
            {"role": "user", "content": "and this is an example"},
        ]
        made = await done(
            rig, "/cache/approve", messages=rules, domain="acme", label="house"
        )
        assert made["tokens"] == made["blocks"] * 16 > 32
        rest = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "so"}]
        async with rig.public("acme") as client:
            body = {"model": "chain", "messages": [*rules, *rest], "max_tokens": 1}
            answer = (await client.post("/v1/chat/completions", json=body)).json()
        found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert found == made["tokens"]
        body = {"messages": rules, "tools": [tool], "domain": "acme", "label": "tools"}
        message = assert_error(await post(rig, "/cache/approve", body), 400)
        assert "tools" in message

    run(check, tmp_path, ACME)


def test_a_list_of_approvals_is_of_a_domain_and_those_below(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        for domain in ("public", "blue", "blue/search", "blued"):
            await done(rig, "/cache/approve", prompt=RULES, domain=domain, label="rules")
        async with rig.admin() as admin:
            for query, wanted in (
                ("", ["public", "blue", "blue/search", "blued"]),
                ("?domain=public", ["public", "blue", "blue/search", "blued"]),
                ("?domain=blue", ["blue", "blue/search"]),
                ("?domain=blue/search/x", []),
            ):
                listed = (await admin.get(f"/cache/approvals{query}")).json()
                assert [it["domain"] for it in listed["approvals"]] == wanted
            for path in ("a//b", "", "..", "A", "a/"):
                response = await admin.get("/cache/approvals", params={"domain": path})
                assert "domain must be a path" in assert_error(response, 400)

    run(check, tmp_path, ACME)


def test_a_withdrawn_or_expired_approval_spares_nobody_anything(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        made = await done(rig, "/cache/approve", prompt=RULES, domain="acme", label="a")
        assert await hit(rig, "acme", PROMPT) == 48
        receipt = await done(rig, "/cache/withdraw", id=made["id"])
        assert receipt == {
            "dropped_blocks": 3,
            "leased_blocks": 0,
            "is_upper_bound": False,
            "ended_approvals": 1,
            "num_invalidations": 1,
        }
        assert await hit(rig, "acme", PROMPT) == 0
        message = assert_error(await post(rig, "/cache/withdraw", {"id": made["id"]}), 404)
        assert "GET /cache/approvals" in message
        brief = {"prompt": RULES, "domain": "acme", "label": "b", "pinned": True}
        await done(rig, "/cache/approve", **brief, ttl_s=0.2)
        await asyncio.sleep(0.25)
        # Asked first: a request would make the cache notice.
        async with rig.admin() as admin:
            stats = (await admin.get("/cache/stats")).json()
            assert (await admin.get("/cache/approvals")).json() == {"approvals": []}
        assert await hit(rig, "acme", PROMPT) == 0
        assert (stats["num_approvals"], stats["num_pinned_blocks"]) == (0, 0)

    run(check, tmp_path, ACME)


def test_approving_less_than_a_block_says_how_much_is_needed(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        for prompt in ([1], list(range(15))):
            body = {"prompt": prompt, "domain": "acme", "label": "a"}
            message = assert_error(await post(rig, "/cache/approve", body), 400)
            assert "at least one block, 16 tokens" in message
        assert rig.engine.num_open == 0

    run(check, tmp_path, ACME)


def test_approvals_in_conflict_say_what_to_do(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        first = {"prompt": RULES, "domain": "acme", "label": "a"}
        made = await done(rig, "/cache/approve", **first)
        again = await done(rig, "/cache/approve", **first)
        assert again["id"] == made["id"]
        for change, words in (
            ({"label": "b"}, "withdraw that approval"),
            ({"pinned": True}, "withdraw that approval"),
            ({"prompt": [9] * 32}, "choose another label"),
        ):
            response = await post(rig, "/cache/approve", {**first, **change})
            message = assert_error(response, 409)
            assert words in message
            assert made["id"] in message
            assert response.json()["error"]["code"] == "approval_conflict"
        await done(rig, "/cache/approve", **{**first, "domain": "blue"})

    run(check, tmp_path, ACME)


def test_of_two_approvals_at_once_that_conflict_one_is_refused(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        bodies = [
            {"prompt": RULES, "domain": "acme", "label": label} for label in ("a", "b")
        ]
        both = await asyncio.gather(*(post(rig, "/cache/approve", it) for it in bodies))
        assert sorted(each.status_code for each in both) == [200, 409]

    run(check, tmp_path, ACME)


def test_too_much_to_pin_is_no_room_and_leaves_nothing(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        body = {"prompt": list(range(9 * 16)), "domain": "acme", "label": "a"}
        response = await post(rig, "/cache/approve", {**body, "pinned": True})
        assert "at most 8 may (max_pinned" in assert_error(response, 503)
        assert check_idle(rig.engine)["free"] == 10

    run(check, tmp_path, ACME, num_blocks=10)


_NO_APPROVALS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": RULES, "label": "a"}, "domain is missing"),
    ({"prompt": RULES, "domain": "acme"}, "label is missing"),
    ({"domain": "acme", "label": "a"}, "either prompt or messages"),
    ({"prompt": [], "domain": "acme", "label": "a"}, "prompt must be a text or a list"),
    ({"prompt": [[1]], "domain": "acme", "label": "a"}, "prompt must be a text or a list"),
    ({"prompt": RULES, "domain": "acme", "label": ""}, "label must have at least 1"),
    ({"prompt": RULES, "domain": "acme", "label": " "}, "not blank"),
    ({"prompt": RULES, "domain": "acme", "label": "a\nb"}, "a label is printable"),
    ({"prompt": RULES, "domain": "acme", "label": "x" * 201}, "label must have at most"),
    ({"prompt": RULES, "domain": "acme", "label": "a", "ttl_s": 0}, "ttl_s must be above"),
    ({"prompt": RULES, "domain": "acme", "label": "a", "pinned": 1}, "pinned must be true"),
    ({"prompt": RULES, "domain": "a", "label": "a", "tools": []}, "tools needs messages"),
    (
        {"prompt": RULES, "domain": "a", "label": "a", "tenant": "a"},
        "tenant is not a field",
    ),
    *(
        ({"prompt": RULES, "domain": path, "label": "a"}, "domain must be a path of a-z")
        for path in ("", "a//b", "/a", "a/", "..", "a/../b", "A", "a b", "é", "x" * 256, 7)
    ),
]


def test_what_is_no_approval_is_a_sentence(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        for body, words in _NO_APPROVALS:
            message = assert_error(await post(rig, "/cache/approve", body), 400)
            assert words in message, body
        assert check_idle(rig.engine)["idle"] == 0

    run(check, tmp_path, ACME)


# -- invalidation --------------------------------------------------------------------------


async def fill(rig: Rig) -> None:
    """Let both tenants have a prompt cached, and approve something else for acme."""
    for tenant in ("acme", "blue"):
        await done(rig, "/cache/warm", prompt=PROMPT, tenant=tenant)
    await done(rig, "/cache/approve", prompt=[9] * 40, domain="acme", label="nines")


async def found(rig: Rig) -> tuple[int, int, int]:
    """Return what acme, blue, and acme of what is approved, hit."""
    nines = await hit(rig, "acme", [9] * 40)
    return await hit(rig, "acme", PROMPT), await hit(rig, "blue", PROMPT), nines


ALL = (48, 48, 32)

_SELECTED: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({"everything": True}, (0, 0, 0)),
    ({"domain": "acme"}, (0, 48, 0)),
    ({"domain": "acme", "below": False}, (0, 48, 0)),
    ({"domain": "blue"}, (48, 0, 32)),
    ({"domain": "blue", "below": False}, ALL),
    ({"domain": "public"}, (0, 0, 0)),
    ({"prompt": PROMPT}, (32, 32, 32)),
    ({"prompt": RULES[:16]}, (0, 0, 32)),
    ({"prompt": RULES[:16], "domain": None}, (0, 0, 32)),
    ({"prompt": RULES[:16], "domain": "acme"}, (0, 48, 32)),
    ({"prompt": [9] * 16}, (48, 48, 0)),
    ({"prompt": [9] * 16, "domain": "blue/search"}, ALL),
    ({"older_than_s": 0}, (0, 0, 0)),
    ({"older_than_s": 1e9}, ALL),
    ({"field": "weights", "value": "current"}, (0, 0, 0)),
    ({"field": "weights", "value": "00ff"}, ALL),
    ({"field": "position_offset", "value": 0}, (0, 0, 0)),
    ({"field": "position_offset", "value": 1}, ALL),
    ({"field": "adapter", "value": None}, (0, 0, 0)),
    ({"field": "compute_dtype", "value": "float16"}, ALL),
    ({"approval": "nobody"}, ALL),
    ({"domain": "nobody/here"}, ALL),
    ({"prompt": [5] * 16}, ALL),
]


@pytest.mark.parametrize(("selector", "left"), _SELECTED, ids=lambda it: str(it)[:40])
def test_a_selector_drops_what_it_covers_and_nothing_else(
    selector: dict[str, Any], left: tuple[int, int, int], tmp_path: Path
) -> None:
    async def check(rig: Rig) -> None:
        await fill(rig)
        assert await found(rig) == ALL
        receipt = await done(rig, "/cache/invalidate", **selector)
        assert await found(rig) == left
        assert receipt["num_invalidations"] == 1
        assert (receipt["dropped_blocks"] == 0) == (left == ALL)
        assert receipt["ended_approvals"] == int(left[2] == 0)
        assert receipt["leased_blocks"] == 0
        check_idle(rig.engine)

    run(check, tmp_path, ACME, BLUE)


def test_an_approval_is_dropped_by_its_id(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await fill(rig)
        async with rig.admin() as admin:
            [listed] = (await admin.get("/cache/approvals")).json()["approvals"]
        receipt = await done(rig, "/cache/invalidate", approval=listed["id"])
        assert (receipt["dropped_blocks"], receipt["ended_approvals"]) == (2, 1)
        assert await found(rig) == (48, 48, 0)

    run(check, tmp_path, ACME, BLUE)


def test_the_beginning_of_a_conversation_is_a_selector(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        rules = [{"role": "system", "content": "the rules of this house are plain"}]
        chat = [*rules, {"role": "user", "content": "what are the rules"}]
        await done(rig, "/cache/warm", messages=chat)
        [before] = (await done(rig, "/cache/lookup", messages=chat))["prompts"]
        receipt = await done(rig, "/cache/invalidate", messages=rules)
        [after] = (await done(rig, "/cache/lookup", messages=chat))["prompts"]
        assert receipt["dropped_blocks"] > 0
        assert after["hit_tokens"] < before["hit_tokens"]

    run(check, tmp_path)


_NO_SELECTORS: list[tuple[dict[str, Any], str]] = [
    ({}, "there is no selector; send exactly one of everything"),
    ({"value": "current"}, "there is no selector"),
    ({"domain": None}, "there is no selector"),
    ({"everything": False}, "everything must be true"),
    ({"everything": True, "domain": "acme"}, "there are several selectors"),
    ({"everything": True, "older_than_s": 1}, "there are several selectors"),
    ({"prompt": RULES, "approval": "a"}, "there are several selectors"),
    ({"field": "weights", "value": "current", "domain": "acme"}, "several selectors"),
    ({"prompt": RULES, "messages": []}, "messages must have at least 1"),
    ({"prompt": [1] * 15}, "at least one block, 16 tokens"),
    ({"prompt": RULES, "below": True}, "below goes with domain alone"),
    ({"everything": True, "below": False}, "below goes with domain alone"),
    ({"everything": True, "value": "current"}, "field and value go together"),
    ({"field": "weights"}, "field and value go together"),
    ({"field": "wieghts", "value": "current"}, "did you mean weights?"),
    ({"field": "qqqq", "value": "current"}, "there is architecture, config, weights"),
    ({"field": "weights", "value": 5}, "'current' or hexadecimal digits for this field"),
    ({"field": "weights", "value": "xyz"}, "'current' or hexadecimal digits for this"),
    ({"field": "adapter", "value": 5}, "'current' or hexadecimal digits or null"),
    ({"field": "position_offset", "value": "0"}, "'current' or a whole number for this"),
    ({"field": "position_offset", "value": True}, "value must be a text, a whole number"),
    ({"field": "kv_dtype", "value": None}, "'current' or a text for this field"),
    ({"older_than_s": -1}, "older_than_s must be at least 0"),
    ({"older_than_s": "1"}, "older_than_s must be a number"),
    ({"domian": "acme"}, "there is no such selector; did you mean domain?"),
    ({"olderthan": 5}, "there is no such selector; did you mean older_than_s?"),
    ({"aproval": "x"}, "there is no such selector; did you mean approval?"),
    ({"a secret\n": 1}, "there is no such selector; there is prompt, messages"),
    ({"tools": [], "everything": True}, "tools needs messages"),
    ({"domain": "a//b"}, "domain must be a path"),
    ({"domain": "/"}, "domain must be a path"),
]


def test_what_is_no_selector_is_a_sentence_and_drops_nothing(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await fill(rig)
        for body, words in _NO_SELECTORS:
            response = await post(rig, "/cache/invalidate", body)
            assert words in assert_error(response, 400), body
            assert "secret" not in response.text
            is_unknown = "no such selector" in words
            code = response.json()["error"]["code"]
            assert (code == "unknown_parameter") == is_unknown
        assert await found(rig) == ALL

    run(check, tmp_path, ACME, BLUE)


def test_what_was_read_for_another_model_is_read_again(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await fill(rig)
        engine = rig.planes.engine
        parts = engine.engine.parts
        other = ServedModel(
            name="other",
            created=1,
            tokenizer=make_tokenizer(),
            limits=engine.engine.config.limits,
            fingerprint=replace(parts.fingerprint, weights=b"other"),
        )
        reader = PromptReader(other, (ACME,), Grants((ACME,)))
        for selector in ({"everything": True}, {"prompt": RULES}):
            request = InvalidateRequest.model_validate(selector)
            with pytest.raises(ModelChangedError):
                await sharing.invalidate(engine, reader, request, 100)
        body = ApproveRequest(prompt=RULES, domain="acme", label="rules")
        token_ids = await reader.read_prefix(body, 100)
        with pytest.raises(ModelChangedError):
            await sharing.approve(engine, token_ids, body, reader.fingerprint)
        assert await found(rig) == ALL

    run(check, tmp_path, ACME, BLUE)


# -- whose prompts -------------------------------------------------------------------------


def test_prompts_are_warmed_and_looked_up_for_a_domain_below(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        body = {"prompt": PROMPT, "tenant": "blue", "domain": "blue/search/a"}
        await done(rig, "/cache/warm", **body)
        [own] = (await done(rig, "/cache/lookup", **body))["prompts"]
        assert own["hit_tokens"] == 48
        [above] = (await done(rig, "/cache/lookup", prompt=PROMPT, tenant="blue"))[
            "prompts"
        ]
        assert above["hit_tokens"] == 0
        assert await hit(rig, "blue", PROMPT, cache={"domain": "blue/search/a"}) == 48
        for path in ("blue", "public", "acme", "blue/searching"):
            response = await post(rig, "/cache/warm", {**body, "domain": path})
            assert "domain must be 'blue/search'" in assert_error(response, 403)
        response = await post(rig, "/cache/lookup", {**body, "domain": "blue/search/"})
        assert "domain must be a path" in assert_error(response, 400)

    run(check, tmp_path, ACME, BLUE)


@pytest.mark.parametrize("path", ["/cache/approve", "/cache/invalidate"])
def test_time_and_size_are_limited_there_too(path: str, tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        body = {"prompt": [1] * 4000, "domain": "acme", "label": "a"}
        assert_error(await post(rig, path, body), 413)

    run(check, tmp_path, ACME, server=ServerConfig(max_body_bytes=5000))
