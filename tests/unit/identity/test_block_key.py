from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.errors import InvalidInputError
from prefold.identity.block_key import (
    ContentKey,
    block_key,
    extend_content,
    root_content,
)
from prefold.identity.content import ContentSpan, cut_spans
from prefold.identity.domain import PUBLIC, Audience, AudienceKind, Domain
from prefold.identity.encoding import digest
from prefold.identity.secret import MasterSecret
from support.fingerprints import make_fingerprint
from support.processes import run_python

ROOT = root_content(make_fingerprint())
ITEMS = [b"x" * 32, b"y" * 32]
#: A token, or an item and the offset in it.
Held: TypeAlias = tuple[bytes, int] | int


def _array(tokens: list[int] | tuple[int, ...]) -> npt.NDArray[np.int64]:
    return np.array(tokens, dtype=np.int64)


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_keys_are_equal_exactly_if_the_tokens_up_to_there_are(block_size: int) -> None:
    tokens_by_key: dict[ContentKey, tuple[int, ...]] = {}
    keys_by_tokens: dict[tuple[int, ...], ContentKey] = {}
    for length in range(8):
        for tokens in itertools.product([0, 1], repeat=length):
            keys = extend_content(ROOT, _array(tokens), block_size)
            assert len(keys) == length // block_size
            for index, key in enumerate(keys):
                covered = tokens[: (index + 1) * block_size]
                assert tokens_by_key.setdefault(key, covered) == covered
                assert keys_by_tokens.setdefault(covered, key) == key


@given(
    tokens=st.lists(st.integers(0, 1), max_size=24),
    cut=st.integers(0, 6),
    size=st.integers(1, 4),
)
def test_extending_in_two_calls_gives_the_same_keys(
    tokens: list[int], cut: int, size: int
) -> None:
    whole = extend_content(ROOT, _array(tokens), size)
    head = extend_content(ROOT, _array(tokens[: cut * size]), size)
    parent = head[-1] if head else ROOT
    assert [*head, *extend_content(parent, _array(tokens[cut * size :]), size)] == whole


def test_block_sizes_and_fingerprints_give_unrelated_keys() -> None:
    keys = set()
    fingerprints = [make_fingerprint(block_size=size) for size in [1, 2, 4]]
    fingerprints += [make_fingerprint(weights=b"W"), make_fingerprint(adapter=b"w")]
    for fingerprint in fingerprints:
        size = fingerprint.block_size
        keys.update(extend_content(root_content(fingerprint), _array([0] * 16), size))
    assert len(keys) == 16 + 8 + 4 + 1 + 1


def test_a_key_is_made_of_its_parent_and_its_own_tokens() -> None:
    [first, second] = extend_content(ROOT, _array([1, 2, 3, 4, 5]), 2)
    assert first == digest("content", ROOT, _array([1, 2]))
    assert second == digest("content", first, _array([3, 4]))
    assert make_fingerprint().digest() == ROOT


def test_tokens_beyond_32_bits_and_strided_views_are_kept_apart_by_value() -> None:
    tokens = _array([1, 9, 1 << 32, 9, (1 << 32) + 1, 9])[::2]
    keys = extend_content(ROOT, tokens, 1)
    assert keys == extend_content(ROOT, tokens.copy(), 1)
    assert keys[0] == extend_content(ROOT, _array([1]), 1)[0]
    firsts = {extend_content(ROOT, tokens[i:], 1)[0] for i in range(3)}
    assert len(firsts) == 3


