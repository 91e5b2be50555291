"""Verification references: what each prompt under test gives without the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prefold.blocks.table import TokenIds, num_blocks_for
from prefold.engine.request import RequestOutput, SamplingParams
from prefold.engine.verification_prompts import VerificationPrompt
from prefold.engine.verification_rig import Rig, Subject

#: Most tokens of a reply, where a variant needs no more.
MAX_REPLY = 2

#: Most tokens that the batched variant computes in a step.
GROUP_STEP_TOKENS = 512

_GROUP = 8
_NUM_GROUPS = 1
_NUM_STRANGERS = 3

#: Prompts of more blocks are left out of the dearer variants, without ``--full``.
_FEW_BLOCKS = 12


class Verification:
    """Prompts, their references, and the pool in which all of them are cached."""

    def __init__(
        self,
        subject: Subject,
        prompts: Sequence[VerificationPrompt],
        is_full: bool,  # noqa: FBT001 -- as in the settings
    ) -> None:
        self.subject = subject
        self.prompts = prompts
        self.is_full = is_full
        size = subject.block_size
        longest = max(prompt.num_tokens for prompt in prompts)
        self.cold_rig = Rig(
            subject, num_blocks_for(longest + 2 * size + MAX_REPLY, size) + 2
        )
        self._references: dict[str, RequestOutput] = {}
        #: Names of prompts that the pool has seen already.
        self.warmed: set[str] = set()
        self.warm_rig = Rig(subject, self._num_warm_blocks())

    @property
    def block_size(self) -> int:
        return self.subject.block_size

    def reply_length(self, prompt: VerificationPrompt) -> int:
        """Return how many tokens the prompt's reply has, where a variant needs no more."""
        return MAX_REPLY if self.is_full else prompt.num_reply_tokens

    def reference(self, prompt: VerificationPrompt, num_tokens: int = 1) -> RequestOutput:
        """Return the prompt's run without the cache, at least so many tokens long."""
        num_tokens = max(num_tokens, self.reply_length(prompt))
        known = self._references.get(prompt.name)
        if known is None or len(known.token_ids) < num_tokens:
            known = self.run_cold(prompt.token_ids, num_tokens)
            self._references[prompt.name] = known
        return known

    def run_cold(self, token_ids: TokenIds, num_tokens: int) -> RequestOutput:
        """Run tokens without the cache, alone, in as few steps as possible."""
        rig = self.cold_rig
        output, _ = rig.run(rig.engine(), token_ids, greedy(num_tokens), None)
        return output

    def choose(
        self, count: int, when: Callable[[VerificationPrompt], bool] = bool
    ) -> list[VerificationPrompt]:
        """Return prompts to run: all that can be, or ``count`` spread over the lengths.

        Args:
            count: How many, without ``--full``.
            when: Says whether a prompt will do.
        """
        found = [prompt for prompt in self.prompts if when(prompt)]
        if self.is_full:
            return found
        few = [p for p in found if p.num_tokens <= _FEW_BLOCKS * self.block_size] or found
        return _spread(few, count)

    def groups(self) -> list[list[VerificationPrompt]]:
        """Return the prompts to be run together."""
        chosen = self.choose(_NUM_GROUPS * _GROUP)
        return [chosen[start : start + _GROUP] for start in range(0, len(chosen), _GROUP)]

    def _num_warm_blocks(self) -> int:
        size = self.block_size
        # Every prompt's blocks, a partly filled one more for each of two runs, and room
        # for a group with its strangers.
        kept = sum(num_blocks_for(p.num_tokens + MAX_REPLY, size) + 2 for p in self.prompts)
        working = max(
            sum(num_blocks_for(p.num_tokens + MAX_REPLY, size) + 2 for p in group)
            for group in self.groups()
        )
        longest = max(max(stranger_lengths(group, size)) for group in self.groups())
        strangers = _NUM_STRANGERS * num_blocks_for(stranger_size(2) + longest + 2, size)
        return kept + working + strangers


def greedy(num_tokens: int) -> SamplingParams:
    """Return parameters for a reply of exactly so many tokens, with its logits."""
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, return_logits=True)


def _spread(prompts: Iterable[VerificationPrompt], count: int) -> list[VerificationPrompt]:
    """Return at most ``count`` of them, evenly spread over the lengths."""
    ordered = sorted(prompts, key=lambda prompt: prompt.num_tokens)
    if len(ordered) <= count:
        return ordered
    if count == 1:
        return [ordered[len(ordered) // 2]]
    last = len(ordered) - 1
    return [ordered[round(index * last / (count - 1))] for index in range(count)]


def stranger_size(number: int) -> int:
    """Return how many tokens a stranger's prompt has."""
    return 3 + 17 * number


def stranger_lengths(group: Sequence[VerificationPrompt], block_size: int) -> list[int]:
    """Return how long replies must be that last until the whole group has ended."""
    num_steps = (
        sum(prompt.num_tokens for prompt in group) // (GROUP_STEP_TOKENS - _GROUP) + 1
    )
    return [num_steps + MAX_REPLY + block_size + number for number in range(_NUM_STRANGERS)]
