"""Arguments of a wrong type are one sentence, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prefold.engine.request import SamplingParams
from prefold.errors import RequestError
from support.fake_engine import FakeEngine

Call = Callable[[Any], object]

CALLS: list[tuple[str, Call, str]] = [
    ("fork of a list", lambda e: e.fork([]), "request id is a text .* got a list"),
    ("fork of none", lambda e: e.fork(None), "request id is a text .* got None"),
    ("fork of another", lambda e: e.fork("x"), "no open request"),
    ("forks as text", lambda e: e.fork("x", "2"), "num_forks must be a whole .* a str"),
    ("forks as flag", lambda e: e.fork("x", True), "num_forks must be a whole"),  # noqa: FBT003
    ("forks as part", lambda e: e.fork("x", 1.5), "num_forks must be a whole .* a float"),
    ("no forks", lambda e: e.fork("x", 0), "num_forks must be at least 1, got 0"),
    ("abort of a list", lambda e: e.abort([]), "request id is a text .* got a list"),
    ("abort of a number", lambda e: e.abort(5), "request id is a text .* got an int"),
    ("generate a number", lambda e: e.generate(5), "generate takes a list .* got an int"),
    ("generate none", lambda e: e.generate(None), "generate takes a list .* got None"),
    ("generate a text", lambda e: e.generate("x"), "put the text in a list"),
    ("generate one array", lambda e: e.generate(np.array(5)), "takes a list of prompts"),
    ("generate numbers", lambda e: e.generate([5]), "flat list of token ids"),
    ("generate an iterator", lambda e: e.generate(iter([[1]])), "takes a list of prompts"),
    ("params as number", lambda e: e.generate([[1]], 5), "SamplingParams or a list"),
    ("params as text", lambda e: e.generate([[1]], "x"), "SamplingParams or a list"),
    ("params too many", lambda e: e.generate([[1]], [SamplingParams()] * 2), "1 prompts"),
    ("params of numbers", lambda e: e.generate([[1]], [5]), "must be SamplingParams"),
    ("generate options", lambda e: e.generate([[1]], options=5), "RequestOptions"),
    ("warm a number", lambda e: e.warm(5), "warm takes a list of prompts, got an int"),
    ("warm a text", lambda e: e.warm("x"), "put the text in a list"),
    ("warm options", lambda e: e.warm([[1]], options=None), "RequestOptions, got None"),
    ("lookup options", lambda e: e.lookup([1], options="x"), "RequestOptions, got a str"),
    ("submit params", lambda e: e.submit([1], None), "SamplingParams, got None"),
    ("submit options", lambda e: e.submit([1], options=5), "RequestOptions, got an int"),
]


@pytest.mark.parametrize(
    ("call", "words"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS]
)
def test_a_wrong_argument_is_a_sentence(call: Call, words: str) -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError, match=words) as caught:
        call(engine)
    assert "\n" not in str(caught.value)
    engine.check_invariants()
    assert engine.num_open == 0
    assert engine.cache.counts.free == engine.cache.num_blocks


def test_prompts_may_be_any_sequence() -> None:
    engine = FakeEngine()
    params = SamplingParams(max_tokens=1)
    for prompts in ([[1, 2]], ([1, 2],), np.array([[1, 2]])):
        assert len(engine.generate(prompts, params)) == 1  # type: ignore[arg-type]
    assert engine.generate([], params) == []


def test_an_id_that_nobody_has_is_not_open() -> None:
    assert FakeEngine().abort("x") is False  # type: ignore[arg-type]
