"""Self-check: does a loaded model compute what its own eager attention computes?

The last line of defence against a family that passes every rule and is still wrong
here: two random sequences, packed and in two chunks, against each alone under
transformers' own eager attention.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from prefold.engine.attention import ATTENTION_NAME
from prefold.engine.attention_parts import set_attention
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.digest_memory import replace_file
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel
from prefold.engine.model_runner import ModelRunner
from prefold.errors import ConfigError, UnusableStepError

_LOG = logging.getLogger(__name__)

#: Tokens of the two sequences, and how many of each the first chunk holds.
_LENGTHS = (43, 24)
_FIRST_CHUNK = (20, 11)

_BLOCK_SIZE = 16

_MAX_PASSED = 100
_MAX_BYTES = 100_000

#: Allowed difference, as a share of the largest logit (at least of 1).
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


class CheckMemory:
    """Remembers in a file which fingerprints have passed; a lost file costs a check."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def has_passed(self, fingerprint: bytes) -> bool:
        return fingerprint.hex() in self._read()

    def add(self, fingerprint: bytes) -> None:
        """Remember a fingerprint; a file that cannot be written does no harm."""
        passed = [*self._read(), fingerprint.hex()]
        try:
            replace_file(self._path, json.dumps(passed[-_MAX_PASSED:]).encode())
        except OSError as exc:
            _LOG.warning(
                "cannot remember the self-check in %s: %s", self._path, exc.strerror
            )

    def _read(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                passed = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return []
        if not isinstance(passed, list):
            return []
        return [entry for entry in passed if isinstance(entry, str)]


def ensure_checked(loaded: LoadedModel, fingerprint: bytes, memory: CheckMemory) -> bool:
    """Check a model unless its fingerprint has passed before; return whether it ran.

    Raises:
        ConfigError: The model disagrees with its own eager attention.
    """
    if memory.has_passed(fingerprint):
        return False
    difference = measure_difference(loaded)
    limit = TOLERANCE[loaded.dtype]
    if not difference <= limit:  # a NaN is not below it either
        raise ConfigError(
            f"models of type {loaded.model.config.model_type} cannot be served: its"
            f" logits differ from those of its own attention by {difference:.1e} of the"
            f" largest, more than {limit:.0e}"
        )
    memory.add(fingerprint)
    return True


@torch.inference_mode()
def measure_difference(loaded: LoadedModel) -> float:
    """Return the largest difference from eager, as a share of the largest logit.

    NaN where either has results that are not numbers.
    """
    rng = np.random.default_rng(0)
    longest = max(loaded.max_model_len, 2)
    lengths = [min(length, longest) for length in _LENGTHS]
    prompts = [rng.integers(0, loaded.vocab_size, length) for length in lengths]
    try:
        ours = _run_packed(loaded, prompts)
    except UnusableStepError:
        return math.nan
    theirs = _run_eager(loaded, prompts)
    worst = 0.0
    for mine, reference in zip(ours, theirs, strict=True):
        scale = max(float(reference.abs().max()), 1.0)
        difference = float((mine - reference).abs().max()) / scale
        if not difference <= worst:
            worst = difference
    return worst


def _run_packed(
    loaded: LoadedModel, prompts: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]
) -> list[torch.Tensor]:
    num_blocks = sum(-(-len(prompt) // _BLOCK_SIZE) for prompt in prompts)
    store = KvStore(
        loaded.layout(_BLOCK_SIZE, loaded.dtype),
        num_blocks,
        dtype=loaded.dtype,
        device=loaded.device,
    )
    runner = ModelRunner(loaded, store)
    tables = np.split(
        np.random.default_rng(1).permutation(num_blocks).astype(np.int32),
        [-(-len(prompts[0]) // _BLOCK_SIZE)],
    )
    cuts = [min(cut, len(p) - 1) for cut, p in zip(_FIRST_CHUNK, prompts, strict=True)]
    chunks: list[list[torch.Tensor]] = [[], []]
    for spans in (
        [(0, cut) for cut in cuts],
        [(c, len(p)) for c, p in zip(cuts, prompts, strict=True)],
    ):
        slices = tuple(
            SequenceSlice(
                token_ids=prompt[start:end],
                start=start,
                block_ids=table[: -(-end // _BLOCK_SIZE)],
                num_logits=end - start,
            )
            for prompt, table, (start, end) in zip(prompts, tables, spans, strict=True)
        )
        logits = runner.execute(StepPlan(slices=slices))
        for kept, rows in zip(
            chunks, torch.split(logits, [s.num_logits for s in slices]), strict=True
        ):
            kept.append(rows)
    return [torch.cat(rows) for rows in chunks]


def _run_eager(
    loaded: LoadedModel, prompts: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]
) -> list[torch.Tensor]:
    model = loaded.model
    model.set_attn_implementation("eager")
    try:
        results = []
        for prompt in prompts:
            positions = (
                torch.arange(len(prompt), device=loaded.device) + loaded.position_offset
            )
            output = model(
                input_ids=torch.from_numpy(prompt).to(loaded.device)[None],
                position_ids=positions[None],
                use_cache=False,
            )
            results.append(output.logits[0].float())
    finally:
        set_attention(model, ATTENTION_NAME)
    return results
