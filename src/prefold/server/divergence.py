"""Divergence: where a prompt parts from an earlier one of its domain, and by what.

Nothing here touches the engine or the journal, so that it can run on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prefold.advisor import BreakKind, Breakpoint, explain_difference
from prefold.cache import MissKind, MissReason
from prefold.server.journal import Kept, KeptTokens

Decode: TypeAlias = Callable[[Sequence[int]], str]

#: Tokens before and after the place whose text is looked at.
_WINDOW = 4_096
#: Of those before it, what a token needs to be decoded as it was.
_CONTEXT = 16
#: Characters of text that are shown on each side.
_SHOWN_BEFORE = 160
_SHOWN_AFTER = 160
#: Tokens compared at first; twice as many each time.
_CHUNK = 64

#: With these, what was cached is another text, and not gone.
_DIVERGING = (MissKind.DIVERGED, MissKind.NEVER_SEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The earlier request that a prompt agrees with longest, the latest of several.

    Attributes:
        tokens: Its prompt, with the reply that agrees, if any does.
        num_common: Leading tokens that agree; at least 1.
    """

    kept: Kept
    tokens: KeptTokens = field(repr=False)
    num_common: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The text around the place where two prompts part, cut short."""

    before: str = field(repr=False)
    earlier: str = field(repr=False)
    later: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where a prompt parts from the nearest earlier one.

    Attributes:
        finding: By what.
        texts: What stands there.
    """

    nearest: Nearest
    finding: Breakpoint
    texts: Texts = field(repr=False)


def find_divergence(
    prompt: KeptTokens, miss: MissReason, earlier: Sequence[Kept], decode: Decode
) -> Divergence | None:
    """Return where ``prompt`` parts from an earlier request, if that is why it missed.

    None where it does not, where no request that is still kept goes as far as the cache
    did, and where the prompt only goes on after all of one.

    Args:
        prompt: Its tokens.
        miss: The reason that the cache gave.
        earlier: Requests of the same domain, newest first.
        decode: Makes text of token ids.
    """
    if miss.kind not in _DIVERGING:
        return None
    nearest = find_nearest(prompt, earlier)
    if nearest is None or nearest.num_common < miss.at_token:
        return None
    if nearest.num_common in (len(prompt), len(nearest.tokens)):
        return None
    return _compare(prompt, nearest, decode)


def find_nearest(prompt: KeptTokens, earlier: Sequence[Kept]) -> Nearest | None:
    """Return the request that ``prompt`` agrees with longest; None if none begins alike.

    One comparison of two numbers for most requests, and of arrays for those that agree
    further than all before them.
    """
    best: Nearest | None = None
    length = 0
    for kept in earlier:
        for tokens in kept.sequences:
            if length >= min(len(tokens), len(prompt)) or tokens[length] != prompt[length]:
                continue
            found = num_common(tokens, prompt)
            if found > length:
                length = found
                best = Nearest(kept=kept, tokens=tokens, num_common=found)
    return best


def num_common(one: KeptTokens, other: KeptTokens) -> int:
    """Return how many leading tokens agree. O(that many)."""
    at, chunk = 0, _CHUNK
    end = min(len(one), len(other))
    while at < end:
        stop = min(at + chunk, end)
        differs = one[at:stop] != other[at:stop]
        first = int(differs.argmax())
        if differs[first]:
            return at + first
        at, chunk = stop, 2 * chunk
    return end


def _compare(prompt: KeptTokens, nearest: Nearest, decode: Decode) -> Divergence:
    place = nearest.num_common
    begin, end = max(place - _WINDOW, 0), place + _WINDOW
    common = _decoded(decode, prompt[begin:place])
    ours, theirs = (_decoded(decode, it[begin:end]) for it in (nearest.tokens, prompt))
    context = prompt[max(place - _CONTEXT, begin) : place]
    length = len(_decoded(decode, context))
    widest = max(
        len(_decoded(decode, [*context, it[place]])) - length
        for it in (nearest.tokens, prompt)
    )
    if min(prompt[place], nearest.tokens[place]) < 0:
        # Images look alike in text: it would seem to be cut into other tokens.
        finding = Breakpoint(kind=BreakKind.TEXT, detail="the image", at_token=place)
    else:
        finding = explain_difference(
            ours, theirs, at_token=place, ends_at=len(common) + max(widest, 0)
        )
    at = len(common)
    return Divergence(
        nearest=nearest,
        finding=finding,
        texts=Texts(
            before=common[-_SHOWN_BEFORE:],
            earlier=ours[at : at + _SHOWN_AFTER],
            later=theirs[at : at + _SHOWN_AFTER],
        ),
    )


def _decoded(decode: Decode, tokens: Sequence[int] | KeptTokens) -> str:
    # Of a character that is cut off, nothing is said.
    return decode([int(token) for token in tokens]).rstrip("\N{REPLACEMENT CHARACTER}")


def is_culprit(finding: Breakpoint | None) -> bool:
    """Whether something is to blame, and not simply another text."""
    return finding is not None and finding.kind is not BreakKind.TEXT
