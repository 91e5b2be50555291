from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import (
    BreakKind,
    Breakpoint,
    TokenSpan,
    explain_difference,
    find_breakpoint,
)

K = BreakKind

CASES = [
    ("It is 09:41:07 now.", "It is 09:41:12 now.", K.CLOCK, "the clock's seconds"),
    ("It is 09:41:07 now.", "It is 09:42:07 now.", K.CLOCK, "the clock's minute"),
    ("It is 09:41 now.", "It is 10:41 now.", K.CLOCK, "the clock's hour"),
    ("It is 9:59 now.", "It is 10:00 now.", K.CLOCK, "the clock's hour"),
    ("at 11:30 am", "at 11:30 pm", K.CLOCK, "the clock's half of the day"),
    ("T09:41:07.25Z", "T09:41:07.31Z", K.CLOCK, "the clock's fractions of a second"),
    ("at 09:41", "at 09:41:07", K.CLOCK, "the clock's seconds"),
    ("2031-05-14T09:41:07", "2031-05-14T09:41:09", K.CLOCK, "the clock's seconds"),
    ("since 1893456000 s", "since 1893456007 s", K.CLOCK, "the time stamp"),
    ("on 2031-05-14 at", "on 2031-05-15 at", K.DATE, "the date's day"),
    ("on 2031-05-14 at", "on 2032-05-14 at", K.DATE, "the date's year"),
    ("on 14.05.2031 at", "on 15.05.2031 at", K.DATE, "the date"),
    ("on 14 May 2031 at", "on 14 June 2031 at", K.DATE, "the date's month"),
    ("on May 9, 2031 at", "on May 10, 2031 at", K.DATE, "the date's day"),
    ("It is Monday today", "It is Tuesday today", K.DATE, "the date's weekday"),
    (
        "id 6f1c0d2e-8a34-4f7b-9c55-0123456789ab.",
        "id 6f1c0d2e-8a34-4f7b-9c55-0123456789ac.",
        K.UUID,
        "the UUID",
    ),
    ("req-7f3c9a52 x", "req-7f3c9b52 x", K.RANDOM_ID, "the random id"),
    ("id 7f3c9a52e81b.", "id c04d6b9817fa.", K.RANDOM_ID, "the random id"),
    ("key aZ3kP9qL0xW7 .", "key bT8mR2vN5yH1 .", K.RANDOM_ID, "the random id"),
    ("id 48201937465012 x", "id 90317746520184 x", K.RANDOM_ID, "the random id"),
    ("Request 41 of", "Request 42 of", K.COUNTER, "the counter"),
    ("Request 9 of", "Request 10 of", K.COUNTER, "the counter"),
    ("Request 41 of", "Request 412 of", K.COUNTER, "the counter"),
    (
        '{"a": 1, "b": 2} x',
        '{"b": 2, "a": 1} x',
        K.REORDERED_KEYS,
        "the order of JSON keys",
    ),
    (
        'tools: [{"n": "x"}, {"n": "y"}]',
        'tools: [{"n": "y"}, {"n": "x"}]',
        K.REORDERED_LIST,
        "the order of a JSON list",
    ),
    ("one two  three", "one two three", K.WHITE_SPACE, "the white space"),
    ("one\r\ntwo", "one\ntwo", K.WHITE_SPACE, "the white space"),
    ("You are kind.\nRules.", "You are wise.\nRules.", K.TEMPLATE, "the template"),
    ("one two three", "one two four", K.TEXT, "the text"),
    ("one two", "one two three", K.TEXT, "the text"),
    ("the same", "the same", K.TOKENS, "the cut into tokens"),
]


@pytest.mark.parametrize(("earlier", "later", "kind", "detail"), CASES)
def test_the_culprit_is_named(
    earlier: str, later: str, kind: BreakKind, detail: str
) -> None:
    found = explain_difference(earlier, later, at_token=21)
    assert found == Breakpoint(kind=kind, detail=detail, at_token=21)


@pytest.mark.parametrize(("earlier", "later", "kind", "detail"), CASES)
def test_the_order_of_the_prompts_does_not_matter(
    earlier: str, later: str, kind: BreakKind, detail: str
) -> None:
    found = explain_difference(later, earlier, at_token=3)
    assert (found.kind, found.detail) == (kind, detail)


@pytest.mark.parametrize(
    ("earlier", "later", "other_than"),
    [
        # A value that both have in common is not to blame.
        ("At 09:41:07 a cat", "At 09:41:07 a dog", K.CLOCK),
        ("12 apples", "12 pears", K.COUNTER),
        ("Request 12, please", "Request 12. Please", K.COUNTER),
        ("At 09:41, please", "At 09:41. Please", K.CLOCK),
        # Nor is one that only one of them has.
        ("It is 09:41 now", "It is late now", K.CLOCK),
        # A name with a number is no random id, and 3:2 is no clock.
        ("chapter12", "chapter13", K.RANDOM_ID),
        ("a ratio of 3:2 here", "a ratio of 3:5 here", K.CLOCK),
        ("99:99:99:99", "99:99:99:98", K.CLOCK),
        # To Python these are equal; to JSON and to a model they are not.
        ('{"a": 1, "b": 2}', '{"a": true, "b": 2}', K.REORDERED_KEYS),
        ('{"a": 1}', '{"a": 2}', K.REORDERED_KEYS),
        ("[1, 2]", "[1, 3]", K.REORDERED_LIST),
        ("one two", "one  three", K.WHITE_SPACE),
        ("You are kind.\nAsk", "You are wise.\nBut", K.TEMPLATE),
    ],
)
def test_the_innocent_are_not_blamed(
    earlier: str, later: str, other_than: BreakKind
) -> None:
    assert explain_difference(earlier, later, at_token=0).kind is not other_than


