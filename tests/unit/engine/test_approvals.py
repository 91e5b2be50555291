"""Approvals through the engine: computed once, shared below, and no request starved."""

import pytest

from prefold.cache import APPROVING, NO_CACHE, ApprovalTerms, ByDomain, ByPrefix, MissKind
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.request import FinishReason, RequestOutput, SamplingParams
from prefold.errors import CapacityError, InvalidInputError, RequestError
from prefold.identity.domain import PUBLIC, Domain
from support.fake_engine import FakeEngine, expected_reply
from support.running import as_tokens

TEAM, ALICE, STRANGER = Domain("a"), Domain("a/alice"), Domain("x")
RULES = [1, 2, 3] * 4
PARAMS = SamplingParams(max_tokens=2)


def cached(engine: FakeEngine, domain: Domain) -> int:
    options = RequestOptions(domain=domain)
    [output] = engine.generate([[*RULES, 9]], PARAMS, options=options)
    assert list(output.token_ids) == expected_reply([*RULES, 9], 2)
    engine.check_invariants()
    return output.usage.cached_tokens


def run(engine: FakeEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    engine.check_invariants()
    return outputs


def approving(terms: ApprovalTerms, domain: Domain = TEAM) -> RequestOptions:
    return RequestOptions(domain=domain, approval=terms)


def test_an_approved_prompt_is_computed_once_for_everybody_below() -> None:
    engine = FakeEngine()
    approval = engine.approve(RULES, domain=TEAM, label="rules")
    engine.check_invariants()
    assert engine.cache.approved.approvals() == (approval,)
    assert [cached(engine, domain) for domain in (TEAM, ALICE, STRANGER)] == [12, 12, 0]


def test_a_withdrawn_approval_spares_nobody_anything() -> None:
    engine = FakeEngine()
    approval = engine.approve(RULES, domain=PUBLIC, label="rules")
    assert engine.cache.withdraw(approval.approval_id).num_blocks == 3
    assert engine.cache.approved.approvals() == ()
    lookup = engine.lookup([*RULES, 9], options=RequestOptions(domain=TEAM))
    assert lookup.miss.kind is MissKind.WITHDRAWN
    assert cached(engine, STRANGER) == 0


def test_a_request_submitted_to_approve_brings_the_approval_in_its_output() -> None:
    engine = FakeEngine()
    terms = ApprovalTerms(label="rules", pinned=True)
    request_id = engine.submit(RULES, PARAMS, options=approving(terms))
    engine.submit([7] * 9, PARAMS)
    outputs = {output.request_id: output for output in run(engine)}
    output = outputs.pop(request_id)
    assert output.finish_reason is FinishReason.LENGTH
    assert output.token_ids == ()
    assert output.approval is not None
    assert (output.approval,) == engine.cache.approved.approvals()
    assert all(other.approval is None for other in outputs.values())
    assert cached(engine, ALICE) == 12


def test_it_is_approved_though_it_was_preempted_on_the_way() -> None:
    engine = FakeEngine(
        num_blocks=12, scheduler=SchedulerConfig(max_step_tokens=8, max_running=4)
    )
    params = SamplingParams(max_tokens=20)
    engine.submit([5] * 9, params)
    engine.submit([6] * 20, options=approving(ApprovalTerms(label="rules")))
    outputs = run(engine)
    [approval] = [output.approval for output in outputs if output.approval]
    assert len(approval.tokens) == 20
    assert engine.lookup([6] * 21, options=RequestOptions(domain=ALICE)).num_hit_tokens


def test_an_aborted_request_approves_nothing_and_leaves_nothing() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_step_tokens=4, max_running=2))
    options = approving(ApprovalTerms(label="rules"))
    request_id = engine.submit(RULES, options=options)
    engine.step()
    engine.step()
    engine.abort(request_id)
    [output] = run(engine)
    assert (output.finish_reason, output.approval) == (FinishReason.ABORTED, None)
    assert engine.cache.approved.approvals() == ()
    assert engine.cache.counts.free == 64


def test_a_failed_step_approves_nothing() -> None:
    engine = FakeEngine()
    engine.runner.fails_at = {1}
    with pytest.raises(CapacityError, match="the step failed"):
        engine.approve(RULES, domain=TEAM, label="rules")
    assert engine.cache.approved.approvals() == ()
    assert engine.cache.counts.free == 64


def test_what_is_invalidated_meanwhile_is_not_approved() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_step_tokens=4, max_running=2))
    engine.submit(RULES, options=approving(ApprovalTerms(label="rules")))
    engine.step()
    engine.cache.invalidate(ByDomain(domain=TEAM))
    [output] = run(engine)
    assert output.finish_reason is FinishReason.FAILED
    assert output.error is not None
    assert "invalidated meanwhile" in output.error
    assert cached(engine, ALICE) == 0


