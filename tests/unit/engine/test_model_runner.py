from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig
from transformers.models.auto import AutoModelForCausalLM

from prefold.blocks.table import BlockCopy, BlockId, num_blocks_for
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel, LoadOptions, prepare_model
from prefold.engine.model_runner import ModelRunner
from prefold.errors import InvariantError
from support.tiny_models import make_llama, make_mixtral, make_tokenizer

BLOCK_SIZE = 16
LENGTH = 75


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def load(config: PreTrainedConfig, *, position_offset: int = 0) -> LoadedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config
    )
    options = LoadOptions(position_offset=position_offset)
    return prepare_model(model, make_tokenizer(), options, 2000)


def make_runner(loaded: LoadedModel, num_blocks: int = 40) -> ModelRunner:
    store = KvStore(
        loaded.layout(BLOCK_SIZE, torch.float32),
        num_blocks,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return ModelRunner(loaded, store)


def make_slice(
    tokens: np.ndarray,
    start: int,
    end: int,
    *,
    first_block: int = 0,
    num_logits: int | None = None,
) -> SequenceSlice:
    blocks = np.arange(first_block, first_block + num_blocks_for(end, BLOCK_SIZE))
    return SequenceSlice(
        token_ids=tokens[start:end],
        start=start,
        block_ids=blocks.astype(np.int32)[::-1].copy()
        if first_block
        else blocks.astype(np.int32),
        num_logits=end - start if num_logits is None else num_logits,
    )


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load(make_llama())


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 260, LENGTH)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_chunks_give_the_bits_of_the_whole(
    llama: LoadedModel, tokens: np.ndarray, chunk: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    expected = make_runner(llama).execute(StepPlan(slices=(make_slice(tokens, 0, LENGTH),)))
    runner = make_runner(llama)
    for start in range(0, LENGTH, chunk):
        end = min(start + chunk, LENGTH)
        rows = runner.execute(StepPlan(slices=(make_slice(tokens, start, end),)))
        assert torch.equal(rows, expected[start:end])


def test_experts_give_the_same_bits_in_every_batch(tokens: np.ndarray) -> None:
    mixtral = load(make_mixtral())
    expected = make_runner(mixtral).execute(
        StepPlan(slices=(make_slice(tokens, 0, LENGTH),))
    )
    runner = make_runner(mixtral)
    runner.execute(StepPlan(slices=(make_slice(tokens, 0, 50),)))
    rows = runner.execute(StepPlan(slices=(make_slice(tokens, 50, LENGTH),)))
    assert torch.equal(rows, expected[50:])


def test_strangers_in_the_batch_change_nothing(
    llama: LoadedModel, tokens: np.ndarray
) -> None:
    alone = make_runner(llama).execute(StepPlan(slices=(make_slice(tokens, 0, LENGTH),)))
    strangers = [
        make_slice(np.flip(tokens).copy(), 0, size, first_block=first, num_logits=number)
        for size, first, number in ((1, 10, 1), (33, 15, 0))
    ]
    plan = StepPlan(slices=(strangers[0], make_slice(tokens, 0, LENGTH), strangers[1]))
    mixed = make_runner(llama).execute(plan)
    assert mixed.shape == (1 + LENGTH, llama.vocab_size)
    assert torch.equal(mixed[1:], alone)


def test_only_the_wanted_logits_come_back(llama: LoadedModel, tokens: np.ndarray) -> None:
    runner = make_runner(llama)
    whole = runner.execute(StepPlan(slices=(make_slice(tokens, 0, 40),)))
    last = runner.execute(StepPlan(slices=(make_slice(tokens, 0, 40, num_logits=1),)))
    none = runner.execute(StepPlan(slices=(make_slice(tokens, 0, 40, num_logits=0),)))
    assert torch.equal(last, whole[-1:])
    assert none.shape == (0, llama.vocab_size)


def test_copies_come_before_writes_and_reads(
    llama: LoadedModel, tokens: np.ndarray
) -> None:
    runner = make_runner(llama)
    expected = runner.execute(StepPlan(slices=(make_slice(tokens, 0, 20),)))
    copy = BlockCopy(source=BlockId(0), target=BlockId(7), num_tokens=10)
    piece = SequenceSlice(
        token_ids=tokens[10:20],
        start=10,
        block_ids=np.array([7, 8], np.int32),
        num_logits=10,
    )
    before = runner.store.block_bytes(BlockId(0))

    rows = runner.execute(StepPlan(slices=(piece,), copies=(copy,)))

    assert torch.equal(rows, expected[10:])
    assert runner.store.block_bytes(BlockId(0)) == before


def test_a_position_offset_shifts_every_position(tokens: np.ndarray) -> None:
    plan = StepPlan(slices=(make_slice(tokens, 0, 20),))
    shifted = load(make_llama(), position_offset=17)
    got = make_runner(shifted).execute(plan)
    shifted.model.set_attn_implementation("eager")
    output = shifted.model(
        input_ids=torch.from_numpy(tokens[:20])[None],
        position_ids=torch.arange(17, 37)[None],
        use_cache=False,
    )
    torch.testing.assert_close(got, output.logits[0], rtol=1e-4, atol=1e-4)


def test_calls_in_a_decode_step_do_not_grow_with_the_context(llama: LoadedModel) -> None:
    tokens = np.zeros(1600, np.int64)

    def count_calls(context: int) -> int:
        num_blocks = num_blocks_for(context, BLOCK_SIZE)
        runner = make_runner(llama, 16 * num_blocks)
        slices = tuple(
            make_slice(
                tokens, context - 1, context, first_block=i * num_blocks, num_logits=1
            )
            for i in range(16)
        )
        runner.execute(StepPlan(slices=slices))
        events: Counter[str] = Counter()

        def count(_frame: FrameType, event: str, _arg: object) -> None:
            events[event] += 1

        sys.setprofile(count)
        try:
            runner.execute(StepPlan(slices=slices))
        finally:
            sys.setprofile(None)
        return events["call"]

    assert count_calls(64) == count_calls(1600)


def test_a_store_of_another_model_is_a_bug(llama: LoadedModel) -> None:
    other = load(make_llama(num_key_value_heads=1))
    with pytest.raises(InvariantError):
        ModelRunner(llama, make_runner(other).store)
