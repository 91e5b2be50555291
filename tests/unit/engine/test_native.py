from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from transformers.models.auto import AutoModelForCausalLM

from prefold.blocks.layout import KvOrder, LayerShape
from prefold.engine import native
from prefold.engine.attention_plan import PARTITION
from prefold.engine.loading import LoadOptions, prepare_model
from prefold.engine.native import HAS_KERNELS, choose_attention, describe_attention
from prefold.engine.step_attention import order_for
from prefold.errors import ConfigError
from support.kernels import KERNELS, needs_kernels
from support.tiny_models import make_llama, make_tokenizer

if HAS_KERNELS:
    from prefold.engine import _kernels

CPU = torch.device("cpu")
CPUINFO = Path("/proc/cpuinfo")
SHAPE = LayerShape(num_kv_heads=1, key_size=64, value_size=64)
LARGE = LayerShape(num_kv_heads=1, key_size=64, value_size=512)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFOLD_ATTENTION", "PREFOLD_KERNEL", "PREFOLD_REQUIRE_NATIVE"):
        monkeypatch.delenv(name, raising=False)


@needs_kernels
@pytest.mark.skipif(not CPUINFO.exists(), reason="the system does not say what it has")
def test_every_kernel_is_there_that_the_processor_runs() -> None:
    flags = set(CPUINFO.read_text().partition("flags")[2].partition("\n")[0].split())
    needs = {
        "amx": {"amx_tile", "amx_bf16", "avx512f", "avx512dq", "avx512vl", "avx512bw"},
        "avx512": {"avx512f", "avx512dq", "avx512vl", "avx512bw", "avx2", "fma", "f16c"},
        "avx2": {"avx2", "fma", "f16c"},
        "portable": set(),
    }
    assert [name for name in needs if needs[name] <= flags] == KERNELS


@needs_kernels
def test_the_kernel_serves_what_it_can() -> None:
    assert choose_attention(None, CPU, [SHAPE]) == "cpu"
    assert choose_attention(None, torch.device("cuda"), [SHAPE]) == "reference"
    assert choose_attention(None, CPU, [SHAPE, LARGE]) == "reference"
    assert choose_attention("reference", CPU, [SHAPE]) == "reference"


@needs_kernels
def test_both_implementations_cut_keys_alike() -> None:
    assert _kernels.PARTITION == PARTITION


@needs_kernels
def test_what_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be 'cpu' or 'reference', got 'fast'"):
        choose_attention("fast", CPU, [SHAPE])
    with pytest.raises(ConfigError, match="up to 256 numbers, not 512"):
        choose_attention("cpu", CPU, [LARGE])
    with pytest.raises(ConfigError, match="not on cuda"):
        choose_attention("cpu", torch.device("cuda"), [SHAPE])


def test_the_environment_chooses_where_no_argument_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFOLD_ATTENTION", "reference")
    assert choose_attention(None, CPU, [SHAPE]) == "reference"
    monkeypatch.setenv("PREFOLD_ATTENTION", "fast")
    with pytest.raises(ConfigError, match="got 'fast'"):
        choose_attention(None, CPU, [SHAPE])
    assert choose_attention("reference", CPU, [SHAPE]) == "reference"


@needs_kernels
def test_the_environment_chooses_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_attention("cpu") == f"cpu-{KERNELS[0]}-{native.KERNEL_VERSION}"
    monkeypatch.setenv("PREFOLD_KERNEL", "portable")
    assert describe_attention("cpu") == f"cpu-portable-{native.KERNEL_VERSION}"
    assert describe_attention("reference") == "reference"
    monkeypatch.setenv("PREFOLD_KERNEL", "abacus")
    with pytest.raises(ConfigError, match="PREFOLD_KERNEL must be one of"):
        choose_attention(None, CPU, [SHAPE])


def test_without_kernels_the_reference_serves_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "HAS_KERNELS", False)
    with caplog.at_level(logging.WARNING):
        assert choose_attention(None, CPU, [SHAPE]) == "reference"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(ConfigError, match="was not built"):
        choose_attention("cpu", CPU, [SHAPE])
    monkeypatch.setenv("PREFOLD_REQUIRE_NATIVE", "1")
    with pytest.raises(ConfigError, match="was not built"):
        choose_attention(None, CPU, [SHAPE])


@pytest.mark.parametrize("attention", ["reference", *(["cpu"] if HAS_KERNELS else [])])
def test_a_models_blocks_have_the_order_that_its_attention_reads(attention: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        make_llama()
    )
    options = LoadOptions(attention=attention)
    loaded = prepare_model(model, make_tokenizer(), options, 100)
    assert loaded.attention == attention
    order = loaded.layout(16, torch.float32).order
    assert order is order_for(attention)
    assert (order is KvOrder.TOKEN_MAJOR) == (attention == "reference")