def test_conflicts_are_refused_before_anything_is_computed() -> None:
    engine = FakeEngine()
    engine.approve(RULES, domain=TEAM, label="rules")
    num_calls = engine.runner.num_calls
    with pytest.raises(InvalidInputError, match="'rules' is taken in 'a'"):
        engine.approve([4] * 12, domain=TEAM, label="rules")
    with pytest.raises(InvalidInputError, match="other terms"):
        engine.approve(RULES, domain=TEAM, label="rules", pinned=True)
    with pytest.raises(InvalidInputError, match="at least one block, 4 tokens, got 3"):
        engine.approve([4] * 3, domain=TEAM, label="short")
    with pytest.raises(InvalidInputError, match="label"):
        engine.approve(RULES, domain=TEAM, label="")
    with pytest.raises(RequestError, match="nothing can be approved for Domain"):
        engine.approve(RULES, domain=Domain("a", b"s"), label="salted")
    assert engine.runner.num_calls == num_calls
    assert engine.num_open == 0


def test_two_that_conflict_while_they_run_fail_only_the_later() -> None:
    engine = FakeEngine()
    engine.submit(RULES, options=approving(ApprovalTerms(label="rules")))
    engine.submit([4] * 12, options=approving(ApprovalTerms(label="rules")))
    outputs = run(engine)
    assert [output.finish_reason for output in outputs] == [
        FinishReason.LENGTH,
        FinishReason.FAILED,
    ]
    assert "is taken" in (outputs[1].error or "")
    assert len(engine.cache.approved.approvals()) == 1


def test_options_that_cannot_approve_are_refused() -> None:
    terms = ApprovalTerms(label="rules")
    with pytest.raises(RequestError, match="leave access out"):
        RequestOptions(domain=TEAM, approval=terms, access=NO_CACHE)
    with pytest.raises(RequestError, match="leave the salt out"):
        RequestOptions(domain=Domain("a", b"s"), approval=terms)
    with pytest.raises(RequestError, match="set approval, not access"):
        RequestOptions(domain=TEAM, access=APPROVING)
    with pytest.raises(RequestError, match="must be ApprovalTerms"):
        RequestOptions(domain=TEAM, approval="rules")  # type: ignore[arg-type]


def test_what_is_pinned_is_no_room_for_a_request() -> None:
    engine = FakeEngine(num_blocks=10)
    engine.approve([4] * 16, domain=TEAM, label="rules", pinned=True)
    with pytest.raises(RequestError, match=r"24 tokens \(6 blocks of 4 beside 4 that are"):
        engine.submit([5] * 20, SamplingParams(max_tokens=5))
    [output] = engine.generate([[5] * 20], SamplingParams(max_tokens=3))
    assert output.finish_reason is FinishReason.LENGTH
    [approval] = engine.cache.approved.approvals()
    engine.cache.withdraw(approval.approval_id)
    engine.submit([5] * 20, SamplingParams(max_tokens=5))
    run(engine)


def test_a_pin_leaves_open_requests_what_they_were_promised() -> None:
    engine = FakeEngine(num_blocks=10)
    engine.submit([5] * 16, SamplingParams(max_tokens=15))
    terms = ApprovalTerms(label="rules", pinned=True)
    engine.submit([4] * 12, options=approving(terms))
    outputs = run(engine)
    failed = [output for output in outputs if output.error]
    assert len(outputs) == 2
    [error] = [output.error for output in failed]
    assert error is not None
    assert "a request that is open needs up to 8" in error
    engine.approve([4] * 12, domain=TEAM, label="rules", pinned=True)
    assert engine.cache.approved.num_pinned_blocks == 3


def test_an_expired_pin_is_room_again() -> None:
    engine = FakeEngine(num_blocks=10)
    engine.approve([4] * 16, domain=TEAM, label="rules", pinned=True, ttl_s=0.5)
    clock = engine.parts.clock
    while clock() < 1.0:
        pass
    engine.submit([5] * 20, SamplingParams(max_tokens=5))
    run(engine)


def test_a_look_up_kept_from_before_an_approval_ended_is_not_used() -> None:
    scheduler = SchedulerConfig(max_step_tokens=16, max_running=1)
    engine = FakeEngine(num_blocks=200, scheduler=scheduler)
    engine.approve(RULES, domain=TEAM, label="rules", ttl_s=0.5)
    engine.submit([5] * 30, SamplingParams(max_tokens=600))
    engine.submit([*RULES, 9], PARAMS, options=RequestOptions(domain=ALICE))
    outputs = {output.usage.prompt_tokens: output for output in run(engine)}
    assert outputs[13].usage.cached_tokens == 0


def test_a_prefix_is_invalidated_through_the_engine() -> None:
    engine = FakeEngine()
    engine.approve(RULES, domain=TEAM, label="rules")
    selector = ByPrefix(
        fingerprint=engine.fingerprint, domain=None, tokens=as_tokens(RULES)
    )
    assert engine.cache.invalidate(selector).num_approvals == 1
    assert cached(engine, ALICE) == 0


def test_a_fork_of_a_request_that_approves_is_the_same_approval() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_step_tokens=4, max_running=3))
    options = approving(ApprovalTerms(label="rules"))
    request_id = engine.submit(RULES, options=options)
    engine.step()
    engine.fork(request_id)
    approvals = {output.approval for output in run(engine) if output.approval}
    assert {it.approval_id for it in approvals} == {
        it.approval_id for it in engine.cache.approved.approvals()
    }
