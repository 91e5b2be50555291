from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Thread

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.engine.attention import AttentionCall
from prefold.engine.fused_layer import LayerInputs
from prefold.engine.fused_stack import (
    FusedDecoder,
    LayerStack,
    fuse_stack,
    fused_decoder_of,
)
from prefold.engine.fusion import OTHER_BITS
from prefold.engine.layer_fusion import TrialSite
from prefold.engine.loading import LoadedModel
from support.fused_models import QueryBack, layers_of, load, run
from support.tiny_models import make_gemma2, make_llama, make_mistral, make_qwen2

FAMILIES = {"llama": make_llama(), "qwen2": make_qwen2(), "mistral": make_mistral()}
PLACES = ("", "self_attn", "self_attn.o_proj", "mlp", "mlp.down_proj", "input_layernorm")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def decoder_of(loaded: LoadedModel) -> FusedDecoder:
    decoder = fused_decoder_of(loaded.model.get_submodule("model"))
    assert decoder is not None
    return decoder


def by_layer(loaded: LoadedModel, rows: int) -> torch.Tensor:
    """Return the logits that the model gives when its loop runs layer by layer."""
    decoder = decoder_of(loaded)
    stack, decoder.stack = decoder.stack, None
    try:
        return run(loaded, rows)
    finally:
        decoder.stack = stack


def check_closed(decoder: FusedDecoder) -> None:
    assert decoder.stack is not None
    assert not decoder.stack.is_open
    decoder.stack.check_invariants()


def count_runs(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry for every pass that the stack makes."""
    runs: list[int] = []
    stack = decoder_of(loaded).stack
    assert stack is not None
    kind = type(stack)
    inner = kind._run

    def count(own: LayerStack, given: LayerInputs) -> torch.Tensor:
        runs.append(1)
        return inner(own, given)

    monkeypatch.setattr(kind, "_run", count)
    return runs


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 13, 40])
def test_a_stack_gives_the_bits_of_the_loop(
    family: str, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(FAMILIES[family], dtype)
    wanted = by_layer(loaded, rows)
    runs = count_runs(loaded, monkeypatch)
    assert torch.equal(run(loaded, rows), wanted)
    assert runs == [1]
    check_closed(decoder_of(loaded))


def test_every_layers_attention_is_asked_for_the_same() -> None:
    loaded = load(make_mistral())
    inner = loaded.model.get_submodule("model")
    sites = TrialSite(), TrialSite()
    rows = torch.randn(1, 7, 48)
    forwards: tuple[Callable[..., object], ...] = (inner, decoder_of(loaded).plain)
    for site, forward in zip(sites, forwards, strict=True):
        forward(
            inputs_embeds=rows,
            position_ids=torch.arange(7)[None],
            use_cache=False,
            attention_site=site,
        )
    assert sites[0].saw_the_same(sites[1])
    for one, other in zip(sites[0].calls, sites[1].calls, strict=True):
        for name in ("layer", "scaling", "window", "softcap", "sinks", "is_causal"):
            assert getattr(one, name) == getattr(other, name)
    assert [call.layer for call in sites[0].calls] == list(range(len(layers_of(loaded))))


def test_the_states_that_are_given_stay_as_they_are() -> None:
    loaded = load(make_llama())
    rows = torch.randn(1, 4, 48)
    given = rows.clone()
    loaded.model.get_submodule("model")(
        inputs_embeds=given,
        position_ids=torch.arange(4)[None],
        use_cache=False,
        attention_site=QueryBack(),
    )
    assert torch.equal(given, rows)


@pytest.mark.parametrize("place", PLACES)
def test_hooks_see_what_they_would_without_a_stack(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(make_llama())
    wanted = run(loaded, 5)
    module = layers_of(loaded)[0].get_submodule(place)
    seen: list[torch.Tensor] = []
    handle = module.register_forward_hook(lambda *args: seen.append(_first(args[2])))
    runs = count_runs(loaded, monkeypatch)
    assert torch.equal(run(loaded, 5), wanted)
    assert not runs
    assert torch.equal(by_layer(loaded, 5), wanted)
    assert len(seen) == 2
    assert torch.equal(*seen)
    handle.remove()
    run(loaded, 5)
    assert runs == [1]
    check_closed(decoder_of(loaded))


def _first(output: object) -> torch.Tensor:
    value = output[0] if isinstance(output, tuple) else output
    assert isinstance(value, torch.Tensor)
    return value.clone()


class Halved(nn.Module):
    """As an adapter wraps a layer or a part of one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: object, **keywords: object) -> torch.Tensor:
        result: torch.Tensor = self.inner(*args, **keywords)
        return result * 0.5


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("place", ["", "mlp.down_proj", "self_attn.q_proj"])
def test_a_layer_or_part_that_is_replaced_takes_effect(index: int, place: str) -> None:
    loaded = load(make_llama())
    before = run(loaded, 5)
    path = f"model.layers.{index}" + (f".{place}" if place else "")
    parent, _, name = path.rpartition(".")
    inner = loaded.model.get_submodule(path)
    loaded.model.get_submodule(parent).register_module(name, Halved(inner))
    after = run(loaded, 5)
    assert not torch.equal(after, before)
    assert torch.equal(after, by_layer(loaded, 5))
    loaded.model.get_submodule(parent).register_module(name, inner)
    assert torch.equal(run(loaded, 5), before)
    check_closed(decoder_of(loaded))


