"""Constructed breaks: pairs of prompts that part, with the label of what parted them.

The label comes from the generator that made the break. Every situation has three surface
forms. The detectors were written against the first two; the third has other languages,
other ways to write dates and ids, and other templates, and is only run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from prefold.advisor import BreakKind
from support.break_lines import LINES
from support.break_shapes import SHAPES

FORMS = (1, 2, 3)

K = BreakKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Two prompts that part.

    Attributes:
        situation: What the generator did.
        kind: Its label.
        is_recut: Whether the text is the same, and only to be cut into other tokens.
    """

    situation: str
    form: int
    kind: BreakKind
    earlier: str
    later: str
    is_recut: bool = False


_BODIES = {
    1: (
        "You answer the members of a library that lends tools. Be brief and exact.\n"
        "A drill may be kept for seven days, a ladder for three. Fees are paid at the "
        "desk.\nNever promise what the desk has to decide, and name the rule you follow.\n"
    ),
    2: (
        "Du antwortest den Mitgliedern einer Werkzeugbücherei, knapp und genau.\n"
        "Une perceuse peut être gardée sept jours, une échelle trois jours seulement.\n"
        "Nunca prometas lo que debe decidir el mostrador; nombra siempre la regla.\n"
    ),
    3: (
        "Odpowiadasz członkom wypożyczalni narzędzi, krótko i dokładnie.\n"
        "Bir matkap yedi gün, bir merdiven üç gün ödünç alınabilir; ücretler masada.\n"
        "工具の貸し出しについて、規則に従って短く正確に答えてください。約束はしないこと。\n"
    ),
}
_QUESTIONS = {
    1: "How long may I keep the ladder?",
    2: "Wie lange darf ich die Leiter behalten?",
    3: "Jak długo mogę zatrzymać drabinę?",
}


def chat(form: int, system: str, question: str | None = None) -> str:
    """Write a conversation in the template of a form."""
    asked = _QUESTIONS[form] if question is None else question
    if form == 1:
        return (
            f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{asked}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
    if form == 2:
        return f"### System:\n{system}\n### User:\n{asked}\n\n### Assistant:\n"
    turn = f"{system}\n\n{asked}<end_of_turn>\n"
    return f"<bos><start_of_turn>user\n{turn}<start_of_turn>model\n"


# -- values --------------------------------------------------------------------------------


def _moment(dice: random.Random) -> datetime:
    first = datetime(2024, 1, 1, tzinfo=UTC)
    return first + timedelta(seconds=dice.randrange(8 * 365 * 86_400))


def _seconds_later(dice: random.Random) -> tuple[datetime, datetime]:
    moment = _moment(dice).replace(hour=9, minute=dice.randrange(10, 40))
    return moment, moment + timedelta(seconds=dice.randrange(1, 1200))


def _minutes_later(dice: random.Random) -> tuple[datetime, datetime]:
    moment = _moment(dice).replace(hour=dice.randrange(1, 20), minute=dice.randrange(50))
    return moment, moment + timedelta(minutes=dice.randrange(1, 200))


def _days_later(dice: random.Random) -> tuple[datetime, datetime]:
    moment = _moment(dice)
    return moment, moment + timedelta(days=dice.randrange(1, 40))


def _week_day(dice: random.Random) -> tuple[datetime, datetime]:
    moment = _moment(dice)
    return moment, moment + timedelta(days=dice.randrange(1, 7))


def _counts(dice: random.Random) -> tuple[int, int]:
    first = dice.randrange(2, 900)
    return first, first + dice.randrange(1, 4)


def _turns(dice: random.Random) -> tuple[int, int]:
    first = dice.randrange(2, 9)
    return first, first + dice.randrange(1, 3)


def _numbers(dice: random.Random) -> tuple[int, int]:
    """128 random bits each: all ids are made from them."""
    return dice.getrandbits(128), dice.getrandbits(128)


_VALUES: Mapping[
    str, tuple[BreakKind, Callable[[random.Random], tuple[object, object]]]
] = {
    "clock_seconds": (K.CLOCK, _seconds_later),
    "clock_minutes": (K.CLOCK, _minutes_later),
    "date_and_time": (K.CLOCK, _seconds_later),
    "time_stamp": (K.CLOCK, _seconds_later),
    "date_numeric": (K.DATE, _days_later),
    "date_in_words": (K.DATE, _days_later),
    "weekday": (K.DATE, _week_day),
    "uuid": (K.UUID, _numbers),
    "uuid_in_json": (K.UUID, _numbers),
    "counter": (K.COUNTER, _counts),
    "turn": (K.COUNTER, _turns),
    "random_hex": (K.RANDOM_ID, _numbers),
    "random_mixed": (K.RANDOM_ID, _numbers),
    "random_digits": (K.RANDOM_ID, _numbers),
}


def make_breaks(form: int, seed: int) -> list[Break]:
    """Return one break of every situation."""
    dice = random.Random(f"{form}/{seed}")  # noqa: S311 -- a test's dice
    made = []
    for situation, (kind, values) in _VALUES.items():
        line = dice.choice(LINES[situation][form])
        texts = [chat(form, f"{line(value)}\n{_BODIES[form]}") for value in values(dice)]
        made.append(
            Break(
                situation=situation,
                form=form,
                kind=kind,
                earlier=texts[0],
                later=texts[1],
            )
        )
    for situation, shape in SHAPES.items():
        earlier, later = shape.make(form, dice, _BODIES[form], chat)
        made.append(
            Break(
                situation=situation,
                form=form,
                kind=shape.kind,
                earlier=earlier,
                later=later,
                is_recut=shape.is_recut,
            )
        )
    return made
