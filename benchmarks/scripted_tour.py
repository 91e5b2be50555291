"""Scripted tour: the prompts of ``prefold demo``, with scripted replies and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from prefold.blocks.pool import BlockCounts
from prefold.blocks.table import TokenIds
from prefold.cache import CacheSnapshot, MissKind, MissReason
from prefold.cli.demo_scenarios import Tour
from prefold.cli.opening import Facts, Session
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.request import (
    FinishReason,
    RequestId,
    RequestOutput,
    SamplingParams,
    Timing,
    Usage,
)

_REPLY = (
    " It depends on the size of the parcel, the day it was handed in and the desk that"
    " took it; the rules name all three, and the clerk on duty decides in between."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One prompt of the tour and its scripted reply."""

    scenario: str
    prompt: TokenIds
    reply: TokenIds


class _ScriptedCache:
    """Stands for the cache where the tour counts blocks."""

    def snapshot(self) -> CacheSnapshot:
        return CacheSnapshot(
            blocks=BlockCounts(free=0, private=0, shared=0, idle=0),
            num_trees=0,
            num_nodes=0,
            num_leases=0,
            num_evictions=0,
            num_evicted_blocks=0,
        )


class _ScriptedEngine:
    """Answers every prompt with the beginning of the same text, and notes the prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.cache = _ScriptedCache()
        self.asked: list[Asked] = []
        self._tokenizer = tokenizer
        self._reply = list(tokenizer.encode(_REPLY, add_special_tokens=False))

    def generate(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        *,
        options: RequestOptions,
    ) -> list[RequestOutput]:
        [prompt] = prompts
        reply = self._reply[: params.max_tokens]
        if options.access.read:
            self.asked.append(
                Asked(
                    scenario=options.domain.path.rpartition("/")[2],
                    prompt=np.array(prompt, dtype=np.int64),
                    reply=np.array(reply, dtype=np.int64),
                )
            )
        output = RequestOutput(
            request_id=RequestId("scripted"),
            text=str(self._tokenizer.decode(reply)),
            token_ids=tuple(reply),
            usage=Usage(
                prompt_tokens=len(prompt), cached_tokens=0, completion_tokens=len(reply)
            ),
            timing=Timing(queued_s=0.0, ttft_s=0.0, tpot_s=0.0, total_s=0.0),
            finish_reason=FinishReason.LENGTH,
            miss_reason=MissReason(kind=MissKind.NEVER_SEEN, at_token=0),
            logits=None,
            error=None,
        )
        return [output]


def record_tour(model: str) -> list[Asked]:
    """Return the prompts of the tour, written with a model's tokenizer, in their order."""
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    engine = _ScriptedEngine(tokenizer)
    facts = Facts(
        name="scripted",
        num_parameters=0,
        weight_bytes=0,
        dtype="float32",
        device="cpu",
        num_threads=1,
        max_model_len=8192,
        num_blocks=8192,
        block_size=16,
        block_bytes=1,
        attention="none",
        is_exact=False,
        exactness="",
    )
    session = Session(
        engine=cast("Engine", engine), tokenizer=tokenizer, facts=facts, load_s=0.0
    )
    for step in Tour(session, on_run=lambda _: None).steps():
        step.take()
    return engine.asked
