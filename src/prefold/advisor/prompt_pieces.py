"""Prompt pieces: texts cut into lines and sentences, each a number.

Equal pieces have equal numbers, so prompts are compared number by number, and a clock in
the middle of a system prompt is a piece of its own that can be moved.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prefold.advisor.prompt_log import LoggedPrompt, Segment

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Counts the tokens of a text.
CountTokens: TypeAlias = Callable[[str], float]

#: After a line's end, and after a sentence's where a blank follows. The blank goes with the
#: next piece, as it does in most vocabularies.
_ENDS = re.compile(r"(?<=\n)(?!\n)|(?<=[.!?])(?= )|(?<=[\u3002\uff01\uff1f])")


class Pieces:
    """The pieces of a set of prompts. Remembers each text once."""

    __slots__ = (
        "_array",
        "_by_name",
        "_by_text",
        "_count_tokens",
        "_num_copied",
        "_of_segment",
        "_tokens",
        "texts",
    )

    def __init__(self, count_tokens: CountTokens) -> None:
        self._count_tokens = count_tokens
        self._by_text: dict[str, int] = {}
        self._by_name: dict[tuple[str, str | None], int] = {}
        self._of_segment: dict[str, Ints] = {}
        self._tokens: list[float] = []
        # The same, as far as it was copied.
        self._array: Floats = np.zeros(0)
        self._num_copied = 0
        self.texts: list[str] = []

    def of(self, prompt: LoggedPrompt) -> Ints:
        """Return a prompt's pieces; the first stands for who may share with whom."""
        name = (prompt.model, prompt.tenant)
        root = self._by_name.get(name)
        if root is None:
            root = self._by_name[name] = self._add("")
        parts = [self.of_segment(segment) for segment in prompt.segments]
        return np.concatenate([np.array([root], dtype=np.int64), *parts])

    def of_segment(self, segment: Segment) -> Ints:
        found = self._of_segment.get(segment.text)
        if found is None:
            found = np.array(
                [self._of_text(it) for it in cut(segment.text)], dtype=np.int64
            )
            self._of_segment[segment.text] = found
        return found

    def _of_text(self, text: str) -> int:
        number = self._by_text.get(text)
        if number is None:
            number = self._by_text[text] = self._add(text)
        return number

    def _add(self, text: str) -> int:
        self.texts.append(text)
        self._tokens.append(self._count_tokens(text) if text else 0.0)
        return len(self.texts) - 1

    def tokens_of(self, row: Ints) -> Floats:
        """Return how many tokens each piece of a prompt has."""
        if len(self._array) < len(self._tokens):
            # Grown by doubling, so that it is seldom made anew.
            self._array = np.zeros(2 * len(self._tokens))
            self._num_copied = 0
        new = self._tokens[self._num_copied :]
        self._array[self._num_copied : self._num_copied + len(new)] = new
        self._num_copied += len(new)
        return self._array[row]

    def shared_tokens(self, ours: Ints, theirs: Ints, at: int) -> float:
        """Return what two pieces, the first that differ, have in common at their start."""
        if at >= min(len(ours), len(theirs)):
            return 0.0
        number = int(ours[at])
        text, other = self.texts[number], self.texts[int(theirs[at])]
        if not text:
            return 0.0
        return self._tokens[number] * shared_length(text, other) / len(text)


def cut(text: str) -> list[str]:
    """Return the pieces of a text; joined they are the text."""
    return _ENDS.split(text)


def shared_length(ours: str, theirs: str) -> int:
    """Return how many leading characters are equal."""
    low, high = 0, min(len(ours), len(theirs))
    # Halving compares long slices at once; a loop over characters would not.
    while low < high:
        middle = (low + high + 1) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
