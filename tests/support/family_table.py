"""Family table: writes ``docs/families.md`` from what running every family shows.

``make families`` runs this; a test holds each line against a run of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig

from prefold.engine.families import check_config
from prefold.errors import ConfigError
from support.families import ACCEPTED, REFUSED, Family, tiny_model
from support.family_run import PRECISIONS, FamilyResult, run_family

DOCUMENT = Path(__file__).parents[2] / "docs" / "families.md"

#: In place of the tables, in what is written by hand.
_ACCEPTED_PLACE = "{accepted}"
_REFUSED_PLACE = "{refused}"

_TEMPLATE = Path(__file__).with_name("family_table.md")


def accepted_line(family: Family, result: FamilyResult) -> str:
    """Return a family's line of the first table."""
    marks = ["yes" if result.identical[p.name] else "**no**" for p in PRECISIONS]
    cells = (f"`{family.model_type}`", family.special, result.attention, result.linear)
    return _line((*cells, *marks))


def refused_line(family: Family, reason: str) -> str:
    """Return a family's line of the second table."""
    return _line((f"`{family.model_type}`", family.special, reason))


def refusal_of(family: Family) -> str | None:
    """Return why a family is refused, in the words of the error; None if it is not."""
    try:
        check_config(AutoConfig.for_model(family.model_type, **family.entries))
        tiny_model(family.model_type)
    except ConfigError as error:
        return str(error).split(" cannot be served: ", maxsplit=1)[-1]
    return None


def render(accepted: Sequence[str], refused: Sequence[str]) -> str:
    """Return the document with these lines in its tables."""
    names = [f"identical in {precision.name}" for precision in PRECISIONS]
    first = ("architecture", "what is special", "attention", "linear layers", *names)
    second = ("architecture", "what is special", "why it is refused")
    text = _TEMPLATE.read_text()
    text = text.replace(_ACCEPTED_PLACE, _table(first, accepted))
    return text.replace(_REFUSED_PLACE, _table(second, refused))


def _table(heads: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join((_line(heads), "|" + "---|" * len(heads), *lines))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Run every family and write the document, or a file of the same kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DOCUMENT)
    arguments = parser.parse_args()
    accepted = [accepted_line(family, run_family(family)) for family in ACCEPTED]
    refused = []
    for family in REFUSED:
        reason = refusal_of(family)
        if reason is None:
            parser.exit(1, f"{family.model_type} is not refused any more\n")
        refused.append(refused_line(family, reason))
    arguments.output.write_text(render(accepted, refused))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
