"""Identity matrix: two engines that differ in one thing, over one cache.

For every field of the fingerprint there is a way to make it differ, and nothing else, by
what really makes it differ: other files, another option of loading, another store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from prefold.blocks.table import TokenIds
from prefold.cache import PrefixCache
from prefold.engine.config import EngineConfig, RequestOptions
from prefold.engine.digest_memory import DigestMemory
from prefold.engine.engine import Engine
from prefold.engine.fingerprinting import KvFormat, build_fingerprint
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.model_runner import ModelRunner
from prefold.engine.native import NATIVE, REFERENCE
from prefold.engine.numerics import read_numerics
from prefold.engine.parts import EngineParts
from prefold.engine.request import RequestOutput
from prefold.engine.sampler import Sampler
from prefold.engine.weights_digest import digest_weights
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from support.tiny_engines import greedy, limits_of, make_store
from support.tiny_models import make_llama, save_model

BLOCK_SIZE = 16
NUM_BLOCKS = 32

#: Where nothing is said of it.
DOMAIN = Domain("acme/search")


def leave(_loaded: LoadedModel) -> None:
    """Change nothing."""


def rename_class(loaded: LoadedModel) -> None:
    """Give a model another class, which computes the same."""
    loaded.model.__class__ = type("RenamedForCausalLM", (LlamaForCausalLM,), {})


def add_token(loaded: LoadedModel) -> None:
    """Give a tokenizer one token more."""
    loaded.tokenizer.add_tokens(["zz"])


def set_template(loaded: LoadedModel) -> None:
    """Give a tokenizer a chat template; it had none."""
    loaded.tokenizer.chat_template = "{{ messages[0].content }}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How one of two engines is made.

    Attributes:
        entries: Of the model's configuration.
        seed: Of the model's weights.
        options: Of loading it.
        change: What is done to the loaded model.
        adapter: The digest of one; the model itself has none.
        kv_dtype: Of the store.
        block_size: Of the store and the cache.
        row_multiple: What the runner pads rows to.
        same_numerics: The numerics are those of the plain side, whatever they are.
    """

    entries: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    options: LoadOptions = field(default_factory=lambda: LoadOptions(attention=REFERENCE))
    change: Callable[[LoadedModel], None] = leave
    adapter: bytes | None = None
    kv_dtype: torch.dtype = torch.float32
    block_size: int = BLOCK_SIZE
    row_multiple: int = 16
    same_numerics: bool = False


PLAIN = Side()

#: By field of the fingerprint, what makes it differ and nothing else; one row or more.
ROWS: Mapping[str, tuple[Side, ...]] = {
    "architecture": (Side(change=rename_class),),
    "config": (Side(entries={"rms_norm_eps": 1e-2}),),
    "weights": (Side(seed=1),),
    "tokenizer": (Side(change=add_token),),
    "chat_template": (Side(change=set_template),),
    "adapter": (Side(adapter=b"a"), Side(adapter=b"")),
    "position_config": (
        Side(entries={"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        Side(
            entries={
                "rope_parameters": {
                    "rope_type": "linear",
                    "rope_theta": 10_000.0,
                    "factor": 2.0,
                }
            }
        ),
    ),
    "position_offset": (Side(options=LoadOptions(attention=REFERENCE, position_offset=3)),),
    "compute_dtype": (
        Side(
            options=LoadOptions(attention=REFERENCE, dtype=torch.bfloat16),
            same_numerics=True,
        ),
        Side(
            options=LoadOptions(attention=REFERENCE, dtype=torch.float16),
            same_numerics=True,
        ),
    ),
    "kv_dtype": (
        Side(kv_dtype=torch.bfloat16),
        Side(kv_dtype=torch.float16),
        Side(kv_dtype=torch.int8),
    ),
    "block_size": (Side(block_size=8),),
    "layout_version": (Side(options=LoadOptions(attention=NATIVE), same_numerics=True),),
    "numerics": (Side(row_multiple=32),),
}


class Corner:
    """A side that was made: a model with its fingerprint."""

    def __init__(
        self, side: Side, directory: Path, numerics: Mapping[str, str | int] | None = None
    ) -> None:
        self.side = side
        source = save_model(make_llama(**side.entries), directory, seed=side.seed)
        self.loaded = load_model(source, side.options)
        self.numerics = read_numerics(
            self.loaded, row_multiple=side.row_multiple
        ).describe()
        if side.same_numerics:
            assert numerics is not None
            self.numerics = dict(numerics)
        side.change(self.loaded)
        layout = self.loaded.layout(side.block_size, side.kv_dtype)
        self.fingerprint: Fingerprint = build_fingerprint(
            self.loaded.model,
            self.loaded.tokenizer,
            weights=digest_weights(
                self.loaded.model, source, DigestMemory(directory / "digests.json")
            ),
            kv_format=KvFormat(
                dtype=side.kv_dtype,
                block_size=side.block_size,
                position_offset=side.options.position_offset,
                order=layout.order,
            ),
            numerics=self.numerics,
            adapter=side.adapter,
        )

    def make_store(self) -> KvStore:
        """Return one that nothing was ever written to."""
        side = self.side
        return make_store(self.loaded, NUM_BLOCKS, side.block_size, side.kv_dtype)

    def make_cache(self) -> PrefixCache:
        """Return an empty cache that this side can use."""
        return PrefixCache(
            num_blocks=NUM_BLOCKS, block_size=self.side.block_size, clock=lambda: 0.0
        )

    def make_engine(self, cache: PrefixCache, store: KvStore) -> Engine:
        """Return an engine over a cache, whose blocks are those of a store."""
        runner = ModelRunner(self.loaded, store, row_multiple=self.side.row_multiple)
        parts = EngineParts(
            cache=cache,
            runner=runner,
            sampler=Sampler(self.loaded.vocab_size),
            fingerprint=self.fingerprint,
        )
        return Engine(parts, EngineConfig(limits=limits_of(self.loaded)))

    def run_fresh(self, prompt: TokenIds, domain: Domain = DOMAIN) -> RequestOutput:
        """Run a prompt where nothing is cached."""
        engine = self.make_engine(self.make_cache(), self.make_store())
        return run(engine, prompt, domain)


def run(engine: Engine, prompt: TokenIds, domain: Domain = DOMAIN) -> RequestOutput:
    """Run a prompt to the end of a short reply."""
    [output] = engine.generate([prompt], greedy(3), options=RequestOptions(domain=domain))
    return output
