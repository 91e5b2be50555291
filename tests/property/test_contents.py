"""Contents in token arrays, against a naive model that compares digests themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefold.blocks.table import TOKEN_DTYPE, TokenIds
from prefold.cache import PrefixCache
from prefold.cache.contents import ContentItem
from prefold.identity.content import ContentSpan
from prefold.identity.domain import Domain
from prefold.identity.encoding import digest
from support.fingerprints import make_fingerprint

BLOCK = 2
DOMAIN = Domain("local")
#: Two contents of two lengths, and two tokens: what can be confused at all.
_DIGEST = digest("image", "a")
#: One bit apart: whoever looks at a part of a digest only takes the two for one.
DIGESTS = {
    "a": _DIGEST,
    "b": bytes([_DIGEST[0] ^ 1]) + _DIGEST[1:],
    "c": _DIGEST[:-1] + bytes([_DIGEST[-1] ^ 1]),
}
LENGTHS = {"a": 2, "b": 3, "c": 2}

# A prompt is a list of tokens and names of contents.
PROMPTS = st.lists(st.sampled_from([0, 1, "a", "b", "c"]), min_size=1, max_size=5)


class Contents:
    """Prompts as arrays with numbers, and as what they really hold."""

    def __init__(self) -> None:
        self.cache = PrefixCache(num_blocks=64, block_size=BLOCK, clock=lambda: 0.0)
        self.fingerprint = make_fingerprint(block_size=BLOCK)
        self.held: list[ContentItem] = []

    def read(self, prompt: Sequence[int | str]) -> tuple[TokenIds, list[object]]:
        meaning: list[object] = []
        spans: list[ContentSpan] = []
        for part in prompt:
            if isinstance(part, int):
                meaning.append(part)
                continue
            start, key = len(meaning), DIGESTS[part]
            if part == "c":
                # One content in two stretches, as an image that is cut into rows.
                meaning += [(key, 0), 1, (key, 1)]
                spans.append(ContentSpan(start, start + 1, key))
                spans.append(ContentSpan(start + 2, start + 3, key, 1))
                continue
            meaning += [(key, offset) for offset in range(LENGTHS[part])]
            spans.append(ContentSpan(start, len(meaning), key))
        tokens = np.array([m if isinstance(m, int) else 0 for m in meaning], TOKEN_DTYPE)
        self.held += self.cache.keys.contents.number(tokens, spans)
        return tokens, meaning

    def publish(self, tokens: TokenIds) -> None:
        lease = self.cache.acquire(self.fingerprint, DOMAIN, tokens)
        self.cache.reserve(lease, len(tokens))
        if lease.pending_copy is not None:
            self.cache.copied(lease)
        self.cache.release(lease, tokens, len(tokens))


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


@given(st.lists(PROMPTS, min_size=1, max_size=6), PROMPTS, st.integers(0, 6))
def test_a_match_is_what_the_contents_themselves_have_in_common(
    earlier: list[list[int | str]], prompt: list[int | str], forget_at: int
) -> None:
    world = Contents()
    meanings = []
    for index, each in enumerate(earlier):
        tokens, meaning = world.read(each)
        world.publish(tokens)
        meanings.append(meaning)
        if index == forget_at:
            world.held.clear()
            world.cache.keys.contents.forget_unused()
    tokens, meaning = world.read(prompt)
    found = world.cache.lookup(world.fingerprint, DOMAIN, tokens)
    whole = [
        min(common_prefix(meaning, other), len(meaning) - 1, len(other) // BLOCK * BLOCK)
        for other in meanings
    ]
    assert found.num_matched_tokens == max(whole) // BLOCK * BLOCK
    world.cache.check_invariants()


@given(st.lists(PROMPTS, min_size=1, max_size=6))
def test_both_ways_of_looking_up_agree_on_contents(prompts: list[list[int | str]]) -> None:
    world = Contents()
    for each in prompts:
        tokens, _ = world.read(each)
        world.publish(tokens)
    by_key: dict[bytes, list[object]] = {}
    for each in prompts:
        tokens, meaning = world.read(each)
        keys = world.cache.keys.of(world.fingerprint, DOMAIN, tokens)
        for index, key in enumerate(keys):
            prefix = meaning[: (index + 1) * BLOCK]
            assert by_key.setdefault(key, prefix) == prefix
            assert world.cache.keys.find(key) is not None
    assert len({tuple(prefix) for prefix in by_key.values()}) == len(by_key)


@given(PROMPTS)
def test_spans_say_what_a_token_array_holds(prompt: list[int | str]) -> None:
    world = Contents()
    world.read(["b", "a"])
    tokens, meaning = world.read(prompt)
    found: list[object] = tokens.tolist()
    for span in world.cache.keys.contents.spans(tokens):
        for position in range(span.start, span.end):
            found[position] = (span.digest, span.offset + position - span.start)
    assert found == meaning
