"""Why requests missed, on the admin plane: the journal behind it and its routes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import BreakKind
from prefold.cache import Access, MissKind, MissReason, Pressure, Retention
from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestOutput, Usage
from prefold.errors import InvariantError
from prefold.identity.domain import Domain
from prefold.server.config import ServerConfig, TenantConfig
from prefold.server.divergence import find_divergence, find_nearest, num_common
from prefold.server.journal import (
    MAX_OF_REQUEST,
    MAX_PROMPTS,
    MAX_REPLIES,
    Journal,
    Kept,
    KeptTokens,
)
from prefold.server.miss_advice import advise
from prefold.server.observer import AskedPrompt, ExchangeId
from support.fingerprints import make_fingerprint
from support.outputs import make_output
from support.planes_rig import MODEL, Rig, RigSettings, assert_error, open_rig
from support.settable_clock import SettableClock

A = Domain("acme")
PRINT = make_fingerprint(block_size=4)
DIVERGED = MissReason(kind=MissKind.DIVERGED, at_token=1)


# -- the journal -------------------------------------------------------------------------


def request(number: int, text: str = "", tenant: str = "acme") -> ExchangeId:
    return ExchangeId(text=text or f"r{number}", serial=number, tenant=tenant)


def asked(tokens: Sequence[int], domain: Domain = A, **more: Any) -> AskedPrompt:
    return AskedPrompt(
        token_ids=np.array(tokens, dtype=np.int64),
        options=RequestOptions(domain=domain, **more),
        fingerprint=PRINT,
    )


def ended(miss: MissReason = DIVERGED, reply: Sequence[int] = ()) -> RequestOutput:
    usage = Usage(prompt_tokens=9, cached_tokens=3, completion_tokens=len(reply))
    return replace(make_output(), miss_reason=miss, token_ids=tuple(reply), usage=usage)


def serve(journal: Journal, number: int, tokens: Sequence[int], **more: Any) -> None:
    journal.note_asked(request(number), [asked(tokens, **more)])
    journal.note_output(request(number), ended(), prompt=0)
    journal.check_invariants()


def texts_before(journal: Journal, number: int) -> list[str]:
    [entry] = journal.find(f"r{number}", "acme")
    [before] = journal.kept_before([entry])
    return [kept.request_id for kept in before]


def test_the_latest_misses_come_first_and_whole_hits_not_at_all() -> None:
    journal = Journal()
    for number in range(4):
        serve(journal, number, [1, 2, number])
    journal.note_asked(request(8), [asked([1])])
    journal.note_asked(request(9), [asked([1])])
    complete = MissReason(kind=MissKind.COMPLETE, at_token=8)
    journal.note_output(request(9), ended(complete), prompt=0)
    found = [entry.request.text for entry in journal.latest(3)]
    assert found == ["r3", "r2", "r1"], "r8 has not ended, r9 missed nothing"
    assert journal.latest(1)[0].num_hit_tokens == 3


def test_only_earlier_requests_of_the_same_domain_are_compared() -> None:
    journal = Journal()
    serve(journal, 1, [1, 2])
    serve(journal, 2, [1, 2], domain=Domain("blue"))
    serve(journal, 3, [1, 2], domain=Domain("acme", salt=b"s"))
    serve(journal, 4, [1, 2], domain=Domain("acme/search"))
    serve(journal, 5, [1, 2])
    serve(journal, 6, [1, 2])
    assert texts_before(journal, 5) == ["r1"]
    assert texts_before(journal, 6) == ["r5", "r1"]


def test_many_are_compared_with_the_same_values() -> None:
    journal = Journal()
    for number in range(40):
        serve(journal, number, [1, 2, number])
    entries = journal.latest(40)
    before = journal.kept_before(entries)
    # A list of all misses must not take the event loop a value for each pair.
    assert len({id(kept) for its in before for kept in its}) == 39
    for entry, its in zip(entries, before, strict=True):
        assert [kept.number for kept in its] == [*range(entry.number - 1, 0, -1)]


def test_of_another_fingerprint_nothing_is_compared() -> None:
    journal = Journal()
    serve(journal, 1, [1, 2])
    other = replace(asked([1, 2]), fingerprint=make_fingerprint(block_size=4, weights=b"x"))
    journal.note_asked(request(2), [other])
    assert texts_before(journal, 2) == []


def test_nothing_is_kept_of_who_leaves_nothing_behind() -> None:
    journal = Journal()
    serve(journal, 1, [1, 2], access=Access(read=True, write=False))
    [entry] = journal.find("r1", "acme")
    assert entry.prompt is None
    assert entry.miss == DIVERGED, "but the reason is"


def test_tokens_live_no_longer_than_what_they_left_in_the_cache() -> None:
    clock = SettableClock(1000.0)
    journal = Journal(clock)
    serve(journal, 1, [1, 2], retention=Retention(ttl_s=20.0))
    clock.advance(19.0)
    serve(journal, 2, [1, 2])
    assert texts_before(journal, 2) == ["r1"]
    clock.advance(1.0)
    assert texts_before(journal, 2) == []
    clock.advance(10.0)
    serve(journal, 3, [1, 2])
    assert journal.find("r1", "acme")[0].sequences == ()


def test_replies_are_kept_with_their_prompt() -> None:
    journal = Journal()
    journal.note_asked(request(1), [asked([1, 2, 3])])
    for number in range(MAX_REPLIES + 2):
        journal.note_output(request(1), ended(reply=[7, number]), prompt=0)
        journal.check_invariants()
    [entry] = journal.find("r1", "acme")
    assert [it.tolist() for it in entry.sequences] == [
        [1, 2, 3, 7, number] for number in range(MAX_REPLIES)
    ]
    assert entry.prompt is not None
    assert entry.prompt.tolist() == [1, 2, 3]


def test_each_prompt_of_a_request_has_its_own_reason() -> None:
    journal = Journal()
    prompts = [asked([number]) for number in range(MAX_OF_REQUEST + 3)]
    journal.note_asked(request(1), prompts)
    evicted = MissReason(kind=MissKind.EVICTED, at_token=0)
    journal.note_output(request(1), ended(evicted), prompt=2)
    journal.note_output(request(1), ended(evicted), prompt=MAX_OF_REQUEST + 1)
    journal.check_invariants()
    entries = journal.find("r1", "acme")
    assert len(entries) == MAX_OF_REQUEST
    assert [entry.miss for entry in entries[:4]] == [None, None, evicted, None]


def test_equal_ids_are_told_apart_by_serial_and_tenant() -> None:
    journal = Journal()
    for number, tenant in ((1, "acme"), (2, "blue"), (3, "acme")):
        journal.note_asked(request(number, "mine", tenant), [asked([number])])
    # The first of acme ends after the second was taken in.
    journal.note_output(request(1, "mine"), ended(), prompt=0)
    assert journal.find("mine", "acme")[0].miss is None
    journal.note_output(request(3, "mine"), ended(), prompt=0)
    assert journal.find("mine", "acme")[0].miss == DIVERGED
    assert journal.tenants_of("mine") == ["acme", "blue"]
    assert journal.find("mine", "green") == []
    journal.check_invariants()


def test_prompts_and_tokens_are_bounded_and_the_oldest_go() -> None:
    journal = Journal(max_tokens=10)
    for number in range(MAX_PROMPTS + 5):
        journal.note_asked(request(number), [asked([1, 2, 3])])
    journal.check_invariants()
    assert journal.find("r4", "acme") == []
    assert [len(journal.find(f"r{n}", "acme")[0].sequences) for n in (5, 1001, 1002)] == [
        *(0, 0, 1),
    ]
    journal.note_asked(request(5000), [asked(range(11))])
    journal.check_invariants()
    assert journal.find("r5000", "acme")[0].prompt is None


def test_what_is_forgotten_keeps_its_reason_and_takes_no_reply() -> None:
    clock = SettableClock(1.0)
    journal = Journal(clock)
    serve(journal, 1, [1, 2])
    serve(journal, 2, [1, 2], domain=Domain("acme/search"))
    serve(journal, 3, [1, 2], domain=Domain("blue"))
    journal.note_asked(request(4), [asked([1, 2])])
    journal.forget(Domain("acme"))
    journal.note_output(request(4), ended(reply=[9]), prompt=0)
    journal.check_invariants()
    kept = [bool(journal.find(f"r{n}", "acme")[0].sequences) for n in (1, 2, 3, 4)]
    assert kept == [False, False, True, False]
    assert journal.find("r4", "acme")[0].miss == DIVERGED
    clock.now = 5.0
    serve(journal, 6, [1])
    journal.forget(before=4.0)
    assert journal.find("r3", "acme")[0].sequences == ()
    assert journal.find("r6", "acme")[0].sequences != ()
    journal.forget()
    assert journal.find("r6", "acme")[0].sequences == ()


def test_a_revoked_domain_leaves_nothing() -> None:
    journal = Journal()
    serve(journal, 1, [1, 2], domain=Domain("acme", salt=b"s"))
    serve(journal, 2, [1, 2], domain=Domain("blue"))
    journal.drop_domain(A)
    journal.check_invariants()
    assert journal.find("r1", "acme") == []
    assert len(journal.latest(9)) == 1


def test_a_journal_that_miscounts_is_found_out() -> None:
    journal = Journal()
    serve(journal, 1, [1, 2])
    journal._num_tokens += 1
    with pytest.raises(InvariantError, match="miscounts"):
        journal.check_invariants()


def test_nothing_here_shows_tokens() -> None:
    journal = Journal()
    serve(journal, 1, [424242, 2])
    serve(journal, 2, [424242, 2])
    [entry] = journal.find("r2", "acme")
    shown = repr(asked([424242])) + repr(entry) + repr(journal.kept_before([entry]))
    assert "424242" not in shown


Step = tuple[str, int, list[int]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "end", "forget", "drop"]),
        st.integers(0, 5),
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
    ),
    max_size=30,
)


@given(STEPS, st.integers(0, 20))
def test_whatever_comes_the_journal_adds_up(steps: list[Step], max_tokens: int) -> None:
    journal = Journal(SettableClock(), max_tokens=max_tokens)
    for serial, (step, number, tokens) in enumerate(steps):
        domain = Domain(f"d{number % 2}")
        own = ExchangeId(text=f"r{number}", serial=serial, tenant="acme")
        match step:
            case "ask":
                journal.note_asked(own, [asked(tokens, domain)])
            case "end":
                entries = journal.find(own.text, "acme")
                if entries:
                    journal.note_output(entries[0].request, ended(reply=tokens), prompt=0)
            case "forget":
                journal.forget(domain)
            case _:
                journal.drop_domain(domain)
        journal.check_invariants()


# -- the nearest request -------------------------------------------------------------------


def kept(number: int, *sequences: Sequence[int]) -> Kept:
    arrays = tuple(np.array(each, dtype=np.int32) for each in sequences)
    return Kept(request_id=f"r{number}", number=number, at=0.0, sequences=arrays)


FEW = st.lists(st.integers(0, 1), min_size=1, max_size=90)


@given(FEW, st.lists(st.lists(FEW, min_size=1, max_size=3), max_size=5))
def test_the_nearest_agrees_longest_and_came_last(
    prompt: list[int], earlier: list[list[list[int]]]
) -> None:
    def agreed(tokens: list[int]) -> int:
        pairs = enumerate(zip(tokens, prompt, strict=False))
        return next((n for n, (a, b) in pairs if a != b), min(len(tokens), len(prompt)))

    requests = [kept(number, *each) for number, each in enumerate(earlier)]
    found = find_nearest(np.array(prompt, dtype=np.int32), requests)
    lengths = [max(map(agreed, each)) for each in earlier]
    best = max(lengths, default=0)
    if best == 0:
        assert found is None
        return
    assert found is not None
    assert (found.num_common, found.kept.number) == (best, lengths.index(best))
    assert agreed(found.tokens.tolist()) == best


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
def test_the_common_length_is_counted_over_any_number_of_chunks(
    length: int, ours: int, theirs: int
) -> None:
    same = np.zeros(length, dtype=np.int32)
    one = np.concatenate([same, np.full(ours, 1, dtype=np.int32)])
    other = np.concatenate([same, np.full(theirs, 2, dtype=np.int32)])
    assert num_common(one, other) == length


@pytest.mark.parametrize("length", [63, 64, 65, 191, 192, 193])
def test_nothing_is_passed_over_between_chunks(length: int) -> None:
    one = np.zeros(500, dtype=np.int32)
    other = one.copy()
    other[length] = 1
    assert num_common(one, other) == length


def decode(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


def codes(text: str) -> KeptTokens:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


EARLIER = "Rules. It is 09:41:07 now, and all else stays."
LATER = "Rules. It is 09:41:12 now, and all else stays."


def divergence(later: str, earlier: str, miss: MissReason = DIVERGED) -> Any:
    own = Kept(request_id="r1", number=1, at=0.0, sequences=(codes(earlier),))
    return find_divergence(codes(later), miss, [own], decode)


def test_the_culprit_and_the_text_around_it_are_found() -> None:
    found = divergence(LATER, EARLIER)
    assert found.finding.kind is BreakKind.CLOCK
    assert found.finding.at_token == EARLIER.index("07")
    assert found.texts.before == "Rules. It is 09:41:"
    assert found.texts.earlier == EARLIER[found.finding.at_token :]
    assert found.texts.later == LATER[found.finding.at_token :]
    assert "09:41" not in repr(found)


@pytest.mark.parametrize(
    ("later", "earlier", "miss"),
    [
        # The cache knows of one that goes further, which is not kept any more.
        (LATER, EARLIER, MissReason(kind=MissKind.DIVERGED, at_token=30)),
        # It was not another text that was missed.
        (LATER, EARLIER, MissReason(kind=MissKind.EVICTED, at_token=1)),
        # It only goes on, or only begins in the same way.
        (f"{EARLIER} And more.", EARLIER, DIVERGED),
        (EARLIER[:20], EARLIER, DIVERGED),
        ("Other", EARLIER, DIVERGED),
    ],
)
def test_nobody_is_blamed_for_what_did_not_diverge(
    later: str, earlier: str, miss: MissReason
) -> None:
    assert divergence(later, earlier, miss) is None


def test_text_is_cut_short_on_both_sides() -> None:
    found = divergence("a" * 9000 + "1" + "c" * 9000, "a" * 9000 + "2" + "c" * 9000)
    assert found.nearest.num_common == 9000
    assert {len(found.texts.before), len(found.texts.later)} == {160}


def test_another_cut_into_tokens_is_told() -> None:
    pieces = {1: "the reply ", 2: "begins", 3: "beg", 4: "ins", 5: " and goes on for long"}
    own = Kept(
        request_id="r1",
        number=1,
        at=0.0,
        sequences=(np.array([1, 2, 5], dtype=np.int32),),
    )
    prompt = np.array([1, 3, 4, 5, 5], dtype=np.int32)
    found = find_divergence(
        prompt, DIVERGED, [own], lambda ids: "".join(pieces[each] for each in ids)
    )
    assert found is not None
    assert (found.finding.kind, found.finding.at_token) == (BreakKind.TOKENS, 1)


# -- advice --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BreakKind)
def test_every_culprit_has_advice(kind: BreakKind) -> None:
    text = advise(MissKind.DIVERGED, None, kind)
    assert (text is None) == (kind is BreakKind.TEXT)


def test_who_is_evicted_is_advised_by_whose_need_it_was() -> None:
    told = {advise(MissKind.EVICTED, pressure, None) for pressure in (None, *Pressure)}
    assert len(told) == 4
    assert advise(MissKind.NEVER_SEEN, None, None) is None


# -- the header and the routes -------------------------------------------------------------

ACME = TenantConfig(name="acme", domain="acme")
BLUE = TenantConfig(name="blue", domain="blue")
HEAD = "the order of the day is on the table by the door and "


def run(check: Callable[[Rig], Awaitable[None]], directory: Path, **settings: Any) -> None:
    async def main() -> None:
        async with open_rig(RigSettings(directory=directory, **settings)) as rig:
            await check(rig)

    asyncio.run(main())


async def complete(rig: Rig, prompt: str, tenant: str | None = None, **more: Any) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, **more}
    async with rig.public(tenant) as public:
        answer = await public.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-request-id"])


def test_a_client_reads_the_reason_of_its_own_reply(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.public() as public:
            told = []
            for prompt in (HEAD, f"{HEAD}ab cd cd cd cd", [HEAD, HEAD]):
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
                answer = await public.post("/v1/completions", json=body)
                told.append(answer.headers.get("x-prefold-miss"))
        assert told[0] == "never_seen; at_token=0"
        assert str(told[1]).split(";")[0] in {"diverged", "never_seen"}
        assert told[2] is None, "of several prompts none is meant"

    run(check, tmp_path)


async def get(rig: Rig, path: str) -> Any:
    async with rig.admin() as admin:
        answer = await admin.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_request_that_diverges_is_explained_without_text(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        first = await complete(rig, f"{HEAD}ab 1 cd")
        second = await complete(rig, f"{HEAD}ab 2 cd")
        found = await get(rig, f"/cache/explain/{second}")
        assert (found["request_id"], found["tenant"]) == (second, "default")
        [prompt] = found["prompts"]
        assert prompt["reason"]["kind"] == "diverged"
        assert prompt["hit_tokens"] <= prompt["reason"]["at_token"]
        assert prompt["earlier"]["request_id"] == first
        assert prompt["earlier"]["common_tokens"] == prompt["reason"]["at_token"]
        assert prompt["earlier"]["text"] is None
        assert "table" not in str(found)
        assert prompt["at"] > 1.7e9

    run(check, tmp_path)


def test_text_is_shown_where_it_may_be(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await complete(rig, f"{HEAD}ab cd cd cd")
        second = await complete(rig, f"{HEAD}ab on on on")
        [prompt] = (await get(rig, f"/cache/explain/{second}"))["prompts"]
        text = prompt["earlier"]["text"]
        assert text["before"].endswith("ab ")
        assert text["earlier"].startswith("cd")
        assert text["later"] == "on on on"

    run(check, tmp_path, server=ServerConfig(allow_prompt_text=True))


def test_the_misses_are_listed_with_culprits(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        ids = [
            await complete(rig, f"{HEAD}it is 0{number}:41:07 by the {HEAD}")
            for number in range(1, 4)
        ]
        ids.append(await complete(rig, f"{HEAD}it is 03:41:07 by the {HEAD}"))
        rows = (await get(rig, "/cache/misses?limit=9"))["data"]
        assert [row["request_id"] for row in rows] == ids[2::-1], "a whole hit is no miss"
        assert set(rows[0]) == {
            *("request_id", "tenant", "at", "prompt_tokens", "hit_tokens", "reason"),
        }
        assert [row["reason"]["kind"] for row in rows] == ["diverged"] * 2 + ["never_seen"]
        expected = {"kind": "clock", "detail": "the clock's hour"}
        assert [row["reason"]["culprit"] for row in rows] == [expected, expected, None]
        assert rows[0]["reason"]["sentence"].endswith(".")
        assert (await get(rig, "/cache/misses?limit=1"))["data"] == rows[:1]
        # Asked again, it is not compared again.
        assert (await get(rig, "/cache/misses"))["data"] == rows
        assert (await get(rig, "/cache/misses"))["object"] == "list"
        samples = await rig.samples()
        name = 'prefold_misses_total{{reason="{}",tenant="default"}}'
        assert samples[name.format("diverged")] == 2
        assert samples[name.format("never_seen")] == 1
        assert samples[name.format("complete")] == 1

    run(check, tmp_path)


def test_one_reason_is_counted_for_every_sequence_that_looked_up(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        for tenant in ("acme", "blue"):
            await complete(rig, HEAD, tenant, n=2)
            await complete(rig, HEAD, tenant, cache={"read": False})
        samples = await rig.samples()
        for tenant in ("acme", "blue"):
            counts = {
                kind: samples[f'prefold_misses_total{{reason="{kind}",tenant="{tenant}"}}']
                for kind in (each.value for each in MissKind)
            }
            assert sum(counts.values()) == 3
            assert (counts["never_seen"], counts["read_off"]) == (2, 1)

    run(check, tmp_path, tenants=(ACME, BLUE))


def test_no_tenant_is_compared_with_another(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await complete(rig, f"{HEAD}ab", "acme")
        second = await complete(rig, f"{HEAD}cd", "blue")
        [prompt] = (await get(rig, f"/cache/explain/{second}"))["prompts"]
        assert prompt["reason"]["kind"] == "never_seen"
        assert prompt["earlier"] is None

    run(check, tmp_path, tenants=(ACME, BLUE))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/cache/reset", {}),
        ("/cache/invalidate", {"everything": True}),
        ("/cache/invalidate", {"domain": "acme"}),
        ("/cache/invalidate", {"prompt": HEAD}),
        ("/cache/invalidate", {"older_than_s": 0}),
        ("/cache/invalidate", {"field": "weights", "value": "current"}),
        ("/cache/runs/{id}/invalidate", {}),
    ],
)
def test_what_was_invalidated_is_compared_with_nothing(
    path: str, body: object, tmp_path: Path
) -> None:
    async def check(rig: Rig) -> None:
        await complete(rig, f"{HEAD}ab", "acme")
        async with rig.admin() as admin:
            [first, *_] = (await admin.get("/cache/runs")).json()["data"]
            place = path.format(id=first["id"])
            assert (await admin.post(place, json=body)).status_code == 200
        second = await complete(rig, f"{HEAD}cd", "acme")
        [prompt] = (await get(rig, f"/cache/explain/{second}"))["prompts"]
        assert prompt["earlier"] is None
        assert prompt["reason"]["kind"] == "invalidated"
        assert prompt["lost_at"] == pytest.approx(prompt["at"], abs=60.0)
        assert prompt["selector"]

    run(check, tmp_path, tenants=(ACME,))


def test_a_revoked_domain_is_not_explained(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        first = await complete(rig, HEAD, "acme")
        async with rig.admin() as admin:
            await get(rig, f"/cache/explain/{first}")
            assert (await admin.delete("/domains/acme")).status_code == 200
            assert_error(await admin.get(f"/cache/explain/{first}"), 404)
        assert (await get(rig, "/cache/misses"))["data"] == []

    run(check, tmp_path, tenants=(ACME, BLUE))


def test_what_cannot_be_explained_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            message = assert_error(await admin.get("/cache/explain/none"), 404)
            assert "x-request-id" in message
            assert_error(await admin.get("/cache/misses?limit=0"), 400)
            for tenant in ("acme", "blue"):
                async with rig.public(tenant) as public:
                    body = {"model": MODEL, "prompt": HEAD, "max_tokens": 1}
                    headers = {"x-request-id": "mine"}
                    await public.post("/v1/completions", json=body, headers=headers)
            message = assert_error(await admin.get("/cache/explain/mine"), 400)
            assert "acme, blue" in message
            named = (await admin.get("/cache/explain/mine?tenant=blue")).json()
            assert named["tenant"] == "blue"

    run(check, tmp_path, tenants=(ACME, BLUE))


def test_an_eviction_is_told_with_whose_need_it_was(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await complete(rig, HEAD * 2, "acme")
        for number in range(6):
            await complete(rig, f"{number} {HEAD}" * 2, "blue")
        second = await complete(rig, HEAD * 2, "acme")
        [prompt] = (await get(rig, f"/cache/explain/{second}"))["prompts"]
        assert prompt["reason"]["kind"] == "evicted"
        assert (prompt["pressure"], prompt["selector"]) == ("pool", None)
        assert prompt["policy"]
        assert prompt["lost_blocks"] > 0
        assert prompt["lost_at"] < prompt["at"] + 1.0
        assert "blue" not in str(prompt)

    run(check, tmp_path, tenants=(ACME, BLUE), num_blocks=16, max_model_len=160)


def test_infinite_times_are_no_times() -> None:
    entry = Journal()
    serve(entry, 1, [1])
    assert entry.find("r1", "acme")[0].expires_at == math.inf
