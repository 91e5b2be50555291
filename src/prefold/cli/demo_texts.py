"""Texts of the tour: an invented lending library of tools, written from patterns.

Always the same texts, and as many of them as a row needs. They say nothing about the
world, so a reply is judged by its bits alone.
"""

from __future__ import annotations

from collections.abc import Sequence

_TOOLS = (
    "tile cutter",
    "pipe bender",
    "cordless drill",
    "belt sander",
    "apple press",
    "hedge trimmer",
    "spirit level",
    "glue gun",
    "floor polisher",
    "wallpaper steamer",
    "pressure washer",
    "sewing machine",
    "paint mixer",
)
_PLACES = ("cabinet", "shelf", "drawer", "rack", "locker")
_COLOURS = ("red", "green", "blue", "white", "yellow", "grey", "brown")
_NAMES = ("Anna", "Boris", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines")
_RULES = (
    "It is lent for {days} days and kept in {place} {number}.",
    "Its deposit is {money} crowns, paid back when the {colour} label is returned.",
    "Whoever brings it back late gives {days} hours of help in the workshop.",
    "{name} repairs it on the first working day after the {number}th return.",
    "Two members may share it if both names are in the {colour} book.",
    "Before it leaves the house, {name} checks the cable and signs sheet {number}.",
)


def handbook(num_sections: int) -> list[str]:
    """Return the sections of the library's handbook, a few sentences each."""
    return [_section(index) for index in range(num_sections)]


def _section(index: int) -> str:
    tool = _TOOLS[index % len(_TOOLS)]
    first = _rule(index, index)
    second = _rule(index + 1 + index // len(_RULES) % 4, index * 7)
    return f"Section {index + 1}, the {tool}. {first} {second}"


def _rule(which: int, seed: int) -> str:
    return _RULES[which % len(_RULES)].format(
        days=2 + seed % 9,
        place=_PLACES[seed % len(_PLACES)],
        number=1 + (seed * 3) % 40,
        money=10 + 5 * (seed % 17),
        colour=_COLOURS[seed % len(_COLOURS)],
        name=_NAMES[seed % len(_NAMES)],
    )


def diary(num_days: int) -> list[str]:
    """Return the entries of the house's diary, the long document."""
    return [
        f"Day {day}. {_NAMES[day % 9]} opened at {7 + day % 4} in the morning and "
        f"{3 + (day * 5) % 23} members came. The {_TOOLS[(day * 5) % 13]} went out twice, "
        f"the {_TOOLS[(day * 3 + 1) % 13]} came back with a {_COLOURS[day % 7]} mark. "
        f"In the evening the till held {40 + (day * 37) % 160} crowns."
        for day in range(1, num_days + 1)
    ]


#: Each begins with another letter, so that what two prompts share ends before it,
#: whatever the tokens.
QUESTIONS: Sequence[str] = (
    "What does a member pay for the tile cutter",
    "Is the pipe bender kept in the house overnight",
    "How long may one keep the belt sander",
    "May two members share the spirit level",
    "Does anybody check the cable of the glue gun",
    "Are there two labels for the hedge trimmer",
    "Can the deposit for the apple press be paid later",
    "Tell me who repairs the cordless drill",
)

#: Lengthen a question by a word or two until it has its number of tokens.
QUESTION_WORDS: Sequence[str] = (
    " this", " week", ",", " and", " is", " that", " still", " so", " in", " the", " new",
    " year", " as", " well", ",", " or", " will", " it", " be", " as", " it", " was", " in",
    " the", " old", " one",
)  # fmt: skip

DOCUMENT_QUESTIONS: Sequence[str] = (
    "On which day did the most members come?",
    "Name a tool that came back with a mark.",
    "How much money was in the till on day three?",
)

CONVERSATION: Sequence[str] = (
    "Good morning. I would like to borrow the tile cutter for my kitchen.",
    "How many days may I keep it?",
    "My neighbour wants to use it too. Is that allowed?",
    "What happens if we bring it back a day late?",
    "Then I also need something to bend a copper pipe.",
    "Where do I find it in the house?",
    "Please tell me the deposit for both tools together.",
    "Who looks at the cable before I take the drill home?",
    "I have never used a belt sander. Is there somebody who can show me?",
    "Thank you. Please repeat in one sentence what I have to bring on Monday.",
)

_DESKS = ("lending", "repair", "membership", "workshop")
_LETTERS = (
    ("The {tool} stopped in the middle of the work and smells burnt.", "repair"),
    ("May I have the {tool} from Friday to Sunday?", "lending"),
    (
        "I have moved to another street, please change it in the {colour} book.",
        "membership",
    ),
    ("Is there a free bench on the {number}th for building a shelf?", "workshop"),
    ("The {colour} label came off the {tool} and I lost a screw.", "repair"),
    ("Could {name} keep the {tool} for me until the {number}th?", "lending"),
    ("My daughter {name} would like to join, what does it cost?", "membership"),
    ("Who teaches how to use the {tool} in the evening?", "workshop"),
)


def letters(first: int, count: int) -> list[tuple[str, str]]:
    """Return letters to the library and the desk that each belongs to."""
    found = []
    for index in range(first, first + count):
        pattern, desk = _LETTERS[index % len(_LETTERS)]
        text = pattern.format(
            tool=_TOOLS[(index * 4) % len(_TOOLS)],
            colour=_COLOURS[index % len(_COLOURS)],
            name=_NAMES[(index * 2) % len(_NAMES)],
            number=1 + (index * 11) % 28,
        )
        found.append((text, desk))
    return found


FEW_SHOT_TASK = f"Name the desk for each letter: {', '.join(_DESKS)}."

#: First lines, three of each kind: what a well-meant first line does to a prefix.
CLOCK_LINES: Sequence[str] = tuple(
    f"It is now 09:41:{second:02}, the house is open." for second in (7, 12, 38)
)
RANDOM_ID_LINES: Sequence[str] = tuple(
    f"Request {request_id} of the help desk."
    for request_id in ("f37c9a52e81b", "c04d6b9817fa", "b2e91a7d350c")
)
TEMPLATE_LINES: Sequence[str] = (
    "You are the clerk of a lending library of tools.",
    "You are an assistant who answers the members of a library that lends tools.",
    "You are our help desk.",
)
