"""Log-probabilities of prompts: the same with the cache, and computed once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefold.cache import MissKind
from prefold.engine.config import SchedulerConfig
from prefold.engine.loading import LoadedModel
from prefold.engine.request import FinishReason, RequestOutput, SamplingParams
from support.tiny_engines import COLD, TinyEngine, load_tiny
from support.tiny_models import make_llama

pytestmark = pytest.mark.e2e

ASKING = SamplingParams(max_tokens=0, prompt_logprobs=5, ignore_eos=True)
PLAIN = SamplingParams(max_tokens=1, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(make_llama(), tmp_path_factory.mktemp("llama"))


def prompt_of(loaded: LoadedModel, length: int, seed: int = 0) -> list[int]:
    generator = np.random.default_rng(seed)
    return [int(each) for each in generator.integers(0, loaded.vocab_size, length)]


def test_they_are_those_of_the_model_itself(loaded: LoadedModel) -> None:
    prompt = prompt_of(loaded, 37)
    output = TinyEngine(loaded).run(prompt, ASKING)
    assert output.finish_reason is FinishReason.LENGTH
    assert output.token_ids == ()
    values = output.prompt_logprobs
    assert values is not None
    assert (len(values), values[0]) == (37, None)

    engine = TinyEngine(loaded)
    for position in (1, 15, 16, 17, 36):
        alone = engine.run(
            prompt[:position],
            SamplingParams(max_tokens=1, ignore_eos=True, return_logits=True, logprobs=0),
            COLD,
        )
        assert alone.logits is not None
        expected = torch.log_softmax(alone.logits[0].double(), dim=-1)
        value = values[position]
        assert value is not None
        assert value.token_id == prompt[position]
        assert value.logprob == pytest.approx(expected[prompt[position]].item(), abs=1e-6)
        assert value.top[0][0] == int(expected.argmax())


def test_a_hit_of_kv_alone_is_computed_again_and_says_so(loaded: LoadedModel) -> None:
    engine = TinyEngine(loaded)
    prompt = prompt_of(loaded, 40)
    engine.run(prompt, PLAIN)
    first = engine.run(prompt, ASKING)
    assert first.usage.cached_tokens == 0
    assert first.miss_reason is not None
    assert first.miss_reason.kind is MissKind.NO_LOGPROBS
    second = engine.run(prompt, ASKING)
    # Two blocks, one token less than KV alone would allow. The tail that the first of
    # the three left stands in the way of the one with log-probabilities.
    assert second.usage.cached_tokens == 31
    assert second.prompt_logprobs == first.prompt_logprobs
    assert engine.run(prompt, PLAIN).usage.cached_tokens == 39
    engine.assert_nothing_is_held()


def test_a_repeated_prompt_is_computed_from_its_last_but_one_token(
    loaded: LoadedModel,
) -> None:
    engine = TinyEngine(loaded)
    prompt = prompt_of(loaded, 40)
    first = engine.run(prompt, ASKING)
    second = engine.run(prompt, ASKING)
    assert second.usage.cached_tokens == 38
    assert second.prompt_logprobs == first.prompt_logprobs


def test_the_second_of_two_endings_computes_its_own_part_only(loaded: LoadedModel) -> None:
    engine = TinyEngine(loaded)
    question = prompt_of(loaded, 70)
    endings = [prompt_of(loaded, 5, seed) for seed in (1, 2)]
    engine.run(question + endings[0], ASKING)
    before = engine.counters.num_computed_tokens
    output = engine.run(question + endings[1], ASKING)
    assert output.usage.cached_tokens == 69
    assert engine.counters.num_computed_tokens - before == 6
    assert (
        output.prompt_logprobs
        == TinyEngine(loaded).run(question + endings[1], ASKING, COLD).prompt_logprobs
    )


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 160])
def test_every_length_three_times(loaded: LoadedModel, length: int) -> None:
    engine = TinyEngine(loaded)
    prompt = prompt_of(loaded, length)
    reference = TinyEngine(loaded).run(prompt, ASKING, COLD).prompt_logprobs
    for _ in range(3):
        assert engine.run(prompt, ASKING).prompt_logprobs == reference
    engine.assert_nothing_is_held()


def test_rows_die_with_their_blocks(loaded: LoadedModel) -> None:
    engine = TinyEngine(loaded, num_blocks=8)
    prompt, other = prompt_of(loaded, 60), prompt_of(loaded, 120, 1)
    reference = engine.run(prompt, ASKING).prompt_logprobs
    engine.run(other, PLAIN)
    # The blocks hold another prompt now, and then this one's again, without rows.
    engine.run(prompt, PLAIN)
    again = engine.run(prompt, ASKING)
    assert again.prompt_logprobs == reference
    assert again.usage.cached_tokens == 0


def test_rows_of_another_prompt_in_the_same_blocks_are_never_taken(
    loaded: LoadedModel,
) -> None:
    engine = TinyEngine(loaded, num_blocks=8)
    # Each fills the whole pool, so every block has had rows of the first.
    first, second = prompt_of(loaded, 126), prompt_of(loaded, 126, 1)
    engine.run(first, ASKING)
    engine.run(second, PLAIN)
    output = engine.run(second, ASKING)
    cold = TinyEngine(loaded, num_blocks=8).run(second, ASKING, COLD)
    assert output.prompt_logprobs == cold.prompt_logprobs
    assert output.usage.cached_tokens == 0
    engine.assert_nothing_is_held()


def test_a_batch_with_chunks_and_preemptions_gives_the_same(loaded: LoadedModel) -> None:
    engine = TinyEngine(
        loaded,
        num_blocks=14,
        scheduler=SchedulerConfig(max_step_tokens=24, max_running=6),
    )
    shared = prompt_of(loaded, 33)
    prompts = [shared + prompt_of(loaded, 20 + 7 * seed, seed) for seed in range(6)]
    params = [
        SamplingParams(max_tokens=30, prompt_logprobs=2, logprobs=1, ignore_eos=True)
        if index % 2
        else SamplingParams(max_tokens=30, logprobs=3, ignore_eos=True)
        for index in range(6)
    ]
    outputs = engine.generate(prompts, params)
    assert engine.counters.num_preemptions > 0
    for prompt, each, output in zip(prompts, params, outputs, strict=True):
        alone = TinyEngine(loaded).run(prompt, each, COLD)
        assert output.token_ids == alone.token_ids
        assert output.logprobs == alone.logprobs
        assert output.prompt_logprobs == alone.prompt_logprobs
    engine.assert_nothing_is_held()


def test_forks_report_what_their_parent_does(loaded: LoadedModel) -> None:
    engine = TinyEngine(loaded)
    prompt = prompt_of(loaded, 45)
    params = SamplingParams(max_tokens=4, prompt_logprobs=1, temperature=1.0, seed=3)
    parent = engine.submit(prompt, params)
    engine.step()
    forks = engine.fork(parent, 2)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_work:
        outputs.update({output.request_id: output for output in engine.step()})
    assert len(outputs) == 3
    assert {outputs[fork].prompt_logprobs for fork in forks} == {
        outputs[parent].prompt_logprobs
    }
    engine.assert_nothing_is_held()


@settings(max_examples=25)
@given(data=st.data())
def test_any_order_of_requests_gives_the_same_values(
    loaded: LoadedModel, data: st.DataObject
) -> None:
    engine = TinyEngine(loaded, num_blocks=12)
    base = prompt_of(loaded, 64)
    for _ in range(data.draw(st.integers(2, 6))):
        kept = data.draw(st.sampled_from([0, 5, 16, 30, 32, 47, 64]))
        extra = data.draw(st.sampled_from([1, 3, 16, 40]))
        seed = data.draw(st.integers(0, 2))
        prompt = base[:kept] + prompt_of(loaded, extra, 100 + seed)
        if data.draw(st.booleans()):
            engine.run(prompt, PLAIN)
            continue
        output = engine.run(prompt, ASKING)
        cold = TinyEngine(loaded, num_blocks=12).run(prompt, ASKING, COLD)
        assert output.prompt_logprobs == cold.prompt_logprobs
        engine.assert_nothing_is_held()
