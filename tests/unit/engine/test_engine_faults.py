"""What an engine does when something beneath it goes wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prefold.cache import MissKind
from prefold.engine.batch import StepPlan
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.loading import LoadedModel
from prefold.engine.request import FinishReason, SamplingParams
from prefold.errors import EngineStoppedError, RequestError, UnusableStepError
from support.fake_engine import FakeEngine
from support.sessions import make_session
from support.tiny_engines import TinyEngine, load_tiny
from support.tiny_models import make_llama

PROMPT = [1, 2, 3] * 5
SHORT = SamplingParams(max_tokens=2, ignore_eos=True)


def assert_nothing_is_held(engine: FakeEngine) -> None:
    engine.check_invariants()
    counts = engine.cache.counts
    assert counts.private == counts.shared == 0


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(make_llama(), tmp_path_factory.mktemp("llama"))


def test_kv_that_is_no_number_is_not_kept(loaded: LoadedModel) -> None:
    engine = TinyEngine(
        loaded, scheduler=SchedulerConfig(max_step_tokens=32, max_running=4)
    )
    prompt = np.random.default_rng(0).integers(0, 250, 100)
    num_calls = 0

    def spoil_first(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return output * float("nan") if num_calls == 1 else output

    layer = loaded.model.get_submodule("model.layers.0.self_attn.v_proj")
    handle = layer.register_forward_hook(spoil_first)
    try:
        spoilt = engine.run(prompt, SHORT)
    finally:
        handle.remove()
    assert spoilt.finish_reason is FinishReason.FAILED
    assert spoilt.usage.cached_tokens == 0
    engine.assert_nothing_is_held()
    again = engine.run(prompt, SHORT)
    assert again.finish_reason is FinishReason.LENGTH
    assert again.usage.cached_tokens == 0
    assert again.token_ids == TinyEngine(loaded).run(prompt, SHORT).token_ids


def test_who_shares_a_step_with_unusable_kv_goes_on(loaded: LoadedModel) -> None:
    engine = TinyEngine(loaded)
    good, bad = list(range(3, 40)), [250, 9, 9]
    weight = loaded.model.get_parameter("model.embed_tokens.weight")
    kept = weight[250].clone()
    with torch.no_grad():
        weight[250] = float("inf")
    try:
        outputs = engine.generate([good, bad], SHORT)
    finally:
        with torch.no_grad():
            weight[250] = kept
    assert [output.finish_reason for output in outputs] == [
        FinishReason.LENGTH,
        FinishReason.FAILED,
    ]
    assert outputs[0].token_ids == TinyEngine(loaded).run(good, SHORT).token_ids
    engine.assert_nothing_is_held()
    assert engine.lookup([*bad, 1]).miss.kind is not MissKind.COMPLETE


def test_the_runner_names_the_slices_that_are_unusable() -> None:
    assert UnusableStepError((1, 4)).indices == (1, 4)


def test_a_token_that_has_no_text_fails_its_own_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, _ = make_session(num_blocks=64)
    engine = session.engine
    tokenizer = session.tokenizer
    [before] = engine.generate([PROMPT], SamplingParams(max_tokens=6, ignore_eos=True))
    poison = before.token_ids[2]
    decode = type(tokenizer).decode

    def refuse(ids: list[int], **options: bool) -> str:
        if poison in ids:
            raise ValueError("bytes must be in range(0, 256)")
        return str(decode(tokenizer, ids, **options))

    monkeypatch.setattr(tokenizer, "decode", refuse)
    long = SamplingParams(max_tokens=6, ignore_eos=True)
    other = SamplingParams(max_tokens=6, ignore_eos=True, logit_bias=((poison, -100.0),))
    outputs = engine.generate([PROMPT, PROMPT[1:]], [long, other])
    assert outputs[0].finish_reason is FinishReason.FAILED
    assert outputs[0].error is not None
    assert "text" in outputs[0].error
    assert outputs[1].finish_reason is FinishReason.LENGTH
    engine.check_invariants()
    counts = engine.cache.counts
    assert counts.private == counts.shared == 0


@pytest.mark.parametrize("change", [{"options": "mine"}, {"params": None}, {"params": 5}])
def test_values_of_a_wrong_type_are_refused_and_leave_nothing(
    change: dict[str, object],
) -> None:
    engine = FakeEngine()
    arguments: dict[str, object] = {"params": SHORT, "options": RequestOptions(), **change}
    with pytest.raises(RequestError, match="must be"):
        engine.submit(
            PROMPT,
            arguments["params"],  # type: ignore[arg-type]
            options=arguments["options"],  # type: ignore[arg-type]
        )
    assert engine.num_open == 0
    assert not engine.has_work
    assert_nothing_is_held(engine)
    engine.close()


def test_an_interrupted_forward_pass_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine()
    execute = type(engine.parts.runner).execute

    def interrupt(_runner: object, _plan: StepPlan) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(engine.parts.runner), "execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([PROMPT], SHORT)
    monkeypatch.setattr(type(engine.parts.runner), "execute", execute)
    assert_nothing_is_held(engine)
    assert engine.generate([PROMPT], SHORT)[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("name", ["plan", "advance", "end"])
def test_an_engine_that_was_cut_off_in_its_bookkeeping_refuses_to_go_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"prefold.engine.scheduler.Scheduler.{name}", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([PROMPT], SHORT)
    monkeypatch.undo()
    for call in (engine.step, lambda: engine.submit(PROMPT, SHORT)):
        with pytest.raises(EngineStoppedError, match="make a new one"):
            call()
    engine.close()


def test_a_prompt_that_is_not_unicode_is_refused() -> None:
    session, _ = make_session(num_blocks=64)
    with pytest.raises(RequestError, match=r"character 3 .* UTF-8"):
        session.engine.submit("caf\udce9", SHORT)
