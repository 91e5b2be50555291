"""Engines over tiny real models, with the KV store and the steps in reach of a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from prefold.blocks.table import BlockCopy
from prefold.cache import NO_CACHE, PrefixCache
from prefold.engine.batch import Runner, StepPlan
from prefold.engine.config import EngineConfig, ModelLimits, RequestOptions, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.model_runner import DEFAULT_ROW_MULTIPLE, ModelRunner
from prefold.engine.parts import EngineParts
from prefold.engine.prompt import Prompt
from prefold.engine.prompt_mixer import PromptMixer
from prefold.engine.request import RequestOutput, SamplingParams
from prefold.engine.row_probe import probe_rows
from prefold.engine.sampler import Sampler
from prefold.engine.verification_rig import Subject
from prefold.eviction.registry import DEFAULT_POLICY
from support.fingerprints import make_fingerprint
from support.tiny_models import save_model

COLD = RequestOptions(access=NO_CACHE)


def greedy(max_tokens: int = 2, **changes: object) -> SamplingParams:
    """Return parameters for a reply of exactly that length, with its logits."""
    values = {"max_tokens": max_tokens, "ignore_eos": True, "return_logits": True}
    return SamplingParams(**{**values, **changes})  # type: ignore[arg-type]


@contextmanager
def threads(num_threads: int) -> Iterator[None]:
    """Let torch have so many threads meanwhile; the number is the process's."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_tiny(config: PreTrainedConfig, directory: Path) -> LoadedModel:
    return load_model(save_model(config, directory), LoadOptions())


class WatchedRunner:
    """A runner that keeps the plans of its steps.

    Attributes:
        plans: One a step, with copies of what are views.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.plans: list[list[list[int]]] = []

    def execute(self, plan: StepPlan) -> torch.Tensor:
        self.plans.append([piece.block_ids.tolist() for piece in plan.slices])
        return self._runner.execute(plan)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._runner.copy_blocks(copies)


class TinyEngine(Engine):
    """An engine over a loaded model."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        num_blocks: int = 256,
        block_size: int = 16,
        scheduler: SchedulerConfig | None = None,
        has_tokenizer: bool = False,
        policy: str = DEFAULT_POLICY,
        kv_dtype: torch.dtype | None = None,
        row_multiple: int = DEFAULT_ROW_MULTIPLE,
        mixer: PromptMixer | None = None,
    ) -> None:
        self.store = make_store(loaded, num_blocks, block_size, kv_dtype)
        self.runner = WatchedRunner(
            ModelRunner(loaded, self.store, row_multiple=row_multiple)
        )
        self.fingerprint = make_fingerprint(block_size=block_size)
        super().__init__(
            EngineParts(
                cache=PrefixCache(
                    num_blocks=num_blocks,
                    block_size=block_size,
                    clock=lambda: 0.0,
                    policy=policy,
                ),
                runner=self.runner,
                sampler=Sampler(loaded.vocab_size),
                fingerprint=self.fingerprint,
                tokenizer=loaded.tokenizer if has_tokenizer else None,
                adapter_host=loaded.adapter_host,
                mixer=mixer,
            ),
            EngineConfig(
                limits=limits_of(loaded), scheduler=scheduler or SchedulerConfig()
            ),
        )

    def run(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
    ) -> RequestOutput:
        """Run one prompt to its end."""
        params = params or greedy()
        [output] = self.generate([prompt], params, options=options or RequestOptions())
        return output

    def assert_nothing_is_held(self) -> None:
        self.check_invariants()
        counts = self.cache.counts
        assert (counts.private, counts.shared) == (0, 0)
        assert counts.free + counts.idle == self.cache.num_blocks


def make_store(
    loaded: LoadedModel,
    num_blocks: int,
    block_size: int,
    kv_dtype: torch.dtype | None = None,
) -> KvStore:
    dtype = kv_dtype or loaded.dtype
    layout = loaded.layout(block_size, dtype)
    return KvStore(layout, num_blocks, dtype=dtype, device=loaded.device)


def limits_of(loaded: LoadedModel) -> ModelLimits:
    return ModelLimits(
        vocab_size=loaded.vocab_size,
        max_model_len=loaded.max_model_len,
        eos_token_ids=frozenset(loaded.eos_token_ids),
    )


def make_subject(loaded: LoadedModel, block_size: int = 16) -> Subject:
    row_multiple = probe_rows(loaded).row_multiple

    def make_runner(num_blocks: int) -> Runner:
        store = make_store(loaded, num_blocks, block_size)
        return ModelRunner(loaded, store, row_multiple=row_multiple)

    return Subject(
        make_runner=make_runner,
        fingerprint=make_fingerprint(block_size=block_size),
        limits=limits_of(loaded),
        block_size=block_size,
    )


def are_equal_outputs(output: RequestOutput, reference: RequestOutput) -> bool:
    """Tell whether tokens are the same, and logits bit for bit."""
    assert output.logits is not None
    assert reference.logits is not None
    bits, wanted = output.logits.view(torch.int32), reference.logits.view(torch.int32)
    return output.token_ids == reference.token_ids and torch.equal(bits, wanted)


def assert_equal_outputs(output: RequestOutput, reference: RequestOutput) -> None:
    """Assert the same tokens, and the same logits bit for bit."""
    assert output.token_ids == reference.token_ids
    assert are_equal_outputs(output, reference)
