"""Verification variants: the ways in which a prompt is run, and what each must do.

Each takes the prompts it can run. Without ``--full`` the dearer ones take a few of them,
spread over the lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from prefold.blocks.table import TOKEN_DTYPE, num_blocks_for
from prefold.engine.engine import Engine
from prefold.engine.request import RequestId, RequestOutput, SamplingParams
from prefold.engine.verification_ledger import ExpectedHit
from prefold.engine.verification_prompts import VerificationPrompt, strange_tokens
from prefold.engine.verification_references import (
    GROUP_STEP_TOKENS,
    MAX_REPLY,
    Verification,
    greedy,
    stranger_lengths,
    stranger_size,
)
from prefold.engine.verification_rig import NOTHING, Rig, options_for, run_all
from prefold.engine.verification_tally import DifferenceKind, Tally

#: A fork that is drawn at random needs one to differ in, and one that shows it.
_NUM_DRAWN_TOKENS = 3

#: What a small chunk's run leaves to be computed, at least.
_LAST_TOKENS = 32

#: Runs by chunk, without ``--full``.
_LARGE_CHUNK_RUNS = {64: 2, 512: 1}

_NUM_FORKS = 2


def run_cold(verification: Verification, tally: Tally) -> None:
    """The references; one of them twice, since what is not repeatable proves nothing."""
    twice = {prompt.name for prompt in verification.choose(1)}
    for prompt in verification.prompts:
        output = reference = verification.reference(prompt)
        if prompt.name in twice:
            output = verification.run_cold(prompt.token_ids, len(reference.token_ids))
        tally.compare(prompt, reference, output, NOTHING)
    tally.count_rig(verification.cold_rig)


def run_small_chunks(verification: Verification, tally: Tally, *, chunk: int) -> None:
    """The last tokens of prompts whose beginning is cached up to the edge of a block."""
    size = verification.block_size
    count = 1 if chunk == 1 else 2

    def is_long(prompt: VerificationPrompt) -> bool:
        left = prompt.num_tokens - _LAST_TOKENS
        # One token at a time, every token more is a step more.
        return left >= size and (verification.is_full or chunk > 1 or left % size == 0)

    for prompt in verification.choose(count, is_long) or verification.choose(count):
        rig, domain = _pool_for(verification, prompt, is_kept=chunk > 1)
        edge = max(0, prompt.num_tokens - _LAST_TOKENS) // size * size
        if edge > 0:
            start = prompt.token_ids[:edge]
            rig.engine().warm([start], options=options_for(domain))
            rig.ledger(domain).add(start)
        _run_chunked(verification, tally, prompt, chunk, (rig, domain))


def run_large_chunks(verification: Verification, tally: Tally, *, chunk: int) -> None:
    """Whole prompts of more than one chunk, in a cache that has not seen them."""

    def is_long(prompt: VerificationPrompt) -> bool:
        is_new = verification.is_full or prompt.name not in verification.warmed
        return is_new and prompt.num_tokens > chunk

    chosen = verification.choose(_LARGE_CHUNK_RUNS[chunk], is_long)
    for prompt in chosen or verification.choose(1):
        pool = _pool_for(verification, prompt, is_kept=True)
        _run_chunked(verification, tally, prompt, chunk, pool)


def _pool_for(
    verification: Verification, prompt: VerificationPrompt, *, is_kept: bool
) -> tuple[Rig, str]:
    """Return where a chunked run goes: a pool of its own, or that of the warm variant.

    The latter saves the warm variant from computing the prompt once more.
    """
    if is_kept and not verification.is_full:
        verification.warmed.add(prompt.name)
        return verification.warm_rig, "warm"
    held = num_blocks_for(prompt.num_tokens + MAX_REPLY, verification.block_size)
    return Rig(verification.subject, held + 3), "chunked"


def _run_chunked(
    verification: Verification,
    tally: Tally,
    prompt: VerificationPrompt,
    chunk: int,
    pool: tuple[Rig, str],
) -> None:
    rig, domain = pool
    reference = verification.reference(prompt)
    length = verification.reply_length(prompt)
    rig.recorder.reset()
    output, expected = rig.run(rig.engine(chunk), prompt.token_ids, greedy(length), domain)
    tally.compare(prompt, reference, output, expected)
    num_computed = prompt.num_tokens - output.usage.cached_tokens
    num_steps = -(-num_computed // chunk) + length - 1
    tally.require(rig.recorder.num_steps == num_steps, DifferenceKind.STEPS, prompt)
    tally.count_rig(rig)


def run_warm(verification: Verification, tally: Tally) -> None:
    """All prompts one after another, when all that is new in them has been cached.

    With ``--full`` it is cached by running them, otherwise in one batch. What a prompt
    has in common with one before it for more than half of its length is not new.
    """
    if verification.is_full:
        _run_all_warm(verification, tally)
    else:
        _publish_new(verification)
    _run_all_warm(verification, tally)
    tally.count_rig(verification.warm_rig)


def _run_all_warm(verification: Verification, tally: Tally) -> None:
    rig = verification.warm_rig
    for prompt in verification.prompts:
        params = greedy(verification.reply_length(prompt))
        reference = verification.reference(prompt)
        output, expected = rig.run(rig.engine(), prompt.token_ids, params, "warm")
        tally.compare(prompt, reference, output, expected)


def _publish_new(verification: Verification) -> None:
    rig = verification.warm_rig
    new = []
    for prompt in verification.prompts:
        if 2 * rig.expect("warm", prompt.token_ids).most < prompt.num_tokens:
            new.append(prompt.token_ids)
            rig.ledger("warm").add(prompt.token_ids)
    rig.engine().warm(new, options=options_for("warm"))


def run_batched(verification: Verification, tally: Tally) -> None:
    """Groups in one batch with strangers, every other prompt from the cache."""
    rig = verification.warm_rig
    engine = rig.engine(GROUP_STEP_TOKENS)
    for group in verification.groups():
        references = [verification.reference(prompt) for prompt in group]
        strangers = _submit_strangers(engine, group, rig)
        rig.recorder.reset()
        domains = ["warm" if index % 2 else None for index in range(len(group))]
        expected = [
            rig.expect(domain, prompt.token_ids)
            for domain, prompt in zip(domains, group, strict=True)
        ]
        request_ids = [
            engine.submit(
                prompt.token_ids,
                greedy(verification.reply_length(prompt)),
                options=options_for(domain),
            )
            for domain, prompt in zip(domains, group, strict=True)
        ]
        outputs = run_all(engine, request_ids)
        for prompt, reference, output, hit in zip(
            group, references, outputs, expected, strict=True
        ):
            tally.compare(prompt, reference, output, hit)
        tally.require(rig.recorder.num_lonely_steps == 0, DifferenceKind.ALONE, group[0])
        for request_id in strangers:
            engine.abort(request_id)
        while engine.has_work:
            engine.step()
    tally.count_rig(rig)


def _submit_strangers(
    engine: Engine, group: Sequence[VerificationPrompt], rig: Rig
) -> list[RequestId]:
    lengths = stranger_lengths(group, rig.block_size)
    return [
        engine.submit(
            strange_tokens(rig.limits, stranger_size(number), number),
            SamplingParams(max_tokens=length, ignore_eos=True),
            options=options_for(None),
        )
        for number, length in enumerate(lengths)
    ]


def run_evicted(verification: Verification, tally: Tally) -> None:
    """A pool as large as the prompt: a stranger evicts it, all of it or its end."""
    size, limits = verification.block_size, verification.subject.limits

    def has_room(prompt: VerificationPrompt) -> bool:
        return prompt.num_tokens + 2 * size < limits.max_model_len

    def has_blocks(prompt: VerificationPrompt) -> bool:
        return has_room(prompt) and prompt.num_tokens > 2 * size

    chosen = [] if verification.is_full else verification.choose(2, has_blocks)
    for index, prompt in enumerate(chosen or verification.choose(2, has_room)):
        reference = verification.reference(prompt)
        params = greedy(verification.reply_length(prompt))
        num_computed = prompt.num_tokens + params.max_tokens - 1
        held = num_blocks_for(num_computed, size)
        num_blocks = num_blocks_for(num_computed + 2, size)
        # Less than all but the last token, so that something is missing afterwards.
        at_most = max(prompt.num_tokens - 2, 0) // size
        kept = min(held // 2, at_most) if index % 2 else 0
        rig = Rig(verification.subject, num_blocks)
        output, expected = rig.run(rig.engine(), prompt.token_ids, params, "evicted")
        tally.compare(prompt, reference, output, expected)
        # A request leaves room for one token more than it can come to hold.
        num_flood_tokens = (num_blocks - kept) * size - (0 if kept else 2)
        stranger = strange_tokens(limits, num_flood_tokens, index)
        rig.run(rig.engine(), stranger, greedy(1), None)
        tally.require(rig.num_evictions > 0, DifferenceKind.NOT_EVICTED, prompt)
        output, _ = rig.run(rig.engine(), prompt.token_ids, params, "evicted")
        hit = ExpectedHit(least=kept * size, most=kept * size)
        tally.compare(prompt, reference, output, hit)
        tally.count_rig(rig)


def run_preempted(verification: Verification, tally: Tally) -> None:
    """A pool in which an older stranger takes the block that the prompt's reply needs.

    ::

        blocks    [ stranger | prompt ... | spare ]
        1st step    prompts of both
        2nd step    the stranger's reply takes the spare block
        later       the prompt's reply comes to the end of its last block
    """
    size = verification.block_size
    for index, prompt in enumerate(_preemptible(verification)):
        blocks = num_blocks_for(prompt.num_tokens, size)
        missing = -prompt.num_tokens % size
        num_tokens = max(MAX_REPLY, missing + 2)
        reference = verification.reference(prompt, num_tokens)
        rig = Rig(verification.subject, blocks + 2)
        engine = rig.engine()
        length = min(missing + 4, (blocks + 1) * size - 1)
        stranger = engine.submit(
            strange_tokens(rig.limits, size, index),
            SamplingParams(max_tokens=length, ignore_eos=True),
            options=options_for(None),
        )
        request_id = engine.submit(
            prompt.token_ids, greedy(num_tokens), options=options_for("preempted")
        )
        _, output = run_all(engine, [stranger, request_id])
        tally.compare(prompt, reference, output, NOTHING)
        counters = engine.counters
        is_resumed = counters.num_admissions == 2 + counters.num_preemptions
        tally.require(
            counters.num_preemptions > 0 and is_resumed,
            DifferenceKind.NOT_PREEMPTED,
            prompt,
        )
        tally.count_rig(rig)


def _preemptible(verification: Verification) -> list[VerificationPrompt]:
    size = verification.block_size

    def is_possible(prompt: VerificationPrompt) -> bool:
        blocks = num_blocks_for(prompt.num_tokens, size)
        # The stranger must be allowed to outlast the end of the prompt's last block.
        return (blocks + 1) * size - 1 >= -prompt.num_tokens % size + 3

    def is_cheap(prompt: VerificationPrompt) -> bool:
        has_second = prompt.num_reply_tokens == MAX_REPLY
        return is_possible(prompt) and has_second and prompt.num_tokens % size == 0

    chosen = verification.choose(1, is_possible if verification.is_full else is_cheap)
    return chosen or verification.choose(1, is_possible)


def run_forked(verification: Verification, tally: Tally) -> None:
    """Two forks after the first token: greedy ones, and ones that go different ways.

    Where they go different ways, what each has become is run without the cache, and the
    logits behind its last token but one are compared.
    """
    size = verification.block_size

    def has_block(prompt: VerificationPrompt) -> bool:
        return prompt.num_tokens >= size and verification.reply_length(prompt) == MAX_REPLY

    for index, prompt in enumerate(verification.choose(2, has_block)):
        held = num_blocks_for(prompt.num_tokens + _NUM_DRAWN_TOKENS, size)
        rig = Rig(verification.subject, held + _NUM_FORKS * 4 + 2)
        is_greedy = index % 2 == 0
        outputs = _fork(rig, prompt, is_greedy=is_greedy)
        num_shared = rig.recorder.num_shared_blocks
        tally.require(num_shared > 0, DifferenceKind.NOT_SHARED, prompt)
        for number, output in enumerate(outputs):
            # A fork computed nothing of the prompt itself.
            hit = prompt.num_tokens if number else 0
            expected = ExpectedHit(least=hit, most=hit)
            if is_greedy:
                tally.compare(prompt, verification.reference(prompt), output, expected)
            else:
                tally.count_run(prompt, output, expected)
                _compare_last(verification, tally, prompt, output)
        tally.count_rig(rig)


def _fork(rig: Rig, prompt: VerificationPrompt, *, is_greedy: bool) -> list[RequestOutput]:
    engine = rig.engine()
    params = greedy(MAX_REPLY)
    if not is_greedy:
        params = SamplingParams(
            max_tokens=_NUM_DRAWN_TOKENS,
            temperature=1.0,
            seed=1,
            ignore_eos=True,
            return_logits=True,
        )
    parent = engine.submit(prompt.token_ids, params, options=options_for("forked"))
    while engine.counters.num_sampled_tokens == 0:
        engine.step()
    return run_all(engine, [parent, *engine.fork(parent, _NUM_FORKS)])


def _compare_last(
    verification: Verification,
    tally: Tally,
    prompt: VerificationPrompt,
    output: RequestOutput,
) -> None:
    sampled = np.array(output.token_ids[:-1], dtype=TOKEN_DTYPE)
    token_ids = np.concatenate((prompt.token_ids, sampled))
    again = verification.run_cold(token_ids, 1)
    if output.logits is None or again.logits is None:
        tally.require(False, DifferenceKind.ENDING, prompt)  # noqa: FBT003
        return
    tally.compare_logits(prompt, len(token_ids), again.logits[0], output.logits[-1])


#: In the order in which they are run: the later ones use what the earlier ones left.
VARIANTS: Mapping[str, Callable[[Verification, Tally], None]] = {
    "cold": run_cold,
    "chunked 1": partial(run_small_chunks, chunk=1),
    "chunked 7": partial(run_small_chunks, chunk=7),
    "chunked 64": partial(run_large_chunks, chunk=64),
    "chunked 512": partial(run_large_chunks, chunk=512),
    "warm": run_warm,
    "batched": run_batched,
    "evicted": run_evicted,
    "preempted": run_preempted,
    "forked": run_forked,
}
