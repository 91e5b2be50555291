"""Padded server: a tiny model behind the real server, which takes a known time a block.

A model small enough to make on the spot answers in well under a millisecond, which is
nothing to tell a hit by. So every step takes as long as its tokens would on a model of
some size: what a miss costs is then clear and steady, which helps an attacker most.

Run with a directory, it serves two tenants until its standard input ends, and prints one
JSON line about where and with which keys.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast
from transformers.models.auto import AutoModelForCausalLM

from prefold.blocks.table import BlockCopy
from prefold.engine.assembly import assemble
from prefold.engine.batch import Runner, StepPlan
from prefold.server.config import (
    CacheConfig,
    ModelConfig,
    PrefoldConfig,
    ServerConfig,
    TenantConfig,
)
from prefold.server.keys import KeyFile
from prefold.server.listen import listen, url_of
from prefold.server.planes import run_planes
from prefold.server.serve import make_planes, model_settings, open_doors, served_model

BLOCK_SIZE = 16
TENANTS = ("victim", "attacker")

#: Ids of tokens that stand for bytes.
NUM_BYTE_TOKENS = 256


class PaddedRunner:
    """Lets each step take at least ``block_s`` for a block's worth of its tokens."""

    def __init__(self, runner: Runner, block_s: float) -> None:
        self._runner = runner
        self._token_s = block_s / BLOCK_SIZE

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Carry out a plan, and wait for the rest of its time."""
        end = time.perf_counter() + self._token_s * sum(s.num_tokens for s in plan.slices)
        logits = self._runner.execute(plan)
        time.sleep(max(0.0, end - time.perf_counter()))
        return logits

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first positions of blocks into others."""
        self._runner.copy_blocks(copies)


def save_tiny_model(directory: Path) -> Path:
    """Write a model of random weights and a tokenizer of bytes."""
    config = LlamaConfig(
        vocab_size=NUM_BYTE_TOKENS + 8,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=NUM_BYTE_TOKENS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    tokenizer.save_pretrained(directory)
    return directory


def main() -> int:
    """Serve until standard input ends."""
    directory, block_s, cache_blocks = (
        Path(sys.argv[1]),
        float(sys.argv[2]),
        int(sys.argv[3]),
    )
    key_file = KeyFile(directory / "keys.json")
    keys = {name: key_file.create(name).text for name in TENANTS}
    config = PrefoldConfig(
        model=ModelConfig(source=str(save_tiny_model(directory / "tiny")), num_threads=1),
        cache=CacheConfig(blocks=cache_blocks, block_size=BLOCK_SIZE),
        server=ServerConfig(
            port=0,
            admin_port=0,
            key_file=directory / "keys.json",
            admin_token_file=directory / "admin_token",
        ),
        tenants=tuple(TenantConfig(name=name) for name in TENANTS),
    )
    doors = open_doors(config)
    with listen(config.server) as listeners:
        assembly = assemble(config.model.source, model_settings(config))
        runner = PaddedRunner(assembly.parts.runner, block_s)
        parts = replace(assembly.parts, runner=runner)
        model = served_model(assembly, config)
        planes = make_planes(config, doors, parts, model)

        def announce() -> None:
            ready = {
                "public_url": url_of(listeners.public),
                "admin_url": url_of(listeners.admin),
                "admin": doors.token.authorization,
                "model": model.name,
                "keys": keys,
            }
            print(json.dumps(ready), flush=True)
            threading.Thread(target=_end_with_standard_input, daemon=True).start()

        asyncio.run(run_planes(planes, listeners, drain_s=0.0, on_started=announce))
    return 0


def _end_with_standard_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
