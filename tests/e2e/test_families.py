"""Tiny random models of many families: as exact as their page says, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.kv_store import KvStore
from prefold.engine.model_runner import ModelRunner
from prefold.engine.native import HAS_KERNELS
from prefold.engine.self_check import CheckMemory, ensure_checked, measure_difference
from prefold.errors import ConfigError
from support.families import (
    ACCEPTED,
    LONG_FACTORS,
    REFUSED,
    Family,
    fresh_model,
    tiny_config,
    tiny_model,
)
from support.family_run import run_family
from support.family_table import (
    DOCUMENT,
    accepted_line,
    refusal_of,
    refused_line,
    render,
)

pytestmark = pytest.mark.e2e

LINES = DOCUMENT.read_text().splitlines()


def line_of(family: Family) -> str:
    """Return what the document says of a family."""
    [line] = [line for line in LINES if line.startswith(f"| `{family.model_type}` |")]
    return line


def by_type(family: Family) -> str:
    return family.model_type


@pytest.mark.parametrize("family", ACCEPTED, ids=by_type)
def test_family_agrees_with_its_own_eager_attention(family: Family) -> None:
    assert measure_difference(tiny_model(family.model_type)) < 1e-5


@pytest.mark.skipif(not HAS_KERNELS, reason="the page is of an installation with kernels")
@pytest.mark.parametrize("family", ACCEPTED, ids=by_type)
def test_family_is_as_exact_as_the_document_says(family: Family) -> None:
    result = run_family(family)
    assert accepted_line(family, result) == line_of(family)
    assert all(result.identical.values())


@pytest.mark.parametrize("family", REFUSED, ids=by_type)
def test_family_is_refused_in_the_words_of_the_document(family: Family) -> None:
    reason = refusal_of(family)
    assert reason is not None
    assert "\n" not in reason
    assert refused_line(family, reason) == line_of(family)


def test_the_document_says_nothing_else() -> None:
    accepted, refused = (
        [line_of(family) for family in families] for families in (ACCEPTED, REFUSED)
    )
    assert DOCUMENT.read_text() == render(accepted, refused)
    assert len(ACCEPTED) >= 18


def test_a_bidirectional_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="bert cannot be served"):
        tiny_model("bert")


def test_longrope_agrees_with_eager_alone_beside_a_longer_request() -> None:
    """The frequencies come from the longest possible sequence, not from the batch."""
    loaded = tiny_model("phi3")
    layout = loaded.layout(16, torch.float32)
    prompts = [
        np.random.default_rng(i).integers(3, 96, size) for i, size in enumerate((14, 90))
    ]
    tables = [np.array([7], np.int32), np.arange(6, dtype=np.int32)]
    slices = tuple(
        SequenceSlice(token_ids=prompt, start=0, block_ids=table, num_logits=len(prompt))
        for prompt, table in zip(prompts, tables, strict=True)
    )

    def run(*chosen: SequenceSlice) -> torch.Tensor:
        store = KvStore(layout, 8, dtype=torch.float32, device=torch.device("cpu"))
        return ModelRunner(loaded, store).execute(StepPlan(slices=chosen))

    rows = run(*slices)

    assert torch.equal(run(slices[0]), rows[:14])
    long_frequencies = torch.tensor(LONG_FACTORS) * 10000.0 ** (torch.arange(4) / 4)
    model = fresh_model(tiny_config("phi3"), "eager").train(mode=False)
    for prompt, got in zip(prompts, torch.split(rows, [14, 90]), strict=True):
        # Makes transformers take the long set for the short prompt too.
        rotary: Any = model.get_submodule("model.rotary_emb")
        rotary.original_inv_freq = (1 / long_frequencies).float()
        with torch.inference_mode():
            expected = model(
                input_ids=torch.from_numpy(prompt)[None], use_cache=False
            ).logits[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


class ShiftedLayer(nn.Module):
    """A layer that mixes each row with the one before it, as a short convolution does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        shifted = nn.functional.pad(states, (0, 0, 1, 0))[..., :-1, :]
        result: torch.Tensor = self.inner(states + 0.5 * shifted)
        return result


def test_a_state_that_no_mark_tells_of_is_found_before_a_model_is_served(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    loaded = tiny_model("llama")
    memory = CheckMemory(tmp_path_factory.mktemp("state") / "checks.json")
    assert ensure_checked(loaded, b"plain", memory)
    mlp: Any = loaded.model.get_submodule("model.layers.0.mlp")
    mlp.up_proj = ShiftedLayer(mlp.up_proj)
    with pytest.raises(ConfigError, match="llama cannot be served: its logits differ"):
        ensure_checked(loaded, b"with a state", memory)
