"""Whole steps whose layers run in one compiled call, against the same layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Event, Thread

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig

from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.blocks.table import num_blocks_for
from prefold.engine import _kernels
from prefold.engine.adapter import Adapter
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.fused_layer import FusedLayer, StackRun
from prefold.engine.fused_stack import FusedDecoder, fused_decoder_of
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel
from prefold.engine.model_runner import ModelRunner
from prefold.engine.native_attention import NativeAttention, NativeSites
from prefold.engine.quantization import QUANTIZED, scale_itemsize
from prefold.engine.step_attention import order_for
from prefold.errors import UnusableStepError
from support.fused_models import fused_of, layers_of, load
from support.layer_adapters import make_adapter
from support.tiny_models import make_llama, make_mistral, make_qwen2

BLOCK_SIZE = 16
NUM_BLOCKS = 60
FAMILIES = {"llama": make_llama(), "qwen2": make_qwen2(), "mistral": make_mistral()}
TOKENS = np.random.default_rng(0).integers(0, 260, 400)

#: (first block, start, end) of a step's slices: chunks, decode, a shared prefix.
STEPS = (
    ((0, 0, 70), (10, 0, 33)),
    ((0, 70, 71), (10, 33, 34), (20, 0, 5)),
    ((0, 71, 72), (10, 34, 60), (20, 5, 6)),
    ((30, 0, 300),),
    ((30, 300, 332), (0, 72, 73)),
)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def decoder_of(loaded: LoadedModel) -> FusedDecoder:
    decoder = fused_decoder_of(loaded.model.get_submodule("model"))
    assert decoder is not None
    return decoder


def make_runner(loaded: LoadedModel, dtype: torch.dtype) -> ModelRunner:
    layout = loaded.layout(BLOCK_SIZE, dtype)
    assert layout.order is order_for("cpu")
    assert layout.scale_itemsize == scale_itemsize(dtype)
    store = KvStore(layout, NUM_BLOCKS, dtype=dtype, device=torch.device("cpu"))
    return ModelRunner(loaded, store, row_multiple=1)


def plan_of(
    step: tuple[tuple[int, int, int], ...], adapters: Sequence[Adapter | None] = ()
) -> StepPlan:
    given = [*adapters, *[None] * len(step)]
    return StepPlan(
        slices=tuple(
            SequenceSlice(
                adapter=given[index],
                token_ids=TOKENS[start:end],
                start=start,
                block_ids=np.arange(
                    first, first + num_blocks_for(end, BLOCK_SIZE), dtype=np.int32
                ),
                num_logits=end - start,
            )
            for index, (first, start, end) in enumerate(step)
        )
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, QUANTIZED])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_steps_have_the_bits_of_layer_after_layer(
    family: str, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(threads)
    loaded = load(FAMILIES[family], max_length=400)
    runners = make_runner(loaded, dtype), make_runner(loaded, dtype)
    decoder = decoder_of(loaded)
    stack = decoder.stack
    assert stack is not None
    runs: list[int] = []
    inner = NativeAttention.run_stack

    def count(own: NativeAttention, run: StackRun) -> None:
        runs.append(run.out.shape[1])
        inner(own, run)

    monkeypatch.setattr(NativeAttention, "run_stack", count)
    for step in STEPS:
        decoder.stack = stack
        found = runners[0].execute(plan_of(step))
        decoder.stack = None
        assert torch.equal(found, runners[1].execute(plan_of(step)))
        assert torch.isfinite(found).all()
    assert len(runs) == len(STEPS)
    numbers = [runner.store.numbers.view(torch.uint8) for runner in runners]
    assert torch.equal(*numbers)


def test_adapters_have_the_bits_of_layer_after_layer() -> None:
    loaded = load(make_llama(), max_length=400)
    runners = [make_runner(loaded, torch.float32) for _ in range(3)]
    decoder = decoder_of(loaded)
    stack = decoder.stack
    adapters = [make_adapter(loaded, 1, rank=3), None, make_adapter(loaded, 2, rank=20)]
    for step in STEPS:
        decoder.stack = stack
        found = runners[0].execute(plan_of(step, adapters))
        without = runners[2].execute(plan_of(step))
        decoder.stack = None
        assert torch.equal(found, runners[1].execute(plan_of(step, adapters)))
        assert not torch.equal(found, without)


def test_numbers_that_a_narrower_type_does_not_have_are_refused() -> None:
    def enlarge(model: nn.Module) -> None:
        # Keys and values are beyond what float16 can be.
        norm = model.get_submodule("model.layers.1.input_layernorm")
        next(norm.parameters()).data.fill_(1e6)

    loaded = load(make_llama(), change=enlarge)
    plan = plan_of(((0, 0, 9),))
    assert torch.isfinite(make_runner(loaded, torch.float32).execute(plan)).all()
    with pytest.raises(UnusableStepError):
        make_runner(loaded, torch.float16).execute(plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_that_are_not_numbers_are_named(dtype: torch.dtype) -> None:
    loaded = load(make_llama())
    runner = make_runner(loaded, dtype)
    bad = 7
    table = loaded.model.get_input_embeddings()
    before = table.forward

    def forward(ids: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = before(ids).clone()
        states[ids == TOKENS[bad]] = float("nan")
        return states

    vars(table)["forward"] = forward
    # The second slice has the token at which embeddings are no numbers.
    good, other = ((0, 0, bad), (10, 0, bad + 1))
    assert not np.isin(TOKENS[:bad], TOKENS[bad]).any()
    with pytest.raises(UnusableStepError) as caught:
        runner.execute(plan_of((good, other)))
    assert caught.value.indices == (1,)
    assert torch.isfinite(runner.execute(plan_of((good,)))).all()


def fused_layers(config: PreTrainedConfig) -> list[FusedLayer]:
    return [fused_of(each) for each in layers_of(load(config))]


def one_block(block: int, count: int, *, block_size: int = 16) -> _kernels.Step:
    """Return a step of one sequence's first tokens."""
    return _kernels.Step(
        np.array([block], np.int32),
        np.array([1]),
        np.array([0]),
        np.array([count]),
        block_size=block_size,
    )


