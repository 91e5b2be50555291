"""What an attacker can observe does not depend on what its victim sent: not on one bit.

The same script is played in two worlds. In one the victim sends what the attacker
probes; in the other, prompts of the same lengths at the same moments, which agree with
one another and with what is approved just as much, but share nothing else with anybody.
Whatever the attacker can see must be equal: every message of every answer and the step
after which it came, so also who is served when, every refusal, and what is left of its
own prompts. The steps themselves must be equal as well, since they take time.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.scripted_world import (
    APPROVED_FOR,
    ATTACKER,
    COUSIN,
    DOMAINS,
    OTHER,
    VICTIM,
    Approve,
    Ask,
    Event,
    ForPrompt,
    HangUp,
    Keys,
    Operate,
    Pass,
    Seen,
    Setting,
    Turns,
    Withdraw,
    Words,
    run_world,
)

pytestmark = pytest.mark.e2e

NUM_SCRIPTS = 500 if os.environ.get("PREFOLD_SOAK") else 50

#: Outside the victim's organisation, above the victim, and below it.
ATTACKER_DOMAINS = ("globex", "acme", "acme/search/alice")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys.make(tmp_path_factory.mktemp("keys") / "keys.json")


def play(
    script: list[Event], setting: Setting, keys: Keys, *, is_in_victims_domain: bool = False
) -> tuple[Seen, Seen]:
    """Return what the attacker sees where the victim sent its words, and where not."""
    if is_in_victims_domain:
        texts = {**keys.texts, ATTACKER: keys.texts[VICTIM]}
        keys = replace(keys, texts=texts)
    seen, _ = run_world(script, setting, keys, is_mirrored=False)
    other, _ = run_world(script, setting, keys, is_mirrored=True)
    assert seen.messages
    return seen, other


# -- random scripts ------------------------------------------------------------------------

WORDS = st.builds(
    Words,
    opening=st.sampled_from((0, 1)),
    # None, inside a block, at a block's end, and all of it.
    num_opening=st.sampled_from((0, 7, 32, 40)),
    stem=st.sampled_from((0, 0, 0, 1)),
    num_stem=st.sampled_from((8, 21, 48, 60, 96)),
    tail=st.sampled_from((0, 1, 2)),
    num_tail=st.sampled_from((1, 5, 24)),
)


@st.composite
def fields(draw: st.DrawFn, *, is_chat: bool) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "max_tokens": draw(st.sampled_from((1, 2, 6, 20))),
        "n": draw(st.sampled_from((1, 1, 1, 2, 3))),
    }
    if draw(st.booleans()):
        chosen["stream"] = True
        chosen["stream_options"] = {"include_usage": draw(st.booleans())}
    if is_chat:
        if draw(st.integers(0, 3)) == 0:
            chosen["logprobs"] = True
    elif draw(st.integers(0, 2)) == 0:
        chosen["logprobs"] = 2
        chosen["echo"] = draw(st.booleans())
    if draw(st.integers(0, 5)) == 0:
        chosen["temperature"], chosen["seed"] = 1.0, draw(st.integers(0, 3))
    if draw(st.integers(0, 5)) == 0:
        chosen["cache_salt"] = draw(st.sampled_from(("s", "t")))
    if draw(st.integers(0, 4)) == 0:
        chosen["cache"] = draw(
            st.sampled_from(
                (
                    {"read": False},
                    {"write": False},
                    {"approved": []},
                    {"approved": ["acme"]},
                )
            )
        )
    return chosen


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    # Mostly the two that matter.
    who = draw(
        st.sampled_from((VICTIM, VICTIM, ATTACKER, ATTACKER, ATTACKER, OTHER, COUSIN))
    )
    is_chat = draw(st.integers(0, 3)) == 0
    return Ask(
        who=who,
        words=draw(WORDS),
        is_chat=is_chat,
        fields=draw(fields(is_chat=is_chat)),
    )


def operations() -> st.SearchStrategy[Event]:
    openings = st.sampled_from(range(len(APPROVED_FOR)))
    return st.one_of(
        st.builds(
            Approve,
            opening=openings,
            is_pinned=st.booleans(),
            ttl_s=st.sampled_from((None, None, 5.0)),
        ),
        st.builds(Withdraw, opening=openings),
        st.builds(
            ForPrompt,
            path=st.sampled_from(("/cache/warm", "/cache/lookup", "/cache/invalidate")),
            who=st.sampled_from(tuple(DOMAINS)),
            words=WORDS,
        ),
        st.builds(
            Operate,
            path=st.just("/cache/invalidate"),
            body=st.sampled_from(
                (
                    {"everything": True},
                    {"domain": "acme"},
                    {"domain": "acme/search"},
                    {"domain": "acme/search", "below": False},
                    {"domain": "globex"},
                    {"older_than_s": 3.0},
                )
            ),
        ),
    )


EVENTS: st.SearchStrategy[Event] = st.one_of(
    asks(),
    asks(),
    asks(),
    st.builds(Turns, st.integers(1, 8)),
    st.builds(Turns, st.integers(20, 60)),
    st.builds(HangUp, st.integers(0, 40)),
    st.builds(Pass, st.sampled_from((1.0, 10.0))),
    operations(),
)

SETTINGS = st.builds(
    Setting,
    attacker_domain=st.sampled_from(ATTACKER_DOMAINS),
    num_blocks=st.sampled_from((22, 30, 64)),
    max_step_tokens=st.sampled_from((16, 32, 128)),
    max_running=st.sampled_from((2, 4, 8)),
    max_queued=st.sampled_from((3, 8, 64)),
    tokens_per_minute=st.sampled_from((None, None, 500)),
    max_concurrent=st.sampled_from((3, 16)),
)

#: In the end the attacker looks what is left of everything that it may have sent.
PROBES: list[Event] = [
    event
    for number, words in enumerate(
        Words(opening=opening, num_opening=num_opening, stem=stem, num_stem=60, num_tail=5)
        for opening, num_opening in ((0, 0), (0, 40), (1, 40))
        for stem in (0, 1)
    )
    for event in (
        Ask(
            who=ATTACKER,
            words=words,
            fields={"max_tokens": 1, "stream": bool(number % 2), "cache": {"write": False}},
        ),
        Turns(30),
        Pass(60.0),
    )
]


@settings(max_examples=NUM_SCRIPTS)
@given(script=st.lists(EVENTS, min_size=4, max_size=24), setting=SETTINGS)
def test_an_attacker_sees_the_same_whatever_its_victim_sent(
    script: list[Event], setting: Setting, keys: Keys
) -> None:
    openings: list[Event] = [Approve(0), Approve(1), Turns(20)]
    seen, other = play([*openings, *script, *PROBES], setting, keys)
    assert seen.messages == other.messages
    assert seen.steps == other.steps


# -- the ways that a cache can tell --------------------------------------------------------

#: All of it, some blocks of it, and less than a block behind an approved opening.
WHOLE = Words(num_stem=90, num_tail=4)
BEGINNING = Words(num_stem=90, num_tail=9, tail=1)
IN_BLOCK = Words(num_opening=40, num_stem=6, tail=1, num_tail=20)
LONG = {"max_tokens": 24}


def ask(who: str, words: Words, **fields: Any) -> Ask:
    return Ask(who=who, words=words, fields={"max_tokens": 2, **fields})


SCRIPTS: dict[str, list[Event]] = {
    "before": [ask(VICTIM, WHOLE), Turns(20), ask(ATTACKER, WHOLE)],
    "before, in a stream": [
        ask(VICTIM, WHOLE),
        Turns(20),
        ask(ATTACKER, WHOLE, stream=True, stream_options={"include_usage": True}),
    ],
    "before, only its beginning": [ask(VICTIM, BEGINNING), Turns(20), ask(ATTACKER, WHOLE)],
    "before, in a chat": [
        Ask(who=VICTIM, words=WHOLE, is_chat=True, fields=LONG),
        Turns(40),
        Ask(who=ATTACKER, words=WHOLE, is_chat=True, fields={"max_tokens": 2}),
    ],
    "meanwhile, for the attacker to wait": [
        ask(VICTIM, WHOLE, max_tokens=24),
        Turns(1),
        ask(ATTACKER, WHOLE),
    ],
    "in the same step": [ask(VICTIM, WHOLE), ask(ATTACKER, WHOLE), ask(ATTACKER, WHOLE)],
    "inside a block": [
        Approve(0),
        Turns(20),
        ask(VICTIM, IN_BLOCK),
        Turns(20),
        ask(ATTACKER, replace(IN_BLOCK, tail=2)),
    ],
    "with log-probabilities": [
        ask(VICTIM, WHOLE, echo=True, logprobs=2),
        Turns(20),
        ask(ATTACKER, WHOLE, echo=True, logprobs=2),
    ],
    "by an operator": [
        ForPrompt(path="/cache/warm", who=VICTIM, words=WHOLE),
        Turns(20),
        ask(ATTACKER, WHOLE),
    ],
    "with what the attacker loses by it": [
        ask(ATTACKER, Words(stem=1, num_stem=96)),
        Turns(20),
        ask(ATTACKER, WHOLE),
        Turns(20),
        *[ask(VICTIM, replace(WHOLE, tail=tail)) for tail in (0, 1, 2)],
        Turns(60),
        ask(ATTACKER, Words(stem=1, num_stem=96)),
        Turns(20),
        ask(ATTACKER, WHOLE),
    ],
    "behind others in the queue": [
        ask(VICTIM, WHOLE),
        Turns(20),
        *[ask(OTHER, Words(stem=1, tail=tail)) for tail in (0, 1, 2)],
        ask(ATTACKER, Words(stem=1, num_stem=96)),
        ask(ATTACKER, WHOLE),
        ask(ATTACKER, Words(stem=1, num_stem=21)),
    ],
}


@pytest.mark.parametrize("max_step_tokens", [32, 128], ids=["in chunks", "at once"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_way_of_sharing_tells_an_attacker(
    name: str, max_step_tokens: int, keys: Keys
) -> None:
    setting = Setting(
        attacker_domain="acme/search/alice",
        num_blocks=16,
        max_step_tokens=max_step_tokens,
    )
    seen, other = play(SCRIPTS[name], setting, keys)
    assert seen.messages == other.messages
    assert seen.steps == other.steps


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_of_them_would_tell_somebody_in_the_victims_own_domain(
    name: str, keys: Keys
) -> None:
    setting = Setting(num_blocks=16)
    seen, other = play(SCRIPTS[name], setting, keys, is_in_victims_domain=True)
    assert seen.messages != other.messages
