from __future__ import annotations

from prefold.server.known_names import MAX_NAMES, KnownNames


def test_only_so_many_names_become_labels() -> None:
    names = KnownNames("other")
    first = [f"a{number}" for number in range(MAX_NAMES)]
    assert [names.label(name) for name in first] == first
    assert {names.label(f"b{number}") for number in range(9)} == {"other"}
    assert names.label("a0") == "a0"
