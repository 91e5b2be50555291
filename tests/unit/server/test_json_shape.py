from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prefold.server import json_shape
from prefold.server.json_shape import JsonLimits, find_excess, find_total_excess

#: Everything that could be taken for the end of a string, a level or a value.
TEXTS = st.text(alphabet='a"\\[]{}:,\né', max_size=6)
VALUES = st.recursive(
    TEXTS | st.integers(0, 3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


def depth_of(value: object) -> int:
    match value:
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
    return 0


def parts_of(value: object) -> list[object]:
    """Return a value and everything inside of it."""
    inner: list[object] = []
    if isinstance(value, list):
        inner = value
    if isinstance(value, dict):
        inner = list(value.values())
    return [value, *(part for each in inner for part in parts_of(each))]


def exact_limits(value: object) -> JsonLimits:
    """Return the least limits that the value keeps."""
    containers = [part for part in parts_of(value) if isinstance(part, list | dict)]
    return JsonLimits(
        max_depth=depth_of(value),
        max_containers=len(containers),
        max_fields=sum(len(part) for part in containers if isinstance(part, dict)),
        max_items=sum(max(len(part) - 1, 0) for part in containers),
    )


@given(value=VALUES, is_ascii=st.booleans(), piece=st.sampled_from([1, 2, 3, 5, 1 << 18]))
@example(value=["\\", [["]]]]"]]], is_ascii=True, piece=1)
@example(value={":": [",", {'",': 1}]}, is_ascii=True, piece=2)
def test_what_is_counted_is_that_of_the_parsed_value(
    *, value: object, is_ascii: bool, piece: int
) -> None:
    data = json.dumps(value, ensure_ascii=is_ascii).encode()
    limits = exact_limits(value)
    with pytest.MonkeyPatch.context() as patch:
        # However the text is cut, strings and levels go on in the next piece.
        patch.setattr(json_shape, "_PIECE", piece)
        assert find_excess(data, limits) is None
        for name, word in (
            ("max_depth", "deeper"),
            ("max_containers", "lists and objects"),
            ("max_fields", "fields"),
            ("max_items", "values"),
        ):
            limit = getattr(limits, name)
            if limit:
                excess = find_excess(data, replace(limits, **{name: limit - 1}))
                assert excess is not None
                assert word in excess


@given(values=st.lists(VALUES, max_size=4))
def test_several_texts_are_counted_together(values: list[object]) -> None:
    texts = [json.dumps(value).encode() for value in values]
    each = [exact_limits(value) for value in values]
    total = JsonLimits(
        max_depth=max((limits.max_depth for limits in each), default=0),
        max_containers=sum(limits.max_containers for limits in each),
        max_fields=sum(limits.max_fields for limits in each),
        max_items=sum(limits.max_items for limits in each),
    )
    assert find_total_excess(texts, total) is None
    if total.max_containers:
        fewer = replace(total, max_containers=total.max_containers - 1)
        assert find_total_excess(texts, fewer) is not None


def test_the_shape_of_a_large_body_is_counted_without_parsing_it() -> None:
    wide = JsonLimits(max_depth=64, max_containers=10**9, max_items=10**9)
    deeper = find_excess(b"[" * 5_000_000, wide)
    assert deeper is not None
    assert "deeper" in deeper
    lists = b"[" + b"[]," * 900_000 + b"0]"
    assert find_excess(lists, wide) is None
    excess = find_excess(lists, JsonLimits(max_depth=64))
    assert excess is not None
    assert "lists and objects" in excess
