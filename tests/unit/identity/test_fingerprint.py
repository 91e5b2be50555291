from __future__ import annotations

import dataclasses
import itertools

import pytest

from prefold.errors import InvalidInputError
from prefold.identity.fingerprint import Fingerprint
from support.fingerprints import make_fingerprint

#: Another value for every field, and more than one where a near miss is possible.
CHANGES: list[tuple[str, object]] = [
    ("architecture", "OtherForCausalLM"),
    ("config", b"C"),
    ("weights", b"W"),
    ("tokenizer", b"T"),
    ("chat_template", b"E"),
    ("chat_template", b""),
    ("chat_template", None),
    ("adapter", b"a"),
    ("adapter", b""),
    ("position_config", b"P"),
    ("position_offset", 1),
    ("compute_dtype", "bfloat16"),
    ("kv_dtype", "bfloat16"),
    ("block_size", 32),
    ("layout_version", 2),
    ("numerics", b"N"),
]


def test_every_field_is_changed_by_some_case() -> None:
    assert {name for name, _ in CHANGES} == {
        f.name for f in dataclasses.fields(Fingerprint)
    }


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_every_single_change_changes_the_digest_and_is_named(
    name: str, value: object
) -> None:
    before = make_fingerprint()
    after = make_fingerprint(**{name: value})
    assert after != before
    assert after.digest() != before.digest()
    assert before.diff(after) == after.diff(before) == (name,)


def test_all_changed_fingerprints_have_different_digests() -> None:
    changed = [make_fingerprint(**{name: value}) for name, value in CHANGES]
    assert len({fingerprint.digest() for fingerprint in changed}) == len(CHANGES)


def test_exchanging_the_values_of_two_fields_changes_the_digest() -> None:
    names = [
        "config",
        "weights",
        "tokenizer",
        "chat_template",
        "adapter",
        "position_config",
    ]
    fingerprints = []
    for one, other in itertools.combinations(names, 2):
        values = dict.fromkeys(names, b"x") | {one: b"y", other: b"z"}
        swapped = values | {one: b"z", other: b"y"}
        fingerprints += [make_fingerprint(**values), make_fingerprint(**swapped)]
    assert len({each.digest() for each in fingerprints}) == len(set(fingerprints))


def test_equal_fingerprints_have_equal_digests_and_no_difference() -> None:
    one, other = make_fingerprint(), make_fingerprint()
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest() == other.digest()
    assert one.diff(other) == ()


def test_diff_names_all_fields_in_order() -> None:
    other = make_fingerprint(numerics=b"N", weights=b"W", block_size=8)
    assert make_fingerprint().diff(other) == ("weights", "block_size", "numerics")


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Fingerprint)])
def test_no_field_has_a_default(name: str) -> None:
    values = dataclasses.asdict(make_fingerprint())
    del values[name]
    with pytest.raises(TypeError, match=name):
        Fingerprint(**values)


@pytest.mark.parametrize(("name", "value"), [("block_size", 0), ("position_offset", -1)])
def test_senseless_numbers_are_refused(name: str, value: int) -> None:
    with pytest.raises(
        InvalidInputError, match=rf"{name} must be at least \d, got {value}"
    ):
        make_fingerprint(**{name: value})
