"""Identity rows: what has to match for a hit, one row each, for tests and documentation.

The tests change one thing after the other; the table in ``docs/identity.md`` is made of the
same rows, so neither can leave one out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintRow:
    """One field of the fingerprint.

    Attributes:
        name: The field.
        other: A value that differs from the one of ``make_fingerprint``.
        match: What has to be equal.
        reusable: What can still be used after it has changed.
        drop: What becomes unfindable, and how.
    """

    name: str
    other: object
    match: str
    reusable: str
    drop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRow:
    """Something besides the fingerprint that has to match.

    Attributes:
        name: What.
        match: What has to be equal.
        reusable: What can still be used where it differs.
        drop: How what belongs to it is dropped.
    """

    name: str
    match: str
    reusable: str
    drop: str


_SWAP = "all of it, by itself, when the model is swapped"

FINGERPRINT_ROWS = (
    FingerprintRow(
        name="architecture",
        other="OtherForCausalLM",
        match="the model's class",
        reusable="nothing",
        drop=_SWAP,
    ),
    FingerprintRow(
        name="config",
        other=b"other",
        match="digest of the model's configuration, apart from positions",
        reusable="nothing",
        drop=_SWAP,
    ),
    FingerprintRow(
        name="weights",
        other=b"other",
        match="digest of the weights' content; a name or a path is not enough",
        reusable="nothing",
        drop=_SWAP,
    ),
    FingerprintRow(
        name="tokenizer",
        other=b"other",
        match="digest of the tokenizer: equal ids have to mean equal text",
        reusable="nothing",
        drop=_SWAP,
    ),
    FingerprintRow(
        name="chat_template",
        other=b"other",
        match="digest of the chat template, or that there is none",
        reusable="nothing, though requests that run may finish",
        drop="all of it, by itself, when the template is reloaded",
    ),
    FingerprintRow(
        name="adapter",
        other=b"adapter",
        match="digest of an adapter's weights, configuration and scale, or that there is "
        "none",
        reusable="nothing",
        drop="`field`: `adapter`",
    ),
    FingerprintRow(
        name="position_config",
        other=b"other",
        match="the RoPE frequencies and scaling, as numbers",
        reusable="nothing",
        drop=_SWAP,
    ),
    FingerprintRow(
        name="position_offset",
        other=1,
        match="what is added to every position",
        reusable="nothing",
        drop=_SWAP,
    ),
    FingerprintRow(
        name="compute_dtype",
        other="bfloat16",
        match="the precision that the model computes in",
        reusable="nothing",
        drop="restart: the blocks have another shape",
    ),
    FingerprintRow(
        name="kv_dtype",
        other="bfloat16",
        match="the precision that KV is kept in",
        reusable="nothing",
        drop="restart: the blocks have another shape",
    ),
    FingerprintRow(
        name="block_size",
        other=8,
        match="tokens in a block",
        reusable="nothing",
        drop="restart: the blocks have another shape",
    ),
    FingerprintRow(
        name="layout_version",
        other=2,
        match="the order of bytes inside a block",
        reusable="nothing",
        drop="restart: it comes with a release",
    ),
    FingerprintRow(
        name="numerics",
        other=b"other",
        match="what may move the last bit: implementations, versions, instruction set, "
        "threads",
        reusable="nothing",
        drop="restart: it comes with the machine and its libraries",
    ),
)

TOKENS = PlaceRow(
    name="tokens",
    match="the block's tokens, and *all* tokens before it, so its position too",
    reusable="whole blocks up to the first difference, and inside that block four tokens "
    "or more, by copying",
    drop="`prompt` or `messages`; by age: `older_than_s`",
)
DOMAIN = PlaceRow(
    name="domain",
    match="the domain that computed it, not one above or beside it",
    reusable="what is approved for the domain, for one above it, or for `public`",
    drop="`domain`, or revoking the domain",
)
SALT = PlaceRow(
    name="salt",
    match="the salt, or that there is none",
    reusable="approved prefixes",
    drop="with its domain",
)
APPROVAL = PlaceRow(
    name="approval",
    match="that it holds: not withdrawn, not over",
    reusable="what readers computed after it themselves",
    drop="`approval`, or withdrawing it",
)

PLACE_ROWS = (TOKENS, DOMAIN, SALT, APPROVAL)


def render_table(rows: Sequence[FingerprintRow] | Sequence[PlaceRow]) -> str:
    """Return rows as a table of markdown."""
    lines = [
        "| | what has to match | after a change, reusable | dropped |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{row.name}` | {row.match} | {row.reusable} | {row.drop} |" for row in rows
    ]
    return "\n".join(lines)
