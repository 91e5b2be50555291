"""Prompt tree: finds for each prompt the earlier one that it begins most like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a prompt shares with all earlier ones.

    Attributes:
        length: Leading numbers that some earlier prompt has, too.
        earlier: A prompt that has as many, by its place in the order of insertion, and
            goes on differently; None if the new one or all earlier ones end there.
    """

    length: int
    earlier: int | None


class PromptTree:
    """A radix tree over arrays of numbers.

    Invariants:
        - a node's numbers are a piece of the prompt that it is of, at the node's depth
        - children of a node begin with different numbers
    """

    __slots__ = ("_begins", "_children", "_ends", "_latest", "_owners", "_prompts")

    def __init__(self) -> None:
        self._prompts: list[Ints] = []
        # Of each node, whose numbers it has and which; the root has none.
        self._owners = [-1]
        self._begins = [0]
        self._ends = [0]
        # The last prompt that went on after the node.
        self._latest: list[int | None] = [None]
        self._children: dict[tuple[int, int], int] = {}

    def insert(self, prompt: Ints) -> Agreement:
        """Enter a prompt; return what it shares with those before. O(nodes, its length)."""
        number = len(self._prompts)
        self._prompts.append(prompt)
        node, length, size = 0, 0, len(prompt)
        while length < size:
            key = (node, int(prompt[length]))
            child = self._children.get(key)
            if child is None:
                earlier, self._latest[node] = self._latest[node], number
                self._children[key] = self._add(number, length, size)
                return Agreement(length, earlier)
            self._latest[node] = number
            owner, begin, end = self._owners[child], self._begins[child], self._ends[child]
            agreed = common_length(self._prompts[owner][begin:end], prompt[length:])
            length += agreed
            if agreed < end - begin:
                return self._part(child, key, number, length)
            node = child
        return Agreement(length, None)

    def _part(self, child: int, key: tuple[int, int], number: int, at: int) -> Agreement:
        """Cut a node where a prompt leaves it, and let the prompt go on beside it."""
        owner = self._owners[child]
        upper = self._add(owner, self._begins[child], at)
        self._children[key] = upper
        self._begins[child] = at
        self._children[upper, int(self._prompts[owner][at])] = child
        prompt = self._prompts[number]
        if at == len(prompt):
            self._latest[upper] = owner
            return Agreement(at, None)
        self._latest[upper] = number
        self._children[upper, int(prompt[at])] = self._add(number, at, len(prompt))
        return Agreement(at, owner)

    def _add(self, owner: int, begin: int, end: int) -> int:
        self._owners.append(owner)
        self._begins.append(begin)
        self._ends.append(end)
        self._latest.append(None)
        return len(self._owners) - 1


def common_length(ours: Ints, theirs: Ints) -> int:
    """Return how many leading numbers are equal."""
    length = min(len(ours), len(theirs))
    differs = ours[:length] != theirs[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
