"""Rewriting: prompts with what breaks their prefix put right.

| what breaks it | what is done |
|---|---|
| what changes: a clock, an id, a text | its line or sentence goes to the prompt's end |
| the order of JSON keys | they are sorted |
| the order of a JSON list, or of tools | it is sorted |
| the order of lines | those of its paragraph are sorted |
| white space | a blank stands for all of it |
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Protocol

from prefold.advisor.prompt_log import LoggedPrompt, Segment
from prefold.advisor.prompt_pieces import cut

#: Where what was moved now stands.
MOVED = "moved to the end"

_DECODER = json.JSONDecoder()
_BRACKET = re.compile(r"[{\[]")
_WHITE_SPACE = re.compile(r"\s+")


class Rewriting(Protocol):
    """Makes another prompt of a prompt."""

    def apply(self, prompt: LoggedPrompt) -> LoggedPrompt:
        """Return the prompt as it should be; the same one where nothing is to be done."""

    def describe(self) -> str:
        """Say what to do, as a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Moves one piece of one segment to the end of the prompt.

    Attributes:
        label: The segment's.
        index: Of the piece in the segment.
        head: What the piece begins with, wherever it is to be moved.
    """

    label: str
    index: int
    head: str

    def apply(self, prompt: LoggedPrompt) -> LoggedPrompt:
        """Move it, if the prompt has it."""
        for number, segment in enumerate(prompt.segments):
            if segment.label == self.label:
                pieces = cut(segment.text)
                if self.index >= len(pieces) or not pieces[self.index].startswith(
                    self.head
                ):
                    return prompt
                moved = pieces.pop(self.index)
                return _with_end(_with(prompt, number, "".join(pieces)), moved)
        return prompt

    def describe(self) -> str:
        """Say where it should stand."""
        return "move it behind what stays the same, such as to the end of the last message"


@dataclass(frozen=True, slots=True, kw_only=True)
class SortJson:
    """Sorts the keys of all JSON in one segment, and the lists, too, if asked to."""

    label: str
    sorts_lists: bool

    def apply(self, prompt: LoggedPrompt) -> LoggedPrompt:
        """Sort it."""
        for number, segment in enumerate(prompt.segments):
            if segment.label == self.label:
                text = _sorted_text(segment.text, sorts_lists=self.sorts_lists)
                return _with(prompt, number, text)
        return prompt

    def describe(self) -> str:
        """Say what to sort."""
        return f"always write the {'entries' if self.sorts_lists else 'keys'} in one order"


@dataclass(frozen=True, slots=True, kw_only=True)
class SortLines:
    """Sorts the lines of the paragraph around one piece of one segment.

    Attributes:
        label: The segment's.
        index: Of the piece in the segment.
    """

    label: str
    index: int

    def apply(self, prompt: LoggedPrompt) -> LoggedPrompt:
        """Sort them, if the prompt has that piece."""
        for number, segment in enumerate(prompt.segments):
            if segment.label == self.label:
                pieces = cut(segment.text)
                if self.index >= len(pieces):
                    return prompt
                place = sum(map(len, pieces[: self.index]))
                return _with(prompt, number, _sorted_lines(segment.text, place))
        return prompt

    def describe(self) -> str:
        """Say what to sort."""
        return "always write the lines in one order"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBlank:
    """Lets a blank stand for all white space between words of one segment."""

    label: str

    def apply(self, prompt: LoggedPrompt) -> LoggedPrompt:
        """Squeeze it."""
        for number, segment in enumerate(prompt.segments):
            if segment.label == self.label:
                return _with(prompt, number, _WHITE_SPACE.sub(" ", segment.text))
        return prompt

    def describe(self) -> str:
        """Say what to squeeze."""
        return "always write the white space in one way"


def _with(prompt: LoggedPrompt, number: int, text: str) -> LoggedPrompt:
    segments = list(prompt.segments)
    segments[number] = replace(segments[number], text=text)
    return replace(prompt, segments=tuple(segments))


def _with_end(prompt: LoggedPrompt, text: str) -> LoggedPrompt:
    end = text if text.endswith("\n") else text + "\n"
    segments = prompt.segments
    if segments[-1].label == MOVED:
        end = segments[-1].text + end
        segments = segments[:-1]
    return replace(prompt, segments=(*segments, Segment(label=MOVED, text=end)))


def _sorted_lines(text: str, place: int) -> str:
    """Return the text with the lines between the blank ones around ``place`` sorted."""
    begin = text.rfind("\n\n", 0, place)
    begin = 0 if begin < 0 else begin + 2
    end = text.find("\n\n", max(place, begin))
    end = len(text.rstrip("\n")) if end < 0 else end
    return text[:begin] + "\n".join(sorted(text[begin:end].split("\n"))) + text[end:]


def _sorted_text(text: str, *, sorts_lists: bool) -> str:
    """Return the text with every JSON object and list in it written in order."""
    parts, at = [], 0
    while (found := _BRACKET.search(text, at)) is not None:
        parts.append(text[at : found.start()])
        try:
            value, at = _DECODER.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            parts.append(found[0])
            at = found.end()
            continue
        parts.append(_write(value, sorts_lists=sorts_lists))
    return "".join([*parts, text[at:]])


def _write(value: object, *, sorts_lists: bool) -> str:
    its = _in_order(value) if sorts_lists else value
    return json.dumps(its, ensure_ascii=False, sort_keys=True)


def _in_order(value: object) -> object:
    if isinstance(value, dict):
        return {name: _in_order(it) for name, it in value.items()}
    if isinstance(value, list):
        its = [_in_order(it) for it in value]
        return sorted(its, key=lambda it: json.dumps(it, sort_keys=True))
    return value