class Call:
    """Arguments of a stack's run, of which a test changes one."""

    def __init__(self, layers: list[FusedLayer]) -> None:
        shape = layers[0].shape
        rows, size = 5, shape.size
        self.numbers = torch.zeros(4 * len(layers) * 2 * shape.kv_heads * 16 * size)
        pool = _kernels.Pool(
            self.numbers,
            block_numbers=self.numbers.numel() // 4,
            kernel=_kernels.kernel_names()[0],
        )
        self.step = one_block(1, rows)
        area = shape.kv_heads * 16 * size
        self.facts = {
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "key_size": size,
            "value_size": size,
            "key_scale_offset": None,
            "value_scale_offset": None,
            "scaling": 0.3,
            "window": None,
            "softcap": None,
            "sinks": None,
        }
        self.pool = pool
        self.sites = [
            self.site(key_offset=2 * i * area, value_offset=(2 * i + 1) * area)
            for i in range(len(layers))
        ]
        self.rows: dict[str, torch.Tensor] = {
            "states": torch.randn(1, rows, shape.width),
            "cosine": torch.randn(1, rows, size),
            "sine": torch.randn(1, rows, size),
            "query": torch.zeros(1, rows, shape.heads, size),
            "key": torch.zeros(1, rows, shape.kv_heads, size),
            "value": torch.zeros(1, rows, shape.kv_heads, size),
            "attended": torch.zeros(1, rows, shape.heads, size),
            "spare": torch.zeros(1, rows, shape.width),
            "out": torch.zeros(1, rows, shape.width),
        }
        self.out = self.rows["out"]
        self.adapted: list[list[tuple[int, int, _kernels.LayerAdapter]]] = [
            [] for _ in layers
        ]
        self.num_threads = 2
        self.stack = _kernels.Stack([e.start for e in layers], [e.end for e in layers])

    def site(self, **changed: object) -> _kernels.AttentionSite:
        # Some of what tests change them to is of the wrong type on purpose.
        return _kernels.AttentionSite(self.pool, **{**self.facts, **changed})  # type: ignore[arg-type]

    def run(self) -> bool:
        return self.stack.run(
            self.step,
            self.sites,
            *self.rows.values(),
            adapted=self.adapted,
            num_threads=self.num_threads,
        )


