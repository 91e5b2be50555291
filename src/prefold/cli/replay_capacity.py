"""Capacities as they are typed: blocks, or percent of a trace's distinct blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prefold.errors import InvalidInputError

_CAPACITY = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,9})?) ?(?P<percent>%)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How large a cache is to be.

    Attributes:
        text: As it was typed.
        blocks: ``None`` where it is a share.
        percent: ``None`` where it is a number of blocks.
    """

    text: str
    blocks: int | None
    percent: float | None

    def resolve(self, num_distinct: int) -> int:
        """Return the blocks that it is for a trace with so many distinct ones.

        A share is rounded down, to 1 at least.

        Raises:
            InvalidInputError: It is more than the trace has.
        """
        if self.blocks is not None:
            blocks = self.blocks
        else:
            blocks = max(int(num_distinct * (self.percent or 0.0) / 100), 1)
        if blocks > num_distinct or (self.percent is not None and self.percent > 100):
            raise InvalidInputError(
                f"a capacity of {self.text} is more than the trace's {num_distinct} "
                "distinct blocks, which would all fit; give at most 100%"
            )
        return blocks


def parse_capacities(text: str) -> list[Capacity]:
    """Return the capacities, each once.

    Raises:
        InvalidInputError: There is none, one is malformed, or one is zero.
    """
    parts = dict.fromkeys(part.strip() for part in text.split(","))
    return [_parse(part) for part in parts]


def _parse(text: str) -> Capacity:
    found = _CAPACITY.fullmatch(text)
    if found is None or (found["percent"] is None and "." in found["number"]):
        raise InvalidInputError(
            "--capacities must be numbers of blocks, such as 4096, or shares of the "
            f"trace's distinct blocks, such as 3%, with commas between; got {text!r}"
        )
    number = float(found["number"])
    if number == 0:
        raise InvalidInputError(
            f"a capacity of {text} holds nothing; give at least 1 block"
        )
    if found["percent"]:
        return Capacity(text=text, blocks=None, percent=number)
    return Capacity(text=text, blocks=int(found["number"]), percent=None)
