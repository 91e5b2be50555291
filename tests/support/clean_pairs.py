"""Clean pairs: prompts that part because somebody wrote something else.

Nothing in them changed by itself: another question, name, number or document, or an edit.
Whoever names a culprit here blames the innocent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from support.breaks import chat

Pair: TypeAlias = tuple[str, str]

_NAMES = (
    *("Anna", "Bernhard", "Chloé", "Dmitri", "Elif", "Farid", "Grace", "Hanna", "Ivo"),
    *("Jorge", "Kenji", "Lucía", "Mehmet", "Nora", "Olaf", "Priya", "Quentin", "Rosa"),
)
_THINGS = (
    *("apples", "ladders", "pages", "chairs", "letters", "bottles", "tickets", "tiles"),
    *("kilometres", "euros", "litres", "children", "windows", "boxes", "rooms", "horses"),
)
_VERBS = ("bought", "sold", "counted", "lost", "found", "painted", "carried", "borrowed")
_PLACES = ("Lisbon", "Graz", "Osaka", "Kraków", "Quito", "Tromsø", "Bologna", "Izmir")
_WORD_LIST = (
    "river stone quiet market window early bread copper garden letter north paper winter "
    "music bridge simple doctor orange cattle narrow silver travel kitchen summer lantern "
    "method engine harvest mirror pocket shadow tailor valley whisper yellow basket"
)
_WORDS = _WORD_LIST.split()
_SUBJECTS = (
    *("the tides", "a steam engine", "photosynthesis", "compound interest", "the alphabet"),
    *("a violin", "glaciers", "the printing press", "magnets", "bees", "rainbows", "tea"),
)
_ASKS = (
    *("Explain {} to a child.", "Why do people care about {}?", "Write a poem on {}."),
    *("What is the history of {}?", "Name three facts on {}.", "Compare {} with snow."),
)
_CODE = (
    "def {0}_{1}({2}, limit=10):\n    total = 0\n    for {3} in {2}:\n"
    "        total += {3}\n"
    "    return min(total, limit)\n"
)


def _sentence(dice: random.Random) -> str:
    words = dice.choices(_WORDS, k=dice.randrange(6, 14))
    return f"{words[0].capitalize()} {' '.join(words[1:])}."


def _text(dice: random.Random, num_lines: int) -> list[str]:
    return [
        " ".join(_sentence(dice) for _ in range(dice.randrange(1, 4)))
        for _ in range(num_lines)
    ]


def _system(dice: random.Random) -> str:
    return "\n".join(_text(dice, dice.randrange(2, 6)))


def _questions(dice: random.Random) -> Pair:
    """Ask about something else."""
    asks, subjects = dice.sample(_ASKS, 2), dice.sample(_SUBJECTS, 2)
    form, system = dice.choice((1, 2, 3)), _system(dice)
    one, other = (ask.format(it) for ask, it in zip(asks, subjects, strict=True))
    return chat(form, system, one), chat(form, system, other)


def _names(dice: random.Random) -> Pair:
    """Write to, or about, somebody else."""
    one, other = dice.sample(_NAMES, 2)
    thing, place = dice.choice(_THINGS), dice.choice(_PLACES)
    letter = f"Write a letter to {{}} in {place} about the {thing} that were lost."
    form, system = dice.choice((1, 2, 3)), _system(dice)
    return (
        chat(form, system, letter.format(one)),
        chat(form, system, letter.format(other)),
    )


def _numbers(dice: random.Random) -> Pair:
    """Tell the same kind of story with other numbers."""

    def story(name: str) -> str:
        a, b = dice.randrange(2, 400), dice.randrange(2, 90)
        return (
            f"{name} {dice.choice(_VERBS)} {a} {dice.choice(_THINGS)} and then {b} more. "
            f"At {dice.randrange(1, 9)} euros each, what does that come to?"
        )

    name = dice.choice(_NAMES)
    form, system = dice.choice((1, 2, 3)), _system(dice)
    return chat(form, system, story(name)), chat(form, system, story(name))


def _one_number(dice: random.Random) -> Pair:
    """Change one number of things, and nothing else."""
    one, other = dice.sample(range(2, 120), 2)
    name, thing = dice.choice(_NAMES), dice.choice(_THINGS)
    story = (
        f"{name} {dice.choice(_VERBS)} {{}} {thing} in {dice.choice(_PLACES)}, and sold "
    )
    story += f"half of the {thing} again. How many are left, and what would you do?"
    form, system = dice.choice((1, 2, 3)), _system(dice)
    return chat(form, system, story.format(one)), chat(form, system, story.format(other))


def _years(dice: random.Random) -> Pair:
    """Ask about another year, day or hour."""
    kind = dice.randrange(4)
    place = dice.choice(_PLACES)

    def ask() -> str:
        return dice.choice(_ASKS).format(dice.choice(_SUBJECTS))

    if kind == 0:
        asks = [
            f"What happened in {place} in {dice.randrange(1100, 1990)}?" for _ in range(2)
        ]
    elif kind == 1:
        asks = [
            f"Who ruled {place} on {dice.randrange(1, 29)} May "
            f"{dice.randrange(1500, 1900)}, and {ask()}"
            for _ in range(2)
        ]
    elif kind == 2:
        asks = [
            f"My train leaves {place} at {dice.randrange(1, 24)}:{dice.randrange(10, 60)} "
            f"and takes {dice.randrange(2, 30)} hours to {dice.choice(_PLACES)}. When do I "
            "arrive?"
            for _ in range(2)
        ]
    else:
        asks = [
            f"Chapter {dice.randrange(1, 40)}, {dice.choice(_WORDS)} "
            f"{dice.choice(_WORDS)}: {ask()}"
            for _ in range(2)
        ]
    form, system = dice.choice((1, 2, 3)), _system(dice)
    return chat(form, system, asks[0]), chat(form, system, asks[1])


def _word(dice: random.Random) -> Pair:
    """Replace, add or take away words in the middle of a text."""
    lines = _text(dice, dice.randrange(3, 9))
    words = lines[dice.randrange(1, len(lines))]
    changed = list(lines)
    at = lines.index(words)
    pieces = words.split(" ")
    place = dice.randrange(len(pieces) - 1)
    match dice.randrange(3):
        case 0:
            pieces[place] = dice.choice([it for it in _WORDS if it != pieces[place]])
        case 1:
            pieces.insert(place, dice.choice(_WORDS))
        case _:
            del pieces[place]
    changed[at] = " ".join(pieces)
    form = dice.choice((1, 2, 3))
    return chat(form, "\n".join(lines) + "\n"), chat(form, "\n".join(changed) + "\n")


def _documents(dice: random.Random) -> Pair:
    """Put another document before the same question."""
    head = _sentence(dice)
    form = dice.choice((1, 2, 3))
    one, other = ("\n".join(_text(dice, 5)) for _ in range(2))
    return chat(form, f"{head}\n{one}\n"), chat(form, f"{head}\n{other}\n")


def _lines(dice: random.Random) -> Pair:
    """Add, or take away, whole lines."""
    lines = _text(dice, dice.randrange(4, 9))
    changed = list(lines)
    at = dice.randrange(1, len(lines))
    if dice.random() < 0.5:
        changed.insert(at, _sentence(dice))
    else:
        del changed[at]
    form = dice.choice((1, 2, 3))
    return chat(form, "\n".join(lines) + "\n"), chat(form, "\n".join(changed) + "\n")


def _programs(dice: random.Random) -> Pair:
    """Ask about another program."""
    one, other = (_CODE.format(*dice.sample(_WORDS, 4)) for _ in range(2))
    form, system = dice.choice((1, 2, 3)), _system(dice)
    return (
        chat(form, system, f"What is wrong here?\n{one}"),
        chat(form, system, f"What is wrong here?\n{other}"),
    )


def _versions(dice: random.Random) -> Pair:
    """Name another version, size or share."""
    one, other = dice.sample(range(1, 60), 2)
    name = dice.choice(_WORDS)
    pattern = dice.choice(
        [
            "Does {name} {number}.2 run on my machine, or do I need more memory?",
            "Is {number}% a good share of {name} for a small shop, or too much?",
            "My {name} is {number} cm wide and I want it wider. What can I do?",
            "I have room for {number} guests and much {name}. What shall I cook?",
        ]
    )
    form, system = dice.choice((1, 2, 3)), _system(dice)
    return (
        chat(form, system, pattern.format(name=name, number=one)),
        chat(form, system, pattern.format(name=name, number=other)),
    )


_KINDS: Sequence[Callable[[random.Random], Pair]] = (
    *(_questions, _names, _numbers, _one_number, _years, _word, _documents, _lines),
    *(_programs, _versions),
)


def make_clean_pairs(number: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Return so many pairs, with what was done, as many of each kind as can be."""
    dice = random.Random(seed)  # noqa: S311 -- a test's dice
    made: list[tuple[str, str, str]] = []
    while len(made) < number:
        make = _KINDS[len(made) % len(_KINDS)]
        one, other = make(dice)
        if one != other:
            made.append((make.__name__.strip("_"), one, other))
    return made