def test_the_sentence_names_the_token() -> None:
    clock = explain_difference("09:41:07", "09:41:12", at_token=21)
    assert clock.describe() == "the clock's seconds differ at token 21"
    counter = explain_difference("No 1", "No 2", at_token=4)
    assert counter.describe() == "the counter differs at token 4"


def test_no_text_of_the_prompt_enters_the_finding() -> None:
    found = explain_difference("secret plan", "secret idea", at_token=1)
    assert "plan" not in repr(found) + found.describe()


def test_a_deeply_nested_text_is_answered() -> None:
    deep = "[" * 5000
    assert explain_difference(deep + "1", deep + "2", at_token=0).kind is K.COUNTER


# -- with a tokenizer ----------------------------------------------------------------


def _words(text: str) -> list[TokenSpan]:
    """Cut before spaces, and into single digits."""
    cuts = [
        index
        for index in range(len(text) + 1)
        if index in (0, len(text))
        or text[index] == " "
        or text[index - 1 : index + 1].isdigit()
    ]
    spans = [TokenSpan(token_id=0, start=a, end=b) for a, b in pairwise(cuts)]
    return [
        TokenSpan(token_id=hash(text[s.start : s.end]), start=s.start, end=s.end)
        for s in spans
    ]


def test_the_first_different_token_is_found() -> None:
    found = find_breakpoint("It is 09:41:07 now", "It is 09:41:08 now", _words)
    assert found is not None
    assert found.at_token == len(_words("It is 09:41:07 now")) - 2
    assert found.detail == "the clock's seconds"


def test_a_prompt_that_only_goes_on_has_no_breakpoint() -> None:
    assert find_breakpoint("a b", "a b c", _words) is None
    assert find_breakpoint("a b c", "a b", _words) is None
    assert find_breakpoint("a b", "a b", _words) is None


def test_the_same_text_in_other_tokens_is_told() -> None:
    cuts = iter([[1, 2], [1, 3]])

    def cut(text: str) -> list[TokenSpan]:
        return [TokenSpan(token_id=each, start=0, end=len(text)) for each in next(cuts)]

    found = find_breakpoint("ab", "ab", cut)
    assert found is not None
    assert (found.kind, found.at_token) == (K.TOKENS, 1)


# -- properties ------------------------------------------------------------------------

# Near-equal pairs from few letters collide far more often than two random texts.
SMALL = st.text(alphabet='a1:0-5 \n{}[],"', max_size=24)


@given(SMALL, SMALL, SMALL, SMALL)
def test_any_two_texts_get_an_answer_that_does_not_depend_on_their_order(
    start: str, one: str, other: str, end: str
) -> None:
    ours, theirs = start + one + end, start + other + end
    found = explain_difference(ours, theirs, at_token=7)
    assert found == explain_difference(theirs, ours, at_token=7)
    assert found.at_token == 7
    assert (found.kind is K.TOKENS) == (ours == theirs)


CLOCKS = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
LETTERS = st.text(alphabet="abcdefgh .", max_size=200)


@given(LETTERS, CLOCKS, CLOCKS, LETTERS)
def test_the_first_different_part_of_a_clock_is_named(
    before: str, one: tuple[int, int, int], other: tuple[int, int, int], after: str
) -> None:
    texts = [f"{before} {h:02}:{m:02}:{s:02} {after}" for h, m, s in (one, other)]
    found = explain_difference(*texts, at_token=0)
    names = ("the clock's hour", "the clock's minute", "the clock's seconds")
    expected = next(
        (name for name, a, b in zip(names, one, other, strict=True) if a != b),
        "the cut into tokens",
    )
    assert found.detail == expected


JSON = st.dictionaries(
    st.text(alphabet="ab", min_size=1, max_size=3),
    st.one_of(st.booleans(), st.integers(0, 2), st.just({"k": [1]})),
    min_size=2,
    max_size=5,
)


@given(LETTERS, JSON, LETTERS)
def test_shuffled_keys_are_recognised(
    before: str, value: dict[str, object], after: str
) -> None:
    keys = list(value)
    shuffled = keys[1:] + keys[:1]
    texts = [
        before + json.dumps({key: value[key] for key in order}) + after
        for order in (keys, shuffled)
    ]
    assert explain_difference(*texts, at_token=0).kind is K.REORDERED_KEYS


@given(LETTERS, st.text(alphabet=" \t\n", min_size=1, max_size=3), LETTERS)
def test_added_white_space_is_recognised(before: str, space: str, after: str) -> None:
    ours, theirs = f"{before}x{after}", f"{before}x{space}{after}"
    found = explain_difference(ours, theirs, at_token=0)
    # "x  a" against "x   a": the difference is inside the white space all the same.
    assert found.kind is K.WHITE_SPACE
