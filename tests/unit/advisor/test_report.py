"""The report: one page that is well formed and needs nothing besides itself."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from prefold.advisor.advice import Advice
from prefold.advisor.advice_document import make_document
from prefold.advisor.appraisal import appraise
from prefold.advisor.lint import Lint, lint
from prefold.advisor.plots import Axis, draw_bars, draw_line
from prefold.advisor.report import render_report
from prefold.advisor.traffic import Traffic, read_traffic
from support.advice import PRICES
from support.traces import write_lines

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects elements, and refuses a page whose tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


TEXT = "".join(f"Rule {n} is about swordfish. " for n in range(30))


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    rows = [
        {
            "model": "a<b>&",
            "tenant": f"<script>{number % 2}",
            "time": float(number),
            "messages": [
                {"role": "system", "content": f"It is 10:00:{number:02d}. {TEXT}"},
                {"role": "user", "content": f"Question {number}"},
            ],
        }
        for number in range(30)
    ]
    path = tmp_path_factory.mktemp("logs") / "<i>.jsonl"
    return read_traffic(write_lines(path, [*rows, "{"]))


@pytest.fixture(scope="module")
def advice(traffic: Traffic) -> Advice:
    return appraise(traffic.trace, PRICES)


@pytest.fixture(scope="module")
def linted(traffic: Traffic) -> Lint:
    return lint(traffic.prompts, PRICES, lambda text: len(text) / 4)


def test_it_is_one_self_contained_page(
    advice: Advice, traffic: Traffic, linted: Lint
) -> None:
    text = render_report(advice, traffic, linted)
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert page.tags.count("svg") == 3
    assert not set(page.tags) & {"script", "link", "img", "iframe", "object", "embed"}
    assert not {name for name, _ in page.attributes} & {"src", "href", "onload", "style"}
    assert not re.search(r"url\(|@import|https?:", text)
    assert "prefers-color-scheme: dark" in text


def test_what_is_in_the_log_is_escaped_and_no_text_of_it_is_shown(
    advice: Advice, traffic: Traffic, linted: Lint
) -> None:
    text = render_report(advice, traffic, linted)
    assert "&lt;script&gt;0" in text
    assert "&lt;i&gt;" in text
    for document in (text, json.dumps(make_document(advice, traffic, linted))):
        assert "swordfish" not in document
        assert "Question" not in document


def test_it_says_the_verdict_the_breaker_and_what_was_used(
    advice: Advice, traffic: Traffic, linted: Lint
) -> None:
    text = render_report(advice, traffic, linted)
    assert advice.verdict.sentence in text
    for words in ("the clock", "message 1 (system)", "Best prefixes", "Worst prefixes"):
        assert words in text
    assert "no valid JSON" in text
    for note in traffic.notes[:1]:
        assert note in text


def test_the_document_has_what_was_promised(
    advice: Advice, traffic: Traffic, linted: Lint
) -> None:
    document = make_document(advice, traffic, linted)
    # Strict JSON: no NaN and no infinity.
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["requests"] == 30
    assert isinstance(document["hit_rate"], float)
    assert isinstance(document["hit_length"], dict)
    assert {"mean", "p50", "max"} <= document["hit_length"].keys()
    assert isinstance(document["saved_ms"], float)
    assert isinstance(document["held_bytes"], float)
    assert str(document["verdict"]).startswith("It ")
    [breaker] = document["breakers"]  # type: ignore[misc]  # a list
    assert breaker["kind"] == "clock"  # type: ignore[has-type]
    assert 0 < breaker["share"] <= 1  # type: ignore[has-type]
    assert make_document(advice, traffic, None)["breakers"] == []


@pytest.mark.parametrize("values", [[], [0.0], [3.0], [0.0, 5.0, 1e9], [0.001, 0.002]])
def test_plots_stay_in_their_frames(values: list[float]) -> None:
    axis = Axis(title="x < y", labels=[f"{n} & more" for n in range(len(values))])
    for draw in (draw_bars, draw_line):
        text = draw(values, axis, "y", "a picture")
        Page(text)
        for number in re.findall(r'(?:y|cy|y1|height)="(-?[\d.]+)"', text):
            assert 0 <= float(number) <= 260
        assert "nan" not in text


def test_a_file_name_is_all_that_is_told_of_the_file(advice: Advice) -> None:
    assert advice.name == Path("<i>").name