def test_keys_of_two_audiences_are_unrelated() -> None:
    secrets = [MasterSecret(bytes([n]) * 32) for n in (1, 2)]
    domains = [
        Domain(path, salt) for path in ["a", "aa", "a/a"] for salt in [None, b"a", b"aa"]
    ]
    audiences = [Audience(AudienceKind.OWN, domain) for domain in [*domains, PUBLIC]]
    audiences += [
        Audience(AudienceKind.APPROVED, d) for d in [*domains, PUBLIC] if d.salt is None
    ]
    audiences += [
        Audience(AudienceKind.THROWAWAY, Domain("a"), serial) for serial in [1, 2]
    ]
    contents = extend_content(ROOT, _array([0, 1, 0]), 1)
    keys = [
        block_key(secret.domain_key(audience), content)
        for secret in secrets
        for audience in audiences
        for content in contents
    ]
    assert len(set(keys)) == len(keys) == 2 * len(audiences) * 3
    assert not set(keys) & set(contents)
    # No bit of a key follows from the other audience's: about half of them differ.
    for one, other in itertools.pairwise(keys):
        differing = (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()
        assert 80 < differing < 176


def test_a_block_key_needs_a_whole_domain_key() -> None:
    with pytest.raises(InvalidInputError, match="a key has 32 bytes"):
        block_key(b"", ROOT)


# Content spans: what a position holds enters the key, never the number standing for it.


def _with_spans(
    held: tuple[Held, ...], *, virtual: int = -1, merge: bool = True
) -> tuple[npt.NDArray[np.int64], tuple[ContentSpan, ...]]:
    tokens: list[int] = []
    spans: list[ContentSpan] = []
    for position, content in enumerate(held):
        if isinstance(content, int):
            tokens.append(content)
            continue
        tokens.append(virtual - position)
        item, offset = content
        last = spans[-1] if spans else None
        if (
            merge
            and last is not None
            and (last.end, last.digest) == (position, item)
            and last.offset + position - last.start == offset
        ):
            spans[-1] = ContentSpan(last.start, position + 1, item, last.offset)
        else:
            spans.append(ContentSpan(position, position + 1, item, offset))
    return _array(tokens), tuple(spans)


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_keys_are_equal_exactly_if_the_contents_up_to_there_are(block_size: int) -> None:
    contents: list[Held] = [0, 1, (ITEMS[0], 0), (ITEMS[0], 1), (ITEMS[1], 0)]
    held_by_key: dict[ContentKey, tuple[object, ...]] = {}
    keys_by_held: dict[tuple[object, ...], ContentKey] = {}
    for held in itertools.product(contents, repeat=4):
        tokens, spans = _with_spans(held)
        keys = extend_content(ROOT, tokens, block_size, spans)
        assert len(keys) == 4 // block_size
        for index, key in enumerate(keys):
            covered = held[: (index + 1) * block_size]
            assert held_by_key.setdefault(key, covered) == covered
            assert keys_by_held.setdefault(covered, key) == key


@given(
    held=st.lists(
        st.integers(0, 1) | st.tuples(st.sampled_from(ITEMS), st.integers(0, 2)),
        max_size=20,
    ).map(tuple),
    block_size=st.integers(1, 5),
)
def test_virtual_ids_and_cuts_between_spans_make_no_difference(
    held: tuple[Held, ...], block_size: int
) -> None:
    tokens, spans = _with_spans(held)
    keys = extend_content(ROOT, tokens, block_size, spans)
    other_tokens, cut = _with_spans(held, virtual=-(10**9), merge=False)
    assert extend_content(ROOT, other_tokens, block_size, cut) == keys


@pytest.mark.parametrize("cut", [2, 4, 6])
def test_extending_in_two_calls_gives_the_same_keys_with_content(cut: int) -> None:
    image: list[Held] = [(ITEMS[1], offset) for offset in range(4)]
    held: tuple[Held, ...] = (0, (ITEMS[0], 0), (ITEMS[0], 1), 1, *image)
    tokens, spans = _with_spans(held)
    whole = extend_content(ROOT, tokens, 2, spans)
    head = extend_content(ROOT, tokens[:cut], 2, cut_spans(spans, 0, cut))
    tail = extend_content(head[-1], tokens[cut:], 2, cut_spans(spans, cut, len(tokens)))
    assert head + tail == whole


def test_blocks_without_content_are_as_if_there_were_none_anywhere() -> None:
    tokens, spans = _with_spans((5, 6, (ITEMS[0], 0), 7, 8))
    assert (
        extend_content(ROOT, tokens, 2, spans)[0] == extend_content(ROOT, tokens[:2], 2)[0]
    )


@pytest.mark.parametrize(
    ("tokens", "spans"),
    [
        ([1, -1, 2], ()),
        ([1, 2, 3], (ContentSpan(1, 2, ITEMS[0]),)),
        ([1, -1, -2], (ContentSpan(1, 2, ITEMS[0]),)),
        ([-1, -2, 3], (ContentSpan(0, 2, ITEMS[0]), ContentSpan(1, 2, ITEMS[1]))),
        ([-1, -2, 3], (ContentSpan(1, 2, ITEMS[0]), ContentSpan(0, 1, ITEMS[1]))),
        ([1, 2, -3], (ContentSpan(2, 4, ITEMS[0]),)),
    ],
)
def test_spans_that_do_not_fit_the_tokens_are_refused(
    tokens: list[int], spans: tuple[ContentSpan, ...]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        extend_content(ROOT, _array(tokens), 2, spans)
    assert "[" not in str(caught.value), "token ids never enter a message"


def test_senseless_block_sizes_and_tokens_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="block_size must be at least 1, got 0"):
        extend_content(ROOT, _array([1]), 0)
    with pytest.raises(InvalidInputError, match="int64"):
        extend_content(ROOT, np.zeros(4, dtype=np.int32), 2)


_PRINT_KEYS = """
import numpy as np
from prefold.identity.block_key import block_key, extend_content, root_content
from prefold.identity.domain import Audience, AudienceKind, Domain
from prefold.identity.secret import MasterSecret
from support.fingerprints import make_fingerprint

audience = Audience(AudienceKind.OWN, Domain("a/b", b"s"))
key = MasterSecret(bytes(range(32))).domain_key(audience)
tokens = np.arange(64, dtype=np.int64)
contents = extend_content(root_content(make_fingerprint()), tokens, 16)
print(*(block_key(key, content).hex() for content in contents))
"""


def test_keys_are_equal_in_every_process() -> None:
    printed = {run_python(_PRINT_KEYS, hash_seed=seed) for seed in ["0", "1", "12345"]}
    assert len(printed) == 1
    keys = printed.pop().split()
    assert len(keys) == 4
    assert keys[0] == "fde1913ce31254fde3f6528d94872e75f03cd4402df00e6e1a65f3bfdb99312d"
