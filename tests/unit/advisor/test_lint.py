"""Lint: what breaks prefixes is named, and what it costs is what a replay gains."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from prefold.advisor.block_maker import BlockMaker
from prefold.advisor.block_tree import grow_block_tree
from prefold.advisor.break_kind import BreakKind
from prefold.advisor.lint import Breaker, lint
from prefold.advisor.lru_replay import replay_lru
from prefold.advisor.prompt_log import LoggedPrompt, Segment
from prefold.advisor.trace import expand_runs
from support.advice import PRICES

RULES = "".join(f"Rule {n}: be kind to customer number {n}, and brief. " for n in range(60))


def by_bytes(text: str) -> float:
    return len(text.encode()) / 4


def prompt(line: int, *parts: tuple[str, str], tenant: str | None = None) -> LoggedPrompt:
    return LoggedPrompt(
        line=line,
        arrival_s=float(line),
        model="m",
        tenant=tenant,
        session=None,
        segments=tuple(Segment(label=label, text=text) for label, text in parts),
        token_ids=None,
        num_prompt_tokens=None,
        num_output_tokens=0,
    )


def chats(system: Callable[[int], str], count: int = 60) -> list[LoggedPrompt]:
    """Single questions after a system prompt."""
    return [
        prompt(
            number + 1,
            ("message 1 (system)", f"system\n{system(number)}\n"),
            ("message 2 (user)", f"user\nWhat about order {7919 * number % 1000}?\n"),
        )
        for number in range(count)
    ]


def found(prompts: Sequence[LoggedPrompt]) -> list[Breaker]:
    return list(lint(prompts, PRICES, by_bytes).breakers)


def clock(number: int) -> str:
    return f"{9 + number // 3600}:{number // 60 % 60:02d}:{number % 60:02d}"


def rng(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 -- made-up texts


def mixed(number: int) -> str:
    return "".join(rng(number).choices("0123456789abcdef", k=16))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (lambda n: f"The time is {clock(37 * n)}.", BreakKind.CLOCK),
        (lambda n: f"Request id: {mixed(n)}.", BreakKind.RANDOM_ID),
        (lambda n: f"This is request {n}.", BreakKind.COUNTER),
        (lambda n: f"Today is 2026-{1 + n // 28:02d}-{1 + n % 28:02d}.", BreakKind.DATE),
    ],
)
def test_a_value_in_front_is_named(line: Callable[[int], str], kind: BreakKind) -> None:
    [breaker] = found(chats(lambda n: f"{line(n)} {RULES}"))
    assert breaker.kind is kind
    assert breaker.segment == "message 1 (system)"
    assert breaker.at_token < 15
    # All but the first; all rules are hit then.
    assert breaker.num_requests == 59
    assert breaker.share == pytest.approx(59 / 60)
    assert breaker.saved_tokens == pytest.approx(59 * by_bytes(RULES), rel=0.02)
    assert breaker.saved_ms == pytest.approx(breaker.saved_tokens * 0.1, rel=0.01)
    assert "to the end" in breaker.remedy


def test_it_is_found_in_the_middle_and_in_a_line_of_its_own() -> None:
    for form in ("{rules}\nNow: {clock}\n{rules}", "{rules}It is {clock}. {rules}"):
        [breaker] = found(
            chats(lambda n, form=form: form.format(rules=RULES, clock=clock(71 * n)))  # type: ignore[misc]
        )
        assert breaker.kind is BreakKind.CLOCK
        assert breaker.at_token == pytest.approx(by_bytes(RULES), abs=10)
        assert breaker.saved_tokens == pytest.approx(59 * by_bytes(RULES), rel=0.03)


def test_what_is_hidden_behind_another_is_found_next() -> None:
    its = found(
        chats(lambda n: f"The time is {clock(37 * n)}.\n{RULES}\nId: {mixed(n)}.\n{RULES}")
    )
    assert [it.kind for it in its] == [BreakKind.CLOCK, BreakKind.RANDOM_ID]
    for it in its:
        assert it.saved_tokens == pytest.approx(59 * by_bytes(RULES), rel=0.03)


def tools(number: int, shuffle: str) -> str:
    order = rng(number)
    made: list[dict[str, object]] = [
        {"type": "function", "name": f"tool_{n}", "description": f"Does {n}. " * 20}
        for n in range(8)
    ]
    if shuffle == "keys":
        made = [dict(order.sample(sorted(it.items()), k=3)) for it in made]
    if shuffle == "tools":
        made = [{**it, "parameters": {"type": "object"}} for it in made]
    if shuffle in ("list", "tools", "lines"):
        order.shuffle(made)
    if shuffle == "lines":
        return "".join(f"- {it['name']}: {it['description']}\n" for it in made) + "\n"
    return json.dumps(made)


@pytest.mark.parametrize(
    ("shuffle", "kind"),
    [
        ("keys", BreakKind.REORDERED_KEYS),
        ("list", BreakKind.REORDERED_LIST),
        ("tools", BreakKind.REORDERED_TOOLS),
        ("lines", BreakKind.REORDERED_LIST),
    ],
)
def test_reordered_tools_are_named(shuffle: str, kind: BreakKind) -> None:
    prompts = [
        replace(it, segments=(Segment(label="tools", text=tools(n, shuffle)), *it.segments))
        for n, it in enumerate(chats(lambda _: RULES))
    ]
    its = found(prompts)
    assert its[0].kind is kind
    assert its[0].segment == "tools"
    assert "in one order" in its[0].remedy
    assert its[0].saved_tokens > 50 * by_bytes(RULES)


def test_white_space_is_named() -> None:
    [breaker] = found(chats(lambda n: f"You are{' ' * (1 + n % 7)}kind. {RULES}"))
    assert breaker.kind is BreakKind.WHITE_SPACE


def test_clean_prompts_have_nothing() -> None:
    assert found(chats(lambda _: RULES)) == []
    # Conversations, each going on from the one before.
    turns: list[LoggedPrompt] = []
    for talk in range(10):
        parts = [("message 1 (system)", f"system\n{RULES}\n")]
        for turn in range(6):
            parts.append((f"message {2 * turn + 2} (user)", f"user\nQ {talk} {turn}?\n"))
            turns.append(prompt(len(turns) + 1, *parts))
            parts.append((f"message {2 * turn + 3} (assistant)", f"a\nA {talk} {turn}.\n"))
    assert found(turns) == []
    assert found([]) == []


def test_tenants_are_not_compared() -> None:
    prompts = [
        replace(it, tenant=f"tenant {number}")
        for number, it in enumerate(chats(lambda n: f"It is {clock(n)}. {RULES}"))
    ]
    assert found(prompts) == []


def test_a_value_of_several_kinds_of_prompts_helps_all_of_them() -> None:
    tasks = ["".join(rng(n).sample(RULES, len(RULES))) for n in range(20)]
    its = chats(lambda n: f"The time is {clock(37 * n)}. {tasks[n % 20]}", count=200)
    [breaker] = found(its)
    assert breaker.kind is BreakKind.CLOCK
    assert breaker.num_requests == 180


def test_the_saving_is_what_the_rewritten_prompts_hit_in_blocks() -> None:
    prompts = chats(lambda n: f"The time is {clock(37 * n)}. {RULES}")
    linted = lint(prompts, PRICES, by_bytes)
    saved = sum(it.saved_tokens for it in linted.breakers)
    gained = block_hits(linted.rewritten) - block_hits(prompts)
    assert saved == pytest.approx(gained, rel=0.02)
    assert linted.hit_tokens == pytest.approx(block_hits(prompts), abs=16 * len(prompts))


def block_hits(prompts: Sequence[LoggedPrompt]) -> int:
    maker = BlockMaker(16)
    texts = ["".join(it.text for it in prompt.segments) for prompt in prompts]
    tree = grow_block_tree(expand_runs(maker.runs("m", it.encode(), 4)) for it in texts)
    replayed = replay_lru(tree, [float(n) for n in range(len(texts))])
    return 16 * int(replayed.hit_blocks.sum())


def test_nothing_is_lost_by_rewriting() -> None:
    prompts = chats(lambda n: f"The time is {clock(37 * n)}. {RULES}")
    for before, after in zip(
        prompts, lint(prompts, PRICES, by_bytes).rewritten, strict=True
    ):
        texts = ["".join(it.text for it in each.segments) for each in (before, after)]
        assert sorted(texts[0].split()) == sorted(texts[1].split())
