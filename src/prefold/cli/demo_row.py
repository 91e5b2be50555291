"""A row of the tour: prompts asked with the cache and without, and what came of it.

Every row has a domain of its own, so it begins with nothing cached, and every figure in
it is what the engine reported. A cold run is a request with the cache off; it computes
all of a prompt that was also answered from the cache, and its tokens and logits are
compared with that answer's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from prefold.cache import NO_CACHE, READ_WRITE, Access
from prefold.cli.chat import WrittenPrompt
from prefold.cli.demo_fit import common_length
from prefold.cli.opening import Session
from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestOutput, SamplingParams
from prefold.errors import CapacityError
from prefold.identity.domain import Domain

#: A partly agreeing block is copied only if this many of its tokens agree.
_MAX_NOT_COPIED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """How the two ways compare.

    Attributes:
        num_prompts: Prompts that ran both ways.
        num_same_tokens: Of those, the ones with the same reply.
        num_same_bits: Of those, the ones whose logits are the same bit for bit as well.
        max_difference: The largest difference of two logits of equal tokens.
    """

    num_prompts: int
    num_same_tokens: int
    num_same_bits: int
    max_difference: float

    @property
    def is_exact(self) -> bool:
        return self.num_same_bits == self.num_prompts


def add_exactness(parts: Iterable[Exactness]) -> Exactness:
    """Return the sum over rows."""
    found = list(parts)
    return Exactness(
        num_prompts=sum(part.num_prompts for part in found),
        num_same_tokens=sum(part.num_same_tokens for part in found),
        num_same_bits=sum(part.num_same_bits for part in found),
        max_difference=max((part.max_difference for part in found), default=0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table; durations are medians in seconds.

    Attributes:
        prompt_tokens: Of each prompt in the order in which they were asked.
        hit_tokens: Of each prompt, as the engine reported them.
        kv_bytes: KV that the row has left in the cache.
        notes: What else there is to say, in sentences.
        faults: What is not as it should be, in sentences; empty if all is.
    """

    key: str
    title: str
    prompt_tokens: tuple[int, ...]
    hit_tokens: tuple[int, ...]
    ttft_cold_s: float | None
    ttft_warm_s: float | None
    tpot_cold_s: float | None
    tpot_warm_s: float | None
    kv_bytes: int
    exactness: Exactness
    notes: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def ttft_ratio(self) -> float | None:
        if self.ttft_cold_s is None or not self.ttft_warm_s:
            return None
        return self.ttft_cold_s / self.ttft_warm_s