def check_refused(call: Call, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call.run()
    assert not call.numbers.any()
    assert not call.out.any()


ROW_NAMES = (
    "states",
    "cosine",
    "sine",
    "query",
    "key",
    "value",
    "attended",
    "spare",
    "out",
)


@pytest.mark.parametrize("name", ROW_NAMES)
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(name: str) -> None:
    call = Call(fused_layers(make_llama()))
    assert call.run()
    assert call.numbers.any()
    good = call.rows[name]
    good.zero_()
    for wrong in (
        good[:, :-1],
        good.double(),
        good.to(torch.bfloat16),
        torch.cat([good, good], -1)[..., ::2],
        good.to("meta"),
    ):
        call.numbers.zero_()
        call.out.zero_()
        call.rows[name] = wrong
        check_refused(call, "must|fewer rows")
    call.rows[name] = good
    assert call.run()


def test_whatever_else_does_not_fit_is_refused() -> None:
    layers = fused_layers(make_llama())
    call = Call(layers)
    call.sites.pop()
    check_refused(call, "for each layer")
    call = Call(layers)
    call.adapted.pop()
    check_refused(call, "for each layer")
    call = Call(layers)
    call.num_threads = 0
    check_refused(call, "num_threads")
    call = Call(layers)
    call.step = one_block(4, 5)
    check_refused(call, "outside the pool")
    call = Call(layers)
    call.step = one_block(1, 6)
    check_refused(call, "fewer rows")
    call = Call(layers)
    call.step = one_block(1, 5, block_size=32)
    check_refused(call, "do not fit into a block")
    call = Call(layers)
    call.sites[0] = call.site(key_offset=0, value_offset=1, key_size=4)
    check_refused(call, "shape")
    with pytest.raises(ValueError, match="as many starts"):
        _kernels.Stack([layers[0].start], [])
    other = fused_layers(make_llama())
    with pytest.raises(ValueError, match="share a workspace"):
        _kernels.Stack([layers[0].start, other[0].start], [layers[0].end, other[0].end])


@pytest.mark.parametrize("wrong", [None, 1, "site"])
def test_objects_of_other_kinds_are_refused(wrong: object) -> None:
    # Types are waived here because they are what is wrong.
    layers = fused_layers(make_llama())
    call = Call(layers)
    call.sites[0] = wrong  # type: ignore[call-overload]
    check_refused(call, "AttentionSite")
    for rows in (wrong, [wrong], [(0, 1, wrong)], [(0, "one", wrong)], [(0, 1)]):
        call = Call(layers)
        call.adapted[0] = rows  # type: ignore[call-overload]
        check_refused(call, "adapted rows")
    with pytest.raises(ValueError, match="made of"):
        _kernels.Stack([wrong], [layers[0].end])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="made of"):
        _kernels.Stack([layers[0].start], [layers[0].start])  # type: ignore[list-item]


def test_lists_may_be_emptied_while_a_pass_runs() -> None:
    layers = fused_layers(make_llama())
    call = Call(layers)
    starts, ends = [each.start for each in layers], [each.end for each in layers]
    call.stack = _kernels.Stack(starts, ends)
    starts.clear()
    ends.clear()
    wanted = Call(layers)
    wanted.rows["states"] = call.rows["states"]
    wanted.rows["cosine"], wanted.rows["sine"] = call.rows["cosine"], call.rows["sine"]
    stop = Event()

    def empty_lists() -> None:
        sites, adapted = list(call.sites), list(call.adapted)
        while not stop.is_set():
            call.sites.clear()
            call.adapted.clear()
            call.sites.extend(sites)
            call.adapted.extend(adapted)

    thread = Thread(target=empty_lists)
    thread.start()
    try:
        for _ in range(200):
            try:
                call.run()
            except ValueError:
                # The lists were empty just then.
                continue
    finally:
        stop.set()
        thread.join()
    call.run()
    wanted.run()
    assert torch.equal(call.out, wanted.out)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"heads": 0}, "heads"),
        ({"kv_heads": 0}, "heads"),
        ({"heads": 5, "kv_heads": 2}, "multiple"),
        ({"key_size": 0}, "size"),
        ({"value_size": 257}, "size"),
        ({"scaling": float("nan")}, "scaling"),
        ({"window": 0}, "window"),
        ({"softcap": -1.0}, "softcap"),
        ({"sinks": torch.zeros(3)}, "sinks"),
        ({"sinks": torch.zeros(4, dtype=torch.float64)}, "sinks"),
        ({"key_scale_offset": 0}, "scales"),
    ],
)
def test_a_site_that_cannot_be_is_refused(changed: dict[str, object], match: str) -> None:
    call = Call(fused_layers(make_llama()))
    with pytest.raises(ValueError, match=match):
        call.site(**{"key_offset": 0, "value_offset": 0, **changed})


def test_sites_are_made_once_for_what_does_not_change() -> None:
    loaded = load(make_llama())
    store = make_runner(loaded, torch.float32).store
    sites = NativeSites(store, _kernels.kernel_names()[0])
    call = fused_of(layers_of(loaded)[0]).facts
    one = sites.of_call(call)
    assert sites.of_call(call) is one
    others = [
        replace(call, window=5),
        replace(call, softcap=2.0),
        replace(call, scaling=0.5),
        replace(call, layer=1),
    ]
    made = [sites.of_call(each) for each in others]
    assert len({id(each) for each in (one, *made)}) == len(others) + 1
    calls = (call, others[-1])
    assert sites.of_stack(calls) is sites.of_stack(calls)
    # Sinks are a call's own, and may be other ones in the next call.
    sunk = replace(call, sinks=torch.zeros(call.query.shape[1]))
    assert sites.of_call(sunk) is not sites.of_call(sunk)
    with_sinks = (sunk, *calls)
    assert sites.of_stack(with_sinks) is not sites.of_stack(with_sinks)
