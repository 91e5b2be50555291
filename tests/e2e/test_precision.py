"""Narrower numbers: the same bits cold and warm, apart from each other, and smaller."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from prefold.blocks.table import TOKEN_DTYPE, BlockId
from prefold.cli.main import main
from prefold.engine.assembly import assemble
from prefold.engine.config import SchedulerConfig
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.model_settings import ModelSettings
from prefold.engine.native import HAS_KERNELS, REFERENCE
from prefold.engine.prepared_model import prepare_swap
from prefold.engine.row_probe import Exactness
from prefold.engine.verification import settings_of
from prefold.errors import IncompatibleModelError
from support.identity_matrix import Corner, Side, run
from support.tiny_engines import (
    COLD,
    TinyEngine,
    are_equal_outputs,
    assert_equal_outputs,
    greedy,
    threads,
)
from support.tiny_models import VOCAB_SIZE, make_llama, save_model

pytestmark = pytest.mark.e2e

KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Heads as wide as models of use have them, and logits that 16 bits can hold.
    config = make_llama(
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.05,
    )
    return save_model(config, tmp_path_factory.mktemp("llama"))


def draw(num_tokens: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, VOCAB_SIZE, num_tokens).astype(TOKEN_DTYPE)


def reference(source: Path) -> LoadedModel:
    return load_model(source, LoadOptions(attention=REFERENCE))


# -- the command -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "attention"),
    [
        ("bfloat16", "bfloat16", None),
        ("float16", "float16", None),
        ("float32", "int8", None),
        ("float32", "int8", "reference"),
    ],
)
def test_verify_finds_no_bit_that_differs(
    source: Path,
    dtype: str,
    kv_dtype: str,
    attention: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--dtype", dtype, "--kv-dtype", kv_dtype, "--max-model-len", "200"]
    if attention is not None:
        options += ["--attention", attention]
    assert main(["verify", str(source), *options]) == 0
    assert "have the same bits" in capsys.readouterr().out


def test_equal_bits_are_promised_where_the_probe_found_them(source: Path) -> None:
    assembly = assemble(source, ModelSettings(dtype="bfloat16", cache_blocks=1))
    assert assembly.exactness.is_exact
    assert settings_of(assembly, is_full=False).tolerance == 0
    inexact = Exactness(is_exact=False, row_multiple=16, detail="")
    doubtful = dataclasses.replace(assembly, exactness=inexact)
    assert settings_of(doubtful, is_full=False).tolerance == 5e-2


# -- under pressure --------------------------------------------------------------------


@pytest.mark.parametrize("attention", [None, REFERENCE])
def test_int8_stays_exact_through_eviction_and_preemption(
    source: Path, attention: str | None
) -> None:
    loaded = load_model(source, LoadOptions(attention=attention))
    config = SchedulerConfig(max_step_tokens=24, max_running=8)
    engine = TinyEngine(loaded, num_blocks=9, scheduler=config, kv_dtype=torch.int8)
    prompts = [np.concatenate((draw(20), draw(25 + seed, seed))) for seed in range(5)]
    cold = [engine.run(prompt, greedy(12), COLD) for prompt in prompts]
    for _ in range(2):
        outputs = engine.generate(prompts, greedy(12))
        for output, alone in zip(outputs, cold, strict=True):
            assert_equal_outputs(output, alone)
        engine.assert_nothing_is_held()
    assert engine.counters.num_preemptions > 0
    assert engine.cache.snapshot().num_evicted_blocks > 0


def test_int8_is_what_is_attended_to_also_in_the_chunk_that_wrote_it(
    source: Path,
) -> None:
    # Were new tokens attended to as they are, the first logits would be those of float32.
    loaded = reference(source)
    prompt = draw(40)
    whole, rounded = (
        TinyEngine(loaded, kv_dtype=kv_dtype).run(prompt, greedy(1))
        for kv_dtype in (torch.float32, torch.int8)
    )
    assert not are_equal_outputs(whole, rounded)
    assert whole.logits is not None
    assert rounded.logits is not None
    difference = (whole.logits - rounded.logits).abs().max() / whole.logits.abs().max()
    assert difference < 0.1


# -- scales ----------------------------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
def test_the_bytes_of_a_block_are_all_there_is_to_it(
    kv_dtype: torch.dtype, tmp_path: Path
) -> None:
    # As a tier would: blocks leave one store as bytes and come into another.
    corner = Corner(Side(kv_dtype=kv_dtype), tmp_path)
    prompt = draw(64)
    cache, before, after = corner.make_cache(), corner.make_store(), corner.make_store()
    cold = run(corner.make_engine(cache, before), prompt)
    for number in range(before.num_blocks):
        put_block(after, BlockId(number), before.block_bytes(BlockId(number)))
    moved = run(corner.make_engine(cache, after), prompt)
    assert moved.usage.cached_tokens == len(prompt) - 1
    assert_equal_outputs(moved, cold)


def put_block(store: KvStore, block: BlockId, data: bytes) -> None:
    size = store.layout.block_bytes
    assert len(data) == size
    place = store.numbers.view(torch.uint8)[block * size :][:size]
    place.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def test_numbers_without_their_scales_are_another_answer(tmp_path: Path) -> None:
    corner = Corner(Side(kv_dtype=torch.int8), tmp_path)
    prompt = draw(64)
    cache, store = corner.make_cache(), corner.make_store()
    cold = run(corner.make_engine(cache, store), prompt)
    for layer in range(len(store.layout.layers)):
        for plane in (store.keys(layer), store.values(layer)):
            assert plane.scales is not None
            plane.scales.fill_(1.0)
    assert not are_equal_outputs(run(corner.make_engine(cache, store), prompt), cold)


# -- room ------------------------------------------------------------------------------


def test_int8_holds_three_and_a_half_times_the_tokens_in_the_same_bytes(
    source: Path,
) -> None:
    room = 3 << 20
    found = {}
    for kv_dtype in ("float32", "bfloat16", "float16", "int8"):
        settings = ModelSettings(kv_dtype=kv_dtype, cache_memory=room)
        assembly = assemble(source, settings)
        origin = assembly.parts.origin
        assert origin is not None
        store = origin.store
        held = store.numbers.numel() * store.numbers.element_size()
        # Of the block for padding nobody speaks.
        assert held - assembly.layout.block_bytes == assembly.cache_bytes <= room
        assert room - assembly.cache_bytes < assembly.layout.block_bytes
        assert len(store.block_bytes(BlockId(0))) == assembly.layout.block_bytes
        found[kv_dtype] = assembly.num_cache_tokens
    assert found["int8"] >= 3.5 * found["float32"]
    assert found["bfloat16"] == found["float16"] == 2 * found["float32"]


def test_a_model_whose_blocks_have_no_scales_cannot_take_the_place_of_one(
    source: Path, tmp_path: Path
) -> None:
    assembly = assemble(source, ModelSettings(kv_dtype="int8", cache_blocks=4))
    other = save_model(make_llama(num_key_value_heads=1), tmp_path / "other")
    with pytest.raises(IncompatibleModelError, match="numbers of 1 bytes with scales of 4"):
        prepare_swap(assembly.parts, other)


@pytest.mark.skipif(not HAS_KERNELS, reason="the kernels were not built")
def test_the_reference_and_the_kernel_agree_about_int8(source: Path) -> None:
    prompt = draw(40)
    outputs = [
        TinyEngine(
            load_model(source, LoadOptions(attention=attention)), kv_dtype=torch.int8
        ).run(prompt, greedy(1))
        for attention in (None, REFERENCE)
    ]
    ours, theirs = (output.logits for output in outputs)
    assert ours is not None
    assert theirs is not None
    # A number that lies between two whole ones may fall to either side.
    assert (ours - theirs).abs().max() < 1e-2 * theirs.abs().max()
