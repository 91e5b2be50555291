from __future__ import annotations

import hashlib
import itertools
import math
import os
import struct
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.errors import InvalidInputError
from prefold.identity.encoding import (
    DIGEST_BYTES,
    ENCODING_VERSION,
    Field,
    digest,
    digest_chain,
    encode,
)
from support.reference_encoding import Slip, reference_digest, reference_encode

# Every small input.  Enumerated, not drawn: two random inputs are almost never one
# slip of the encoding apart, and these are all of them.
SCALARS: list[Field] = [
    None, False, True, 0, 1, -1, 128, -128, 256, 0.0, -0.0, 1.0, "", "a", "aa",
    b"", b"\0", b"a", b"aa", bytes(256),
]  # fmt: skip
ARRAYS: list[Field] = [
    np.array(numbers, dtype=np.int64) for numbers in ([], [0], [1], [0, 0], [1 << 32], [-1])
]
#: Payloads that look like frames, for encodings that lose a boundary.
FORGERIES: list[Field] = [
    encode("t", "a")[12:],
    encode("t", b"a")[12:],
    b"yyaa",
    b"ya",
    b"y",
]
INNER: list[Field] = [None, False, 0, "", "a", b"", b"a", b"y"]
TAGS = ["t", "tt", "ts"]


def _tuples(items: list[Field], most: int) -> list[tuple[Field, ...]]:
    return [
        drawn
        for count in range(most + 1)
        for drawn in itertools.product(items, repeat=count)
    ]


@cache
def _small_inputs() -> list[tuple[str, tuple[Field, ...]]]:
    nested: list[Field] = [
        *_tuples(INNER, 2),
        ((),),
        ((), ()),
        ((b"a",), b"a"),
        ((b"a", b"a"),),
    ]
    one_level = [*SCALARS, *ARRAYS, *FORGERIES]
    shapes = [*_tuples([*one_level, *nested], 2), *_tuples(INNER, 3)[-(len(INNER) ** 3) :]]
    # A payload of 256 bytes that reads as 128 empty ones if lengths wrap at 256.
    shapes += [(b"y\0" * 128,), (b"",) * 129]
    # Tags innermost: of two inputs that collide, the second should come soon.
    return [(tag, shape) for shape in reversed(shapes) for tag in TAGS]


def _has_collision(encoder: Callable[..., bytes]) -> bool:
    seen: set[bytes] = set()
    for count, (tag, fields) in enumerate(_small_inputs(), start=1):
        seen.add(encoder(tag, *fields))
        if len(seen) < count:
            return True
    return False


def test_encoding_tells_every_small_input_apart() -> None:
    assert not _has_collision(encode)


@pytest.mark.parametrize("slip", Slip)
def test_the_small_inputs_catch_every_slip(slip: Slip) -> None:
    assert _has_collision(partial(reference_encode, slip=slip))


def test_second_implementation_agrees_on_every_small_input() -> None:
    assert all(encode(tag, *f) == reference_encode(tag, *f) for tag, f in _small_inputs())


FIELDS: st.SearchStrategy[Field] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(st.characters(), max_size=8),
        st.binary(max_size=8),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(
            lambda numbers: np.array(numbers, dtype=np.int64)
        ),
    ),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)


@given(
    tag=st.text("abz09-", min_size=1, max_size=16),
    fields=st.lists(FIELDS, max_size=5),
    key=st.none() | st.binary(min_size=32, max_size=32),
)
def test_second_implementation_agrees(
    tag: str, fields: list[Field], key: bytes | None
) -> None:
    assert encode(tag, *fields) == reference_encode(tag, *fields)
    assert digest(tag, *fields, key=key) == reference_digest(tag, *fields, key=key or b"")