def test_a_pass_that_fails_leaves_nothing() -> None:
    loaded = load(make_llama())
    wanted = run(loaded, 5)

    class Broken:
        def attend(self, call: AttentionCall) -> torch.Tensor:
            if call.layer == 1:
                raise RuntimeError("no attention today")
            return call.query.transpose(1, 2)

    with pytest.raises(RuntimeError, match="today"):
        loaded.model(
            input_ids=torch.ones(1, 3, dtype=torch.long),
            position_ids=torch.arange(3)[None],
            use_cache=False,
            attention_site=Broken(),
        )
    check_closed(decoder_of(loaded))
    assert torch.equal(run(loaded, 5), wanted)


def test_a_layer_that_is_called_by_itself_runs_alone() -> None:
    loaded = load(make_llama())
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(1, 9, 48, generator=generator)
    embeddings = tuple(torch.randn(2, 1, 9, 12, generator=generator))
    site = TrialSite()
    layers_of(loaded)[0](states, position_embeddings=embeddings, attention_site=site)
    assert [call.layer for call in site.calls] == [0]


Layers = list[Callable[..., torch.Tensor]]

#: What runs layers, one after the other; keywords are those of a layer's call.
Loop = Callable[[Layers, torch.Tensor, dict[str, object]], torch.Tensor]


def plainly(
    layers: Layers, states: torch.Tensor, keywords: dict[str, object]
) -> torch.Tensor:
    for layer in layers:
        states = layer(states, **keywords)
    return states


def at_seven_rows(other: Loop) -> Loop:
    """Do something else in a pass of seven rows; the trial has one row, and five."""

    def run_layers(
        layers: Layers, states: torch.Tensor, keywords: dict[str, object]
    ) -> torch.Tensor:
        loop = other if states.shape[1] == 7 else plainly
        return loop(layers, states, keywords)

    return run_layers


def with_loop(loaded: LoadedModel, loop: Loop) -> tuple[nn.Module, str | None]:
    """Give the decoder of a model another loop, and try to stack its layers."""

    def forward(self: nn.Module, **keywords: object) -> object:
        states, positions = keywords["inputs_embeds"], keywords["position_ids"]
        assert isinstance(states, torch.Tensor)
        given = {
            "position_embeddings": self.get_submodule("rotary_emb")(
                states, position_ids=positions
            ),
            "attention_site": keywords["attention_site"],
            "position_ids": positions,
        }
        layers: Layers = list(self.get_submodule("layers").children())
        states = self.get_submodule("norm")(loop(layers, states, given))
        return BaseModelOutputWithPast(last_hidden_state=states)

    inner = loaded.model.get_submodule("model")
    vars(inner).pop("forward")
    kind = type(inner)
    own = {"forward": forward, "__module__": kind.__module__}
    inner.__class__ = type("Other", (kind,), own)
    return inner, fuse_stack(inner)


