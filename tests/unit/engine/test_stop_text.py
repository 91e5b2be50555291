from __future__ import annotations

from itertools import pairwise

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


def test_the_stop_text_that_is_complete_first_ends_the_reply() -> None:
    for pieces in (["abcd"], ["a", "b", "c", "d"], ["ab", "cd"]):
        watch = StopText(["abcd", "bc"])
        given_text = "".join(watch.push(piece) for piece in pieces)
        assert (given_text, watch.is_found) == ("a", True)


def naive_reply(text: str, stops: list[str]) -> tuple[str, bool]:
    """Return what is left if the text comes character by character, and whether it ends."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    """Return a text, pieces of it, and stop texts, over an alphabet of its own."""
    alphabet = draw(st.sampled_from(["a", "ab", "ab\n", "abcd", "aé€\N{PILE OF POO}"]))
    text = draw(st.text(alphabet, max_size=40))
    # Made of the text itself, so that they overlap there, and at random.
    spans = st.tuples(st.integers(0, 40), st.integers(1, 6)).map(
        lambda span: text[span[0] : sum(span)]
    )
    stop = st.one_of(spans, st.text(alphabet, min_size=1, max_size=5)).filter(bool)
    stops = draw(st.lists(stop, max_size=3))
    # Inside of another they are complete before it is.
    stops += [stop[1:-1] for stop in stops if len(stop) > 2 and draw(st.booleans())]
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    ends = [0, *cuts, len(text)]
    return text, [text[a:b] for a, b in pairwise(ends)], stops


@given(cut_texts())
def test_it_does_not_matter_how_the_text_is_cut(
    case: tuple[str, list[str], list[str]],
) -> None:
    whole, pieces, stops = case
    watch = StopText(stops)
    given_text = "".join(watch.push(piece) for piece in pieces)
    # Whatever has been given is part of the reply.
    assert naive_reply(whole, stops)[0].startswith(given_text)
    given_text += watch.finish()
    assert (given_text, watch.is_found) == naive_reply(whole, stops)
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
