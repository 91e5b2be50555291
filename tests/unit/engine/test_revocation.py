"""Revocation in an engine: what it ends, what it lets finish, and what is left."""

from __future__ import annotations

import pytest

from prefold.cache import READ_WRITE, ApprovalTerms
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.request import FinishReason, RequestOutput, SamplingParams
from prefold.engine.sequence import SequenceState
from prefold.identity.domain import Domain
from support.fake_engine import FakeEngine, expected_reply

ACME, ALICE, SALTED = Domain("a"), Domain("a/alice"), Domain("a/alice", salt=b"s")
OTHER, NEAR = Domain("x"), Domain("ab")
MINE = (ACME, ALICE, SALTED)
PROMPT = [1, 2, 3, 4] * 3


def submit(engine: FakeEngine, domain: Domain, length: int = 4, first: int = 9) -> str:
    options = RequestOptions(domain=domain)
    params = SamplingParams(max_tokens=length)
    return engine.submit([first, *PROMPT], params, options=options)


def finish(engine: FakeEngine) -> dict[str, RequestOutput]:
    outputs: dict[str, RequestOutput] = {}
    while engine.has_work:
        outputs |= {it.request_id: it for it in engine.step()}
        engine.check_invariants()
        engine.cache.check_invariants()
    return outputs


def hits(engine: FakeEngine, domain: Domain, first: int = 9) -> int:
    options = RequestOptions(domain=domain)
    return engine.lookup([first, *PROMPT], options=options).num_hit_tokens


@pytest.mark.parametrize("drains", [False, True])
def test_all_that_is_cached_below_is_gone_at_once_and_freed(drains: bool) -> None:  # noqa: FBT001
    engine = FakeEngine()
    for domain in (*MINE, OTHER, NEAR):
        submit(engine, domain)
    finish(engine)
    approval = engine.approve(PROMPT, domain=ACME, label="a", pinned=True)
    engine.approve(PROMPT, domain=OTHER, label="a")
    held = engine.cache.counts
    done = engine.revoker.revoke(ACME, drains=drains)
    engine.check_invariants()
    engine.cache.check_invariants()
    now = engine.cache.counts
    assert done.receipt.num_blocks > len(approval.tokens) // 4
    assert (done.receipt.num_approvals, done.receipt.num_leased_blocks) == (1, 0)
    assert (done.num_aborted, done.num_draining) == (0, 0)
    assert now.free == held.free + done.receipt.num_blocks
    assert (now.private, now.shared) == (0, 0)
    assert [hits(engine, domain) for domain in MINE] == [0, 0, 0]
    assert [hits(engine, domain) for domain in (OTHER, NEAR)] == [12, 12]
    assert [each.domain for each in engine.cache.approved.approvals()] == [OTHER]


def running_and_queued() -> tuple[FakeEngine, dict[str, Domain]]:
    """Two of each domain, of which the first one of each runs."""
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=4, max_step_tokens=64))
    ids = {}
    for first in (8, 9):
        for domain in (*MINE, OTHER):
            ids[submit(engine, domain, 30, first)] = domain
    for _ in range(6):
        engine.step()
    states = {reply.sequence.state for reply in engine._replies.values()}
    assert states == {SequenceState.RUNNING, SequenceState.QUEUED}
    return engine, ids


def test_requests_are_aborted_and_their_blocks_come_free_at_once() -> None:
    engine, ids = running_and_queued()
    done = engine.revoker.revoke(ACME)
    assert (done.num_aborted, done.num_draining) == (6, 0)
    assert engine.num_open == 2
    engine.check_invariants()
    engine.cache.check_invariants()
    counts = engine.cache.counts
    # What is left is the other domain's running request.
    assert counts.private + counts.shared == 64 - counts.free == 5
    assert done.receipt.num_leased_blocks == 0
    outputs = finish(engine)
    for request_id, domain in ids.items():
        is_mine = domain is not OTHER
        reason = FinishReason.ABORTED if is_mine else FinishReason.LENGTH
        assert outputs[request_id].finish_reason is reason
    assert [hits(engine, domain) for domain in MINE] == [0, 0, 0]
    assert hits(engine, OTHER) == 12


def test_requests_that_drain_finish_and_leave_nothing() -> None:
    engine, ids = running_and_queued()
    done = engine.revoker.revoke(ACME, drains=True)
    assert (done.num_aborted, done.num_draining) == (0, 6)
    assert done.receipt.num_leased_blocks == done.receipt.num_blocks > 0
    outputs = finish(engine)
    for request_id in ids:
        output = outputs[request_id]
        assert output.finish_reason is FinishReason.LENGTH
    replies = [list(outputs[it].token_ids) for it in ids]
    assert replies[:4] == [expected_reply([8, *PROMPT], 30)] * 4
    assert replies[4:] == [expected_reply([9, *PROMPT], 30)] * 4
    for first in (8, 9):
        assert [hits(engine, domain, first) for domain in MINE] == [0, 0, 0]
        assert hits(engine, OTHER, first) == 12
    engine.revoker.revoke(OTHER)
    assert engine.cache.counts.free == 64


def test_one_that_gives_its_blocks_back_leaves_nothing_either() -> None:
    engine = FakeEngine(num_blocks=16)
    ids = [submit(engine, domain, 30, 8) for domain in (ACME, OTHER)]
    engine.step()
    engine.revoker.revoke(ACME, drains=True)
    outputs = finish(engine)
    assert engine.counters.num_preemptions > 0
    assert [list(outputs[it].token_ids) for it in ids] == [
        expected_reply([8, *PROMPT], 30)
    ] * 2
    assert hits(engine, ACME, 8) == 0


def test_what_is_being_approved_is_aborted_even_where_requests_drain() -> None:
    engine = FakeEngine()
    terms = ApprovalTerms(label="a")
    ids = []
    for domain in (ALICE, OTHER):
        options = RequestOptions(domain=domain, approval=terms)
        ids.append(engine.submit(PROMPT, options=options))
    done = engine.revoker.revoke(ACME, drains=True)
    assert (done.num_aborted, done.num_draining) == (1, 0)
    outputs = finish(engine)
    assert outputs[ids[0]].finish_reason is FinishReason.ABORTED
    assert [each.domain for each in engine.cache.approved.approvals()] == [OTHER]


def test_a_later_request_is_like_any_other() -> None:
    engine = FakeEngine()
    engine.revoker.revoke(ACME, drains=True)
    [output] = engine.generate([PROMPT], options=RequestOptions(domain=ACME))
    assert output.finish_reason is FinishReason.LENGTH
    lookup = engine.lookup([*PROMPT, 9], options=RequestOptions(domain=ACME))
    assert lookup.num_hit_tokens == 12
    assert RequestOptions(domain=ACME).access == READ_WRITE