class RowTaker:
    """Asks the prompts of one row."""

    def __init__(
        self,
        session: Session,
        key: str,
        *,
        max_tokens: int,
        on_run: Callable[[int], None],
    ) -> None:
        self._session = session
        self._domain = Domain(f"demo/{key}")
        self._max_tokens = max_tokens
        self._on_run = on_run
        self._num_blocks_before = _count_blocks(session)
        self._num_evicted_before = _count_evicted(session)
        self._num_runs = 0
        self.key = key
        self.prompts: list[WrittenPrompt] = []
        self.outputs: list[RequestOutput] = []
        self._cold: list[RequestOutput] = []
        self._compared: list[Exactness] = []
        self.faults: list[str] = []
        # Tokens whose KV is cached, of each request so far.
        self._cached: list[list[int]] = []

    def ask(self, prompt: WrittenPrompt, *, ignore_eos: bool = True) -> RequestOutput:
        """Ask with the cache, and check that the hit is as long as it can be.

        Once the row has cost blocks, shorter hits are no fault: the cache is too small.
        """
        output = self._run(prompt, READ_WRITE, ignore_eos=ignore_eos)
        self.prompts.append(prompt)
        self.outputs.append(output)
        self._check_hit(f"prompt {len(self.prompts)}", prompt, output)
        # The last token was sampled and never computed.
        self._cached.append([*prompt.token_ids, *output.token_ids[:-1]])
        return output

    def possible_hit(self, prompt: WrittenPrompt) -> int:
        """Count the leading tokens whose KV is there; the last is always computed."""
        longest = max(
            (common_length(prompt.token_ids, cached) for cached in self._cached), default=0
        )
        return min(longest, len(prompt.token_ids) - 1)

    def nearest(self, prompt: WrittenPrompt) -> WrittenPrompt:
        """Return the earlier prompt that has most leading tokens in common with it."""
        return max(
            self.prompts,
            key=lambda earlier: common_length(prompt.token_ids, earlier.token_ids),
        )

    def run_cold(self, indices: Iterable[int], *, ignore_eos: bool = True) -> None:
        """Run prompts that were asked before again, with the cache off."""
        for index in indices:
            output = self._run(self.prompts[index], NO_CACHE, ignore_eos=ignore_eos)
            if output.usage.cached_tokens:
                self.faults.append(f"prompt {index + 1} hit although the cache was off")
            self._cold.append(output)
            self._compared.append(_compare(self.outputs[index], output))

    def ask_first_again(self) -> None:
        """Ask the first prompt again: it was computed whole, and now it ran both ways.

        What an empty cache makes a prompt compute is what no cache makes it compute, so
        its first run is a cold one, and a long prompt need not be computed twice.
        """
        first = self.outputs[0]
        if first.usage.cached_tokens:
            self.faults.append("the first prompt hit although nothing was cached")
        again = self._run(self.prompts[0], READ_WRITE, ignore_eos=True)
        self._check_hit("the first prompt then", self.prompts[0], again)
        self._cold.append(first)
        self._compared.append(_compare(again, first))

    def finish(self, title: str, *, warm: Iterable[int], notes: Sequence[str] = ()) -> Row:
        """Return the row; the medians of its warm columns are over the runs ``warm``."""
        warm_outputs = [self.outputs[index] for index in warm]
        exactness = add_exactness(self._compared)
        if self._session.facts.is_exact and not exactness.is_exact:
            self.faults.append(
                f"{exactness.num_prompts - exactness.num_same_bits} of "
                f"{exactness.num_prompts} prompts gave other bits without the cache"
            )
        num_blocks = _count_blocks(self._session) - self._num_blocks_before
        return Row(
            key=self.key,
            title=title,
            prompt_tokens=tuple(output.usage.prompt_tokens for output in self.outputs),
            hit_tokens=tuple(output.usage.cached_tokens for output in self.outputs),
            ttft_cold_s=_median(output.timing.ttft_s for output in self._cold),
            ttft_warm_s=_median(output.timing.ttft_s for output in warm_outputs),
            tpot_cold_s=_median(output.timing.tpot_s for output in self._cold),
            tpot_warm_s=_median(output.timing.tpot_s for output in warm_outputs),
            kv_bytes=max(num_blocks, 0) * self._session.facts.block_bytes,
            exactness=exactness,
            notes=(*notes, *self._eviction_notes()),
            faults=tuple(self.faults),
        )

    def _check_hit(self, which: str, prompt: WrittenPrompt, output: RequestOutput) -> None:
        hit, possible = output.usage.cached_tokens, self.possible_hit(prompt)
        least = 0 if self._num_evicted else possible - _MAX_NOT_COPIED
        if not least <= hit <= possible:
            self.faults.append(f"{which} hit {hit:,} tokens, not {possible:,}")

    def _eviction_notes(self) -> Iterator[str]:
        if self._num_evicted:
            yield (
                f"{self._num_evicted:,} blocks were evicted meanwhile, and hits may be "
                "shorter for it; a larger cache keeps them."
            )

    @property
    def _num_evicted(self) -> int:
        return _count_evicted(self._session) - self._num_evicted_before

    def _run(
        self, prompt: WrittenPrompt, access: Access, *, ignore_eos: bool
    ) -> RequestOutput:
        params = SamplingParams(
            max_tokens=self._max_tokens, ignore_eos=ignore_eos, return_logits=True
        )
        options = RequestOptions(domain=self._domain, access=access)
        [output] = self._session.engine.generate(
            [prompt.token_ids], params, options=options
        )
        if output.error is not None:
            raise CapacityError(output.error)
        self._num_runs += 1
        self._on_run(self._num_runs)
        return output


def _count_blocks(session: Session) -> int:
    """Count the blocks that hold something a later request may reuse."""
    counts = session.engine.cache.snapshot().blocks
    return counts.shared + counts.idle


def _count_evicted(session: Session) -> int:
    return session.engine.cache.snapshot().num_evicted_blocks


def _compare(warm: RequestOutput, cold: RequestOutput) -> Exactness:
    is_same = warm.token_ids == cold.token_ids
    if warm.logits is None or cold.logits is None:
        return Exactness(
            num_prompts=1, num_same_tokens=int(is_same), num_same_bits=0, max_difference=0.0
        )
    # From the first different token on, the two computed different things.
    length = min(common_length(warm.token_ids, cold.token_ids) + 1, len(warm.logits))
    ours, theirs = warm.logits[:length], cold.logits[:length]
    return Exactness(
        num_prompts=1,
        num_same_tokens=int(is_same),
        num_same_bits=int(is_same and torch.equal(warm.logits, cold.logits)),
        max_difference=float((ours - theirs).abs().max()),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