def test_second_implementation_agrees_on_many_random_tuples() -> None:
    num_tuples = 1_000_000 if os.environ.get("PREFOLD_SOAK") else 20_000
    rng = np.random.default_rng(7)
    seen: dict[bytes, bytes] = {}
    for _ in range(num_tuples):
        # Texts and bytes over two letters in short fields: neighbours of each other.
        fields = tuple(_random_field(rng) for _ in range(rng.integers(0, 5)))
        encoded = encode("t", *fields)
        assert encoded == reference_encode("t", *fields)
        described = repr(fields).encode()
        assert seen.setdefault(encoded, described) == described


def _random_field(rng: np.random.Generator) -> Field:
    kind = rng.integers(6)
    text = "ab"[rng.integers(2)] * int(rng.integers(4))
    number = int(rng.integers(-300, 300))
    choices: tuple[Field, ...] = (
        None,
        number,
        text,
        text.encode(),
        number / 4,
        (text, number),
    )
    return choices[kind]


def test_every_bit_of_a_field_changes_the_digest() -> None:
    digests = {digest("t", bytes(200))}
    for place in range(8 * 200):
        digests.add(digest("t", (1 << place).to_bytes(200, "little")))
    assert len(digests) == 8 * 200 + 1


def test_version_begins_every_encoding() -> None:
    assert encode("t")[:2] == struct.pack("<H", ENCODING_VERSION)


def test_digest_is_made_as_documented() -> None:
    key = bytes(range(32))
    expected = hashlib.blake2b(encode("t", 1), digest_size=32, person=b"t", key=key)
    assert digest("t", 1, key=key) == expected.digest()
    assert (
        len({digest("t", 1, key=key), digest("t", 1), digest("u", 1), digest("t", 2)}) == 4
    )


@pytest.mark.parametrize("tag", ["", "a" * 17, "A", "a b", "ä", "a\0", "a\n"])
def test_malformed_tags_are_refused(tag: str) -> None:
    with pytest.raises(InvalidInputError, match="tag"):
        encode(tag)


@pytest.mark.parametrize("key", [b"", b"short", bytes(33)], ids=len)
def test_keys_of_another_length_are_refused(key: bytes) -> None:
    with pytest.raises(InvalidInputError, match="a key has 32 bytes"):
        digest("t", key=key)


@pytest.mark.parametrize(
    "value",
    [
        [1],
        {"a": 1},
        math.nan,
        np.float32(1),
        np.int64(1),
        1j,
        np.zeros(2),
        np.zeros((1, 2), dtype=np.int64),
        np.zeros(2, dtype=np.int32),
        ("a", (bytearray(b"a"),)),
    ],
    ids=repr,
)
def test_other_values_are_refused(value: Field) -> None:
    with pytest.raises(InvalidInputError):
        encode("t", value)


def test_strided_and_foreign_arrays_are_encoded_by_value() -> None:
    plain = np.arange(4, dtype=np.int64)
    assert encode("t", np.arange(8, dtype=np.int64)[::2] // 2) == encode("t", plain)


@pytest.mark.parametrize("part_len", [1, 2, 3])
@pytest.mark.parametrize("num_values", range(7))
def test_chain_is_the_digest_of_each_part_and_its_predecessor(
    num_values: int, part_len: int
) -> None:
    values = np.arange(10, 10 + num_values, dtype=np.int64)
    link = first = digest("first")
    expected = []
    for start in range(0, num_values - part_len + 1, part_len):
        link = digest("chain", link, values[start : start + part_len])
        expected.append(link)
    assert digest_chain("chain", first, values, part_len) == expected


@pytest.mark.parametrize(("first", "part_len"), [(b"", 1), (bytes(31), 1), (bytes(32), 0)])
def test_malformed_chains_are_refused(first: bytes, part_len: int) -> None:
    with pytest.raises(InvalidInputError, match="a chain"):
        digest_chain("t", first, np.zeros(2, dtype=np.int64), part_len)


def test_digests_have_the_stated_length() -> None:
    assert len(digest("t")) == DIGEST_BYTES == 32
