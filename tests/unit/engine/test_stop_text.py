from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefold.engine.stop_text import StopText

_TEXT = st.text("ab\n", max_size=30)


def test_what_may_begin_a_stop_text_is_held_back() -> None:
    watch = StopText(["END"])
    assert [watch.push(piece) for piece in ("the ", "E", "N", "ough E")] == [
        "the ",
        "",
        "",
        "ENough ",
    ]
    assert watch.finish() == "E"
    assert watch.text == "the ENough E"


def test_the_reply_ends_before_the_first_of_several() -> None:
    watch = StopText(["b", "ab"])
    assert watch.push("xab") == "x"
    assert watch.is_found
    assert watch.push("more") == ""
    assert watch.finish() == ""


@given(
    pieces=st.lists(_TEXT, max_size=8),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_it_does_not_matter_how_the_text_is_cut(
    pieces: list[str], stops: list[str]
) -> None:
    whole = "".join(pieces)
    places = [place for stop in stops if (place := whole.find(stop)) >= 0]
    watch = StopText(stops)
    given_text = "".join(watch.push(piece) for piece in pieces) + watch.finish()
    assert watch.is_found == bool(places)
    assert given_text == whole[: min(places)] if places else given_text == whole
    assert watch.text == given_text


@given(
    before=_TEXT,
    after=_TEXT,
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_a_fork_goes_on_alone(before: str, after: str, stops: list[str]) -> None:
    watch = StopText(stops)
    watch.push(before)
    twin = watch.fork()
    watch.push("a")
    alone = StopText(stops)
    alone.push(before)
    assert twin.push(after) == alone.push(after)
    assert twin.finish() == alone.finish()
    assert (twin.text, twin.is_found) == (alone.text, alone.is_found)