def _halved(layers: Layers, states: torch.Tensor, given: dict[str, object]) -> torch.Tensor:
    return layers[1](layers[0](states, **given) * 0.5, **given)


def _copied(layers: Layers, states: torch.Tensor, given: dict[str, object]) -> torch.Tensor:
    return layers[1](layers[0](states, **given).clone(), **given)


def _first_only(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    return layers[0](states, **given)


def _first_twice(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    return plainly([layers[0], *layers], states, given)


def _last_twice(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    return plainly([*layers, layers[1]], states, given)


def _turned_more(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    embeddings = given["position_embeddings"]
    assert isinstance(embeddings, tuple)
    others = {**given, "position_embeddings": embeddings[::-1]}
    return layers[1](layers[0](states, **given), **others)


def _seen_elsewhere(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    others = {**given, "attention_site": TrialSite()}
    return layers[1](layers[0](states, **given), **others)


def _told_more(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    return layers[1](layers[0](states, **given), **given, something=torch.ones(1))


def _told_less(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    rest = {name: value for name, value in given.items() if name != "position_ids"}
    return layers[1](layers[0](states, **given), **rest)


DETOURS: tuple[Loop, ...] = (
    _halved,
    _copied,
    _first_only,
    _first_twice,
    _last_twice,
    _turned_more,
    _seen_elsewhere,
    _told_more,
    _told_less,
)


def _backwards(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    return plainly(layers[::-1], states, given)


def _last_only(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    return layers[1](states, **given)


def in_place(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    return layers[1](layers[0](states, **given).mul_(0.5), **given)


def call(inner: nn.Module, rows: int) -> torch.Tensor:
    output = inner(
        inputs_embeds=torch.randn(1, rows, 48, generator=torch.Generator().manual_seed(0)),
        position_ids=torch.arange(rows)[None],
        use_cache=False,
        attention_site=QueryBack(),
    )
    found = output.last_hidden_state
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("loop", DETOURS)
def test_a_loop_that_does_something_else_now_and_then_is_noticed(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    inner, obstacle = with_loop(load(make_llama()), at_seven_rows(loop))
    assert obstacle is None
    decoder = fused_decoder_of(inner)
    assert decoder is not None
    assert torch.equal(call(inner, 6), _plain(decoder, 6))
    assert decoder.stack is not None
    stack = decoder.stack
    with caplog.at_level(logging.WARNING, "prefold.engine.fused_stack"):
        assert torch.equal(call(inner, 7), _plain(decoder, 7))
    assert "does something between its layers" in caplog.text
    assert is_given_up(decoder)
    stack.check_invariants()
    assert not stack.is_open
    assert torch.equal(call(inner, 6), _plain(decoder, 6))


def _added(layers: Layers, states: torch.Tensor, given: dict[str, object]) -> torch.Tensor:
    first = layers[0](states, **given)
    return first + plainly(layers[1:], first, given)


def test_a_loop_that_uses_states_of_several_layers_is_not_stacked() -> None:
    inner, obstacle = with_loop(load(make_llama()), _added)
    assert obstacle == OTHER_BITS
    assert fused_decoder_of(inner) is None


def _out_of_order(
    layers: Layers, states: torch.Tensor, given: dict[str, object]
) -> torch.Tensor:
    return plainly([layers[0], layers[2], layers[1]], states, given)


def test_layers_in_another_order_are_noticed() -> None:
    loaded = load(make_llama(num_hidden_layers=3))
    inner, obstacle = with_loop(loaded, at_seven_rows(_out_of_order))
    assert obstacle is None
    decoder = fused_decoder_of(inner)
    assert decoder is not None
    assert torch.equal(call(inner, 7), _plain(decoder, 7))
    assert is_given_up(decoder)


@pytest.mark.parametrize("loop", [_backwards, _last_only])
def test_a_loop_that_begins_elsewhere_runs_layer_by_layer(loop: Loop) -> None:
    inner, obstacle = with_loop(load(make_llama()), at_seven_rows(loop))
    assert obstacle is None
    decoder = fused_decoder_of(inner)
    assert decoder is not None
    assert torch.equal(call(inner, 7), _plain(decoder, 7))
    assert torch.equal(call(inner, 6), _plain(decoder, 6))
    check_closed(decoder)


def is_given_up(decoder: FusedDecoder) -> bool:
    return decoder.stack is None


def _plain(decoder: FusedDecoder, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    output = decoder.plain(
        inputs_embeds=torch.randn(1, rows, 48, generator=generator),
        position_ids=torch.arange(rows)[None],
        use_cache=False,
        attention_site=QueryBack(),
    )
    assert isinstance(output, BaseModelOutputWithPast)
    found = output.last_hidden_state
    assert isinstance(found, torch.Tensor)
    return found


def test_a_loop_that_writes_into_states_is_not_stacked() -> None:
    inner, obstacle = with_loop(load(make_llama()), in_place)
    assert obstacle == OTHER_BITS
    assert fused_decoder_of(inner) is None


def test_layers_of_other_kinds_are_not_stacked() -> None:
    loaded = load(make_gemma2())
    assert fused_decoder_of(loaded.model.get_submodule("model")) is None


def test_keywords_that_are_not_known_are_left_to_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = load(make_llama())
    runs = count_runs(loaded, monkeypatch)
    inner = loaded.model.get_submodule("model")
    site = TrialSite()
    inner(
        inputs_embeds=torch.randn(1, 3, 48),
        position_ids=torch.arange(3)[None],
        use_cache=False,
        attention_site=site,
        something=torch.ones(1),
    )
    assert not runs
    assert site.calls[0].other_keywords == ("something",)


def test_a_loop_of_somebody_else_is_not_stacked() -> None:
    inner = load(make_llama()).model.get_submodule("model")
    vars(inner).pop("forward")
    inner.__class__ = type("Own", (type(inner),), {})
    assert fuse_stack(inner) == "its loop is not one of transformers' own"


def test_a_loop_that_hands_out_states_of_other_layers_is_not_stacked() -> None:
    inner = load(make_llama()).model.get_submodule("model")
    vars(inner).pop("forward")
    kind = type(inner)

    def forward(self: nn.Module, **keywords: object) -> object:
        output = kind.forward(self, **keywords)
        return type(output)(output.last_hidden_state, hidden_states=(torch.ones(1),))

    own = {"forward": forward, "__module__": kind.__module__}
    inner.__class__ = type("Other", (kind,), own)
    assert fuse_stack(inner) == OTHER_BITS


def test_a_pass_of_another_thread_runs_layer_by_layer() -> None:
    loaded = load(make_llama())
    decoder = decoder_of(loaded)
    wanted, others = run(loaded, 5), run(loaded, 9)
    found: list[torch.Tensor] = []

    def other() -> None:
        with torch.inference_mode():
            found.append(run(loaded, 9))

    class Meanwhile:
        """A site in whose hands another thread makes a whole pass."""

        def attend(self, call: AttentionCall) -> torch.Tensor:
            thread = Thread(target=other)
            thread.start()
            thread.join()
            return call.query.transpose(1, 2)

    assert torch.equal(run(loaded, 5, Meanwhile()), wanted)
    assert len(found) == len(layers_of(loaded))
    assert all(torch.equal(each, others) for each in found)
    check_closed(decoder)


def test_a_pass_within_a_pass_gives_the_right_states() -> None:
    loaded = load(make_llama())
    wanted, others = run(loaded, 5), run(loaded, 9)

    class Within:
        def attend(self, call: AttentionCall) -> torch.Tensor:
            assert torch.equal(run(loaded, 9), others)
            return call.query.transpose(1, 2)

    assert torch.equal(run(loaded, 5, Within()), wanted)
