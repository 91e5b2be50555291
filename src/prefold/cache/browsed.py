"""Browsed: what somebody who looks around in the tree is shown of it, as values.

A salt is never part of it, only whether there is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from prefold.blocks.table import TokenIds
from prefold.cache.approval import ApprovalId
from prefold.errors import InvalidInputError
from prefold.identity.domain import AudienceKind, Domain
from prefold.identity.fingerprint import Fingerprint

_CURSOR = re.compile(r"([0-9]{1,6})\.([wp])([0-9]{1,12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCursor:
    """Where the next page of children begins.

    Attributes:
        tree: Which of the trees, newest first; 0 below a run.
        is_partial: Whether all whole runs are behind it.
        index: Of the whole ones, how many are left, which are older; of the partial ones,
            how many are behind it.
    """

    tree: int
    is_partial: bool
    index: int

    def to_text(self) -> str:
        return f"{self.tree}.{'p' if self.is_partial else 'w'}{self.index}"

    @classmethod
    def from_text(cls, text: str) -> PageCursor:
        """Return the cursor that a text stands for.

        Raises:
            InvalidInputError: It is none.
        """
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise InvalidInputError("cursor must be the next of an earlier page")
        return cls(tree=int(found[1]), is_partial=found[2] == "p", index=int(found[3]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunApproval:
    """An approval that a run is part of."""

    approval_id: ApprovalId
    label: str
    is_pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsedRun:
    """One run of cached blocks, and how it is kept.

    Attributes:
        handle: Names it for as long as it is there.
        path: Handles of the runs that it continues, from the beginning on.
        tree: Number of its tree: which fingerprint it was computed under.
        start: Position of its first token.
        is_partial: Whether its one block is filled in part only.
        is_salted: Whether a salt narrows its domain.
        num_leases: Running sequences and copies under way that use it.
        num_hits: Requests that began by matching it.
        num_forks: Requests that went on differently after it, or inside.
        idle_s: Since a lease last came or went.
        age_s: Since its oldest block was published.
        expires_in_s: Until it cannot be reused any more, unless it is used; None for never.
        num_children: Runs that continue it, dead ones that are not freed yet included.
        is_pinned: Whether no eviction takes it.
        is_pin: Whether an operator's pin ends here.
        approvals: Those that let its readers read it.
        token_ids: Its first tokens, a copy, as many as were asked for.
    """

    handle: str
    path: tuple[str, ...]
    tree: int
    start: int
    num_tokens: int
    num_blocks: int
    is_partial: bool
    kind: AudienceKind
    domain: str
    is_salted: bool
    num_leases: int
    num_hits: int
    num_forks: int
    idle_s: float
    age_s: float
    expires_in_s: float | None
    priority: int
    num_children: int
    is_pinned: bool
    is_pin: bool
    approvals: tuple[RunApproval, ...]
    token_ids: TokenIds = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Some children of one run.

    Attributes:
        num_children: All there are, dead ones that are not freed yet included.
        following: Where the next page begins; None after the last.
    """

    runs: tuple[BrowsedRun, ...]
    num_children: int
    following: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A run that a search found.

    Attributes:
        num_matched_tokens: Of the prompt that was searched for, from its beginning to
            where it and the run part; None where it was not a prompt.
    """

    run: BrowsedRun
    num_matched_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        is_complete: Whether it looked at everything, and all it found is here.
    """

    found: tuple[FoundRun, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PathContent:
    """All that a prompt has to begin with to match a run to its end.

    Attributes:
        domain: Whose the run is, with its salt.
        start: Position of the run's first token.
    """

    fingerprint: Fingerprint
    domain: Domain = field(repr=False)
    kind: AudienceKind
    start: int
    is_partial: bool
    token_ids: TokenIds = field(repr=False)

    @property
    def entry_ids(self) -> TokenIds:
        """What tells the run from those beside it: all up to the end of its first block."""
        return self.token_ids[: self.start + self.fingerprint.block_size]
