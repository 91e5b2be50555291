"""Swaps between real tiny models: equal bits with a fresh engine, and no old hit."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prefold.blocks.table import TOKEN_DTYPE, TokenIds
from prefold.cache import MissKind
from prefold.engine.assembly import assemble
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.model_runner import ModelRunner
from prefold.engine.model_settings import ModelSettings
from prefold.engine.prepared_model import prepare_swap
from prefold.engine.request import FinishReason, RequestId, RequestOutput, SamplingParams
from prefold.engine.swapping import SwapReceipt
from prefold.errors import ConfigError, IncompatibleModelError
from support.tiny_engines import COLD, assert_equal_outputs, threads
from support.tiny_models import VOCAB_SIZE, make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e

SIZE = 16
SETTINGS = ModelSettings(cache_blocks=128)
PARAMS = SamplingParams(
    max_tokens=6, ignore_eos=True, return_logits=True, logprobs=3, prompt_logprobs=2
)
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
SCALED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)
    with threads(1):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_model(make_llama(), tmp_path / "model")


@pytest.fixture
def engine(path: Path) -> Engine:
    return open_engine(path)


def open_engine(path: Path, settings: ModelSettings = SETTINGS) -> Engine:
    assembly = assemble(path, settings)
    return Engine(assembly.parts, assembly.config)


def draw(num_tokens: int, seed: int = 0) -> TokenIds:
    rng = np.random.default_rng(seed)
    return rng.integers(0, VOCAB_SIZE, num_tokens).astype(TOKEN_DTYPE)


PROMPTS = [draw(5 * SIZE + 3, 1), draw(3 * SIZE, 2), draw(7, 3)]


def assert_same(output: RequestOutput, reference: RequestOutput) -> None:
    """Assert equal tokens, logits and log-probabilities, bit for bit."""
    assert_equal_outputs(output, reference)
    assert output.logprobs == reference.logprobs
    assert output.prompt_logprobs == reference.prompt_logprobs


def assert_like_fresh(engine: Engine, fresh: Engine) -> None:
    """Assert that nothing is hit at first, and equal bits cold and warm."""
    for prompt in PROMPTS:
        assert engine.lookup(prompt).num_hit_tokens == 0
    for is_warm in (False, True):
        for prompt in PROMPTS:
            [output] = engine.generate([prompt], PARAMS)
            [reference] = fresh.generate([prompt], PARAMS)
            assert_same(output, reference)
            assert output.usage.cached_tokens == reference.usage.cached_tokens
            if not is_warm:
                assert output.usage.cached_tokens == 0
            [cold] = engine.generate([prompt], PARAMS, options=COLD)
            assert_same(cold, reference)
    assert_idle(engine)


def assert_idle(engine: Engine) -> None:
    engine.check_invariants()
    counts = engine.cache.counts
    assert (counts.private, counts.shared) == (0, 0)
    assert counts.free + counts.idle == engine.cache.num_blocks


def change_weights(path: Path, engine: Engine) -> SwapReceipt:
    save_model(make_llama(), path, seed=1)
    return engine.swap_model()


def change_rope(path: Path, engine: Engine) -> SwapReceipt:
    config = json.loads((path / "config.json").read_text())
    config["rope_parameters"] = SCALED
    (path / "config.json").write_text(json.dumps(config))
    return engine.swap_model(path)


def change_offset(path: Path, engine: Engine) -> SwapReceipt:
    del path
    return engine.swap_model(position_offset=5)


def change_template(path: Path, engine: Engine) -> SwapReceipt:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return engine.reload_template()


def change_template_by_swap(path: Path, engine: Engine) -> SwapReceipt:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return engine.swap_model()


Change = Callable[[Path, Engine], SwapReceipt]

CHANGES: list[tuple[Change, set[str]]] = [
    (change_weights, {"weights"}),
    (change_rope, {"position_config"}),
    (change_offset, {"position_offset"}),
    (change_template, {"chat_template"}),
    (change_template_by_swap, {"chat_template"}),
]


@pytest.mark.parametrize(("change", "fields"), CHANGES)
def test_after_a_change_nothing_old_is_hit_and_the_bits_are_those_of_a_fresh_engine(
    path: Path, engine: Engine, change: Change, fields: set[str]
) -> None:
    before = engine.generate(PROMPTS, PARAMS)
    assert engine.lookup(PROMPTS[0]).num_hit_tokens > 0
    receipt = change(path, engine)
    assert set(receipt.differing_fields) == fields
    assert receipt.invalidation is not None
    assert receipt.invalidation.num_blocks > 0
    assert engine.lookup(PROMPTS[0]).miss.kind is not MissKind.COMPLETE
    offset = 5 if change is change_offset else 0
    fresh = open_engine(path, replace(SETTINGS, position_offset=offset))
    assert fresh.parts.fingerprint == engine.parts.fingerprint == receipt.fingerprint
    assert fresh.config.limits == engine.config.limits
    assert_like_fresh(engine, fresh)
    is_other = fields != {"chat_template"}
    after = engine.generate(PROMPTS, PARAMS)
    # An offset turns queries and keys alike: other KV, and hardly other logits.
    if change is not change_offset:
        assert is_other == any(
            new.logprobs != old.logprobs for new, old in zip(after, before, strict=True)
        )


def test_nothing_on_disk_has_changed_and_all_hits_are_kept(engine: Engine) -> None:
    before = engine.generate(PROMPTS, PARAMS)
    receipt = engine.swap_model()
    assert receipt.differing_fields == ()
    assert receipt.invalidation is None
    after = engine.generate(PROMPTS, PARAMS)
    for output, reference in zip(after, before, strict=True):
        assert_same(output, reference)
    assert after[0].usage.cached_tokens > 0


def test_files_that_are_written_over_do_not_reach_the_running_model(
    path: Path, engine: Engine
) -> None:
    before = engine.generate(PROMPTS, PARAMS)
    weights = path / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        file.write(bytes(weights.stat().st_size // 4))
        file.truncate()
    after = engine.generate(PROMPTS, PARAMS, options=COLD)
    for output, reference in zip(after, before, strict=True):
        assert_same(output, reference)


def test_the_old_weights_are_let_go_and_the_blocks_are_kept(
    path: Path, engine: Engine
) -> None:
    runner = engine.parts.runner
    assert isinstance(runner, ModelRunner)
    store = runner.store
    old = weakref.ref(runner._loaded.model)
    del runner
    save_model(make_llama(), path, seed=1)
    engine.generate(PROMPTS, PARAMS)
    engine.swap_model()
    gc.collect()
    assert old() is None
    assert isinstance(engine.parts.runner, ModelRunner)
    assert engine.parts.runner.store is store


@pytest.mark.parametrize("drain", [True, False])
def test_running_ones_end_with_the_old_bits_and_the_others_get_the_new_ones(
    path: Path, engine: Engine, *, drain: bool
) -> None:
    old = open_engine(path).generate(PROMPTS, PARAMS)
    running, waiting = PROMPTS[0], PROMPTS[1]
    first = engine.submit(running, PARAMS)
    for _ in range(3):
        engine.step()
    save_model(make_llama(), path, seed=1)
    prepared = prepare_swap(engine.parts, path)
    pending = engine.swapper.begin(prepared, drain=drain, deadline_s=1e9)
    second = engine.submit(waiting, PARAMS)
    # The same prompt: what the running one leaves behind must not be taken.
    third = engine.submit(running, PARAMS)
    outputs: dict[RequestId, RequestOutput] = {}
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_invariants()
    new = open_engine(path).generate(PROMPTS, PARAMS)
    if drain:
        assert_same(outputs[first], old[0])
    else:
        assert outputs[first].finish_reason is FinishReason.ABORTED
        assert outputs[first].error is not None
        assert pending.done().num_ended == 1
    assert_same(outputs[second], new[1])
    assert_same(outputs[third], new[0])
    assert outputs[third].usage.cached_tokens == 0
    assert_idle(engine)


def test_log_probabilities_of_the_old_model_are_not_told_of_a_reply_of_the_new_one(
    path: Path, engine: Engine
) -> None:
    prompt = draw(60 * SIZE, 5)
    params = replace(PARAMS, max_tokens=2)
    engine.generate([prompt[: 20 * SIZE]], params)
    request_id = engine.submit(prompt, params)
    engine.step()
    sequence = engine._replies[request_id].sequence
    assert not sequence.has_reply
    assert sequence.prompt_logprobs is not None
    assert sequence.prompt_logprobs.num_known > 20 * SIZE
    save_model(make_llama(), path, seed=1)
    engine.swap_model(drain=False)
    outputs: dict[RequestId, RequestOutput] = {}
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
    [reference] = open_engine(path).generate([prompt], params)
    assert_same(outputs[request_id], reference)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (make_llama(num_hidden_layers=3), "3 layers.*2 layers"),
        (make_llama(num_key_value_heads=4), "4 heads.*2 heads"),
        (make_llama(hidden_size=64), "16 \\+ 16.*12 \\+ 12"),
    ],
)
def test_a_model_whose_kv_does_not_fit_changes_nothing(
    engine: Engine, tmp_path: Path, config: object, words: str
) -> None:
    before = engine.generate(PROMPTS, PARAMS)
    parts = engine.parts
    other = save_model(config, tmp_path / "other")  # type: ignore[arg-type]
    with pytest.raises(IncompatibleModelError, match=f"{words}.*restart"):
        engine.swap_model(other)
    assert_unchanged(engine, parts.fingerprint.digest(), before)


@pytest.mark.parametrize("damage", ["missing", "weights", "config", "tokenizer"])
def test_what_cannot_be_loaded_changes_nothing(
    path: Path, engine: Engine, damage: str
) -> None:
    before = engine.generate(PROMPTS, PARAMS)
    digest = engine.parts.fingerprint.digest()
    source = path
    if damage == "missing":
        source = path / "nowhere"
    elif damage == "weights":
        (path / "model.safetensors").write_bytes(b"none")
    elif damage == "config":
        (path / "config.json").write_text("{}")
    else:
        (path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError):
        engine.swap_model(source)
    assert_unchanged(engine, digest, before)


def assert_unchanged(engine: Engine, digest: bytes, before: list[RequestOutput]) -> None:
    assert engine.parts.fingerprint.digest() == digest
    assert not engine.swapper.is_pending
    for output, reference in zip(engine.generate(PROMPTS, PARAMS), before, strict=True):
        assert_same(output, reference)
    assert engine.lookup(PROMPTS[0]).num_hit_tokens > 0
    assert_idle(engine)


def test_a_tokenizer_that_was_edited_is_not_taken_for_a_template(
    path: Path, engine: Engine
) -> None:
    engine.generate(PROMPTS, PARAMS)
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
    tokenizer.save_pretrained(path)
    with pytest.raises(ConfigError, match="swap the model"):
        engine.reload_template()
    assert engine.lookup(PROMPTS[0]).num_hit_tokens > 0
    assert "tokenizer" in engine.swap_model().differing_fields
    assert engine.lookup(PROMPTS[0]).num_hit_tokens == 0


def test_under_a_stream_of_requests_no_reply_is_of_two_models(path: Path) -> None:
    async def test() -> None:
        engine = open_engine(path)
        prompts = [draw(20 + 7 * (n % 6), n % 6) for n in range(30)]
        references = [open_engine(path).generate(prompts, PARAMS, options=COLD)]
        server = AsyncEngine(engine)
        await server.start()
        try:

            async def ask(number: int) -> RequestOutput:
                await asyncio.sleep(0.05 * number)
                stream = await server.submit(
                    prompts[number], PARAMS, options=RequestOptions()
                )
                [output] = await stream.outputs()
                return output

            asking = [asyncio.ensure_future(ask(number)) for number in range(30)]
            await asyncio.sleep(0.3)
            save_model(make_llama(), path, seed=1)
            receipt = await server.swap_model()
            assert receipt.differing_fields == ("weights",)
            assert receipt.num_ended == 0
            outputs = await asyncio.gather(*asking)
            await server.call(lambda it: it.check_invariants())
        finally:
            await server.stop(drain_s=0.0)
        references.append(open_engine(path).generate(prompts, PARAMS, options=COLD))
        used = [
            [is_same(output, version[n]) for version in references]
            for n, output in enumerate(outputs)
        ]
        assert all(any(each) for each in used)
        assert {tuple(each) for each in used} == {(True, False), (False, True)}

    asyncio.run(asyncio.wait_for(test(), 120))


def is_same(output: RequestOutput, reference: RequestOutput) -> bool:
    return (output.token_ids, output.logprobs, output.prompt_logprobs) == (
        reference.token_ids,
        reference.logprobs,
        reference.prompt_logprobs,
    )
