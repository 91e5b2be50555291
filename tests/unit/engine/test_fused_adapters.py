"""Adapters within fused layers: the bits that hooks on the single parts would give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig

from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.engine import _kernels
from prefold.engine.adapted_rows import AdaptedRows
from prefold.engine.adapter_hooks import AdapterHooks
from prefold.engine.fused_layer import ADAPTED_PARTS
from prefold.engine.loading import LoadedModel
from prefold.errors import InvariantError
from support.fused_models import fused_of, layers_of, load, run
from support.layer_adapters import make_adapter
from support.tiny_models import make_llama, make_qwen2

pytestmark = pytest.mark.usefixtures("_inference")

SOME = ("self_attn.v_proj", "mlp.down_proj")


@pytest.fixture
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def run_adapted(
    loaded: LoadedModel, num_rows: int, rows: tuple[AdaptedRows, ...]
) -> tuple[torch.Tensor, int]:
    """Return the logits, and how many of the model's modules have hooks meanwhile."""
    with AdapterHooks(loaded.model).over(rows):
        num_hooked = sum(bool(m._forward_hooks) for m in loaded.model.modules())
        return run(loaded, num_rows), num_hooked


def split_up(loaded: LoadedModel) -> None:
    for layer in layers_of(loaded):
        del vars(layer)["forward"]


@pytest.mark.parametrize("config", [make_llama(), make_qwen2()], ids=["llama", "qwen2"])
@pytest.mark.parametrize("num_rows", [1, 7, 64, 1100])
def test_bits_are_those_of_hooks_on_the_parts(
    config: PreTrainedConfig, num_rows: int
) -> None:
    fused, apart = load(config), load(config)
    split_up(apart)
    one = make_adapter(fused, 1, rank=4)
    two = make_adapter(fused, 2, rank=17, parts=SOME)
    edges = (0, num_rows // 3, num_rows // 2, num_rows)
    rows = tuple(
        AdaptedRows(adapter=adapter, start=start, end=end)
        for adapter, start, end in (
            (one, edges[0], edges[1]),
            (two, edges[1], edges[2]),
            (one, edges[2], edges[3]),
        )
        if start < end
    )
    found, num_hooked = run_adapted(fused, num_rows, rows)
    wanted, num_hooked_apart = run_adapted(apart, num_rows, rows)
    assert torch.equal(found, wanted)
    assert (num_hooked, num_hooked_apart > 0) == (0, True)
    # And adapters do something, to their own rows only.
    plain = run(fused, num_rows)
    assert not torch.equal(found, plain)
    middle, _ = run_adapted(fused, num_rows, rows[-1:])
    assert torch.equal(middle[: rows[-1].start], plain[: rows[-1].start])


def test_a_layer_with_a_hook_of_its_own_gets_hooks_for_the_adapter() -> None:
    fused, apart = load(make_llama()), load(make_llama())
    split_up(apart)
    rows = (AdaptedRows(adapter=make_adapter(fused, 1, rank=4), start=1, end=5),)
    seen: list[nn.Module] = []
    part = layers_of(fused)[0].get_submodule("self_attn.k_proj")
    handle = part.register_forward_hook(lambda module, *_: seen.append(module))
    found, num_hooked = run_adapted(fused, 6, rows)
    handle.remove()
    assert num_hooked >= len(ADAPTED_PARTS)
    assert seen == [part]
    assert torch.equal(found, run_adapted(apart, 6, rows)[0])


def test_after_a_step_nothing_is_left() -> None:
    loaded = load(make_llama())
    plain = run(loaded, 5)
    rows = (AdaptedRows(adapter=make_adapter(loaded, 1, rank=4), start=0, end=5),)
    run_adapted(loaded, 5, rows)
    assert torch.equal(run(loaded, 5), plain)
    with pytest.raises(ZeroDivisionError), AdapterHooks(loaded.model).over(rows):
        raise ZeroDivisionError
    assert torch.equal(run(loaded, 5), plain)


def test_an_adapter_is_never_dropped_silently() -> None:
    loaded = load(make_llama())
    layer = layers_of(loaded)[0]
    adapter = make_adapter(loaded, 1, rank=4)
    rows = (AdaptedRows(adapter=adapter, start=0, end=1),)
    with AdapterHooks(loaded.model).over(rows):
        assert fused_of(layer).adapted
        with pytest.raises(InvariantError, match="as no step calls it"):
            layer(torch.zeros(1, 1, 48))


def test_what_does_not_fit_is_refused_before_anything_is_computed() -> None:
    loaded = load(make_llama())
    fused = fused_of(layers_of(loaded)[0])
    kernel, workspace = _kernels.kernel_names()[0], _kernels.LinearWorkspace()

    def panels(outputs: int, inputs: int) -> _kernels.Panels:
        held = torch.zeros(-(-outputs // 16), inputs, 16)
        return _kernels.Panels(
            held, outputs=outputs, bias=None, workspace=workspace, kernel=kernel
        )

    none: list[tuple[_kernels.Panels, _kernels.Panels, float] | None] = [None] * 7
    with pytest.raises(ValueError, match="an entry for each"):
        _kernels.LayerAdapter(none[:6])
    with pytest.raises(ValueError, match="one rank"):
        _kernels.LayerAdapter([(panels(4, 48), panels(48, 5), 1.0), *none[1:]])
    small = _kernels.LayerAdapter([(panels(4, 40), panels(48, 4), 1.0), *none[1:]])
    empty = _kernels.LayerAdapter(none)
    states = torch.zeros(3, 48)
    heads = torch.zeros(3, 12)
    outs = [torch.zeros(3, 48), torch.zeros(3, 24), torch.zeros(3, 24)]
    for adapted, words in (
        ([(0, 3, small)], "must fit the products"),
        ([(0, 4, empty)], "rows of the call"),
        ([(2, 2, empty)], "rows of the call"),
        ([(-1, 2, empty)], "rows of the call"),
        ([(0, 2, empty), (1, 3, empty)], "must ascend"),
    ):
        with pytest.raises(ValueError, match=words):
            fused.start.run(states, heads, heads, *outs, num_threads=1, adapted=adapted)
