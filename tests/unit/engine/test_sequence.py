from __future__ import annotations

import numpy as np
import pytest

from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestId
from prefold.engine.sequence import Sequence, SequenceState
from prefold.engine.sidecar import PromptLogprobs
from prefold.errors import InvariantError
from support.fingerprints import make_fingerprint


def make(prompt: list[int], max_tokens: int) -> Sequence:
    return Sequence(
        RequestId("request-1"),
        1,
        np.array(prompt, dtype=np.int64),
        max_tokens=max_tokens,
        fingerprint=make_fingerprint(),
        options=RequestOptions(),
    )


def test_tokens_are_one_buffer_that_never_moves() -> None:
    sequence = make([4, 5, 6], 3)
    before = sequence.tokens
    for token_id in (7, 8, 9):
        assert sequence.wants_token
        sequence.append(token_id)
    assert not sequence.wants_token
    assert sequence.tokens.tolist() == [4, 5, 6, 7, 8, 9]
    assert sequence.token_ids(2, 5).tolist() == [6, 7, 8]
    assert np.shares_memory(before, sequence.tokens)


def test_a_sequence_made_to_warm_wants_no_token() -> None:
    assert not make([4, 5, 6], 0).wants_token


def test_a_branch_has_its_own_tokens() -> None:
    sequence = make([4, 5], 3)
    sequence.append(6)
    twin = sequence.branch(RequestId("request-2"), 2)
    twin.append(7)
    sequence.append(8)
    assert twin.tokens.tolist() == [4, 5, 6, 7]
    assert sequence.tokens.tolist() == [4, 5, 6, 8]
    assert twin.num_prompt_tokens == 2
    assert twin.state is SequenceState.QUEUED


def test_under_another_model_nothing_counts_that_the_old_one_found_out() -> None:
    sequence = make([4, 5, 6], 3)
    known = sequence.prompt_logprobs = PromptLogprobs(3, 2)
    known.num_known = 3
    sequence.num_cached = sequence.num_restored = 2
    sequence.counts_hits = False
    other = make_fingerprint(weights=b"other")
    sequence.renew(other)
    assert sequence.fingerprint == other
    assert sequence.prompt_logprobs is not known
    assert sequence.prompt_logprobs.num_known == 1
    assert sequence.hit_limit == 0
    assert (sequence.num_cached, sequence.num_restored) == (0, 0)
    assert sequence.counts_hits
    assert sequence.tokens.tolist() == [4, 5, 6]


def test_only_a_running_sequence_has_a_lease() -> None:
    with pytest.raises(InvariantError, match="QUEUED"):
        _ = make([4], 1).held_lease


def test_its_description_tells_no_tokens() -> None:
    assert repr(make([41, 42], 1)) == "Sequence(1, QUEUED, 0 of 2 computed)"
