"""Naive sharing: who may read what, from a list of everything that was published.

No tree, no counts, no marks on nodes. It knows each published block as the whole path
of (audience, block) that led to it, when it was published, and which approvals were
given over it; and decides by trying everything. What was evicted it cannot know: the
test tells it what is not there any more, and checks how much that may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prefold.identity.domain import PUBLIC, Audience, AudienceKind, Domain

Block = tuple[int, ...]
#: Of one fingerprint: its number, and the blocks from the root down, each with readers.
Path = tuple[int, tuple[tuple[Audience, Block], ...]]

#: As many children with one first token are sure to be compared.
SURELY_COMPARED = 4


@dataclass(eq=False)
class Given:
    """An approval, as whoever gave it would note it down."""

    approval_id: str
    label: str
    number: int
    domain: Domain
    tokens: tuple[int, ...]
    pinned: bool
    created_at: float
    ends_at: float
    is_over: bool = False

    def holds(self, now: float) -> bool:
        return not self.is_over and now < self.ends_at


@dataclass
class Published:
    at: float
    given: list[Given] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """Who asks: a domain, what it wants of what is approved, whether it approves."""

    domain: Domain
    wanted: frozenset[str] | None = None
    approves: bool = False

    @property
    def writes(self) -> Audience:
        kind = AudienceKind.APPROVED if self.approves else AudienceKind.OWN
        return Audience(kind, self.domain)

    def may_read(self, audience: Audience) -> bool:
        if self.approves or audience.kind is AudienceKind.OWN:
            return audience == self.writes
        theirs, mine = audience.domain.path.split("/"), self.domain.path.split("/")
        is_above = audience.domain == PUBLIC or mine[: len(theirs)] == theirs
        return is_above and (self.wanted is None or audience.domain.path in self.wanted)

    def width(self, audience: Audience) -> int:
        """Return how far down an audience is that may be read; 0 for everybody."""
        if audience.kind is AudienceKind.OWN:
            return 1_000
        return 0 if audience.domain == PUBLIC else 1 + audience.domain.path.count("/")


@dataclass(frozen=True)
class Expected:
    """``copied`` tokens are reached for certain only if ``is_certain``."""

    matched: int
    copied: int
    is_certain: bool


class NaiveSharing:
    """Everything published that was neither invalidated nor found to be evicted."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[Path, Published] = {}
        #: Tails that fill no block: the path above, and audience and tokens.
        self.tails: set[tuple[Path, Audience, Block]] = set()
        self.given: list[Given] = []
        self._crowded: set[tuple[Path, Audience, int]] = set()

    def is_open(self, path: Path, asked: Asked, now: float) -> bool:
        """Whether a match may end there."""
        audience = path[1][-1][0]
        return (
            audience.kind is AudienceKind.OWN
            or asked.approves
            or any(given.holds(now) for given in self.blocks[path].given)
        )

    def expect(
        self, number: int, asked: Asked, tokens: Sequence[int], now: float, least: int
    ) -> Expected:
        """Return what must be found; copies of fewer than ``least`` are not made."""
        size = self.block_size
        limit = (len(tokens) - 1) // size
        ends: list[Path] = [(number, ())]
        for path in self.blocks:
            blocks = path[1]
            if (
                path[0] == number
                and len(blocks) <= limit
                and all(
                    block == tuple(tokens[i * size : (i + 1) * size])
                    and asked.may_read(audience)
                    for i, (audience, block) in enumerate(blocks)
                )
                and self.is_open(path, asked, now)
            ):
                ends.append(path)
        matched = max(len(blocks) for _, blocks in ends)
        rest = tuple(tokens[matched * size : (matched + 1) * size])
        agreed, is_certain = 0, True
        for end in ends:
            if len(end[1]) == matched and rest:
                near = [_common(each, rest) for each in self._near(end, asked, now)]
                agreed = max([agreed, *near])
                is_certain &= not any(
                    place[0] == end and place[2] == rest[0] for place in self._crowded
                )
        usable = min(agreed, len(tokens) - 1 - matched * size)
        return Expected(matched * size, usable if usable >= least else 0, is_certain)

    def _near(self, end: Path, asked: Asked, now: float) -> Iterator[Block]:
        narrowest = max((asked.width(audience) for audience, _ in end[1]), default=0)
        for path in self.blocks:
            if path[0] == end[0] and path[1][:-1] == end[1]:
                audience, block = path[1][-1]
                fits = asked.may_read(audience) and asked.width(audience) >= narrowest
                if fits and self.is_open(path, asked, now):
                    yield block
        for above, audience, tail in self.tails:
            if above == end and asked.may_read(audience):
                yield tail

    def note_crowds(self) -> None:
        """Remember where not every child is compared; call it after every change."""
        places: Counter[tuple[Path, Audience, int]] = Counter()
        for number, blocks in self.blocks:
            audience, block = blocks[-1]
            places[(number, blocks[:-1]), audience, block[0]] += 1
        for above, audience, tail in self.tails:
            places[above, audience, tail[0]] += 1
        self._crowded |= {place for place, n in places.items() if n > SURELY_COMPARED}

    def forget(self, lost: set[Path]) -> None:
        """Drop blocks, and all that hangs below them."""
        if not lost:
            return
        self.blocks = {p: it for p, it in self.blocks.items() if not _hangs(p, lost)}
        self.tails = {tail for tail in self.tails if not _hangs(tail[0], lost)}


def tokens_of(path: Path) -> tuple[int, ...]:
    return tuple(token for _, block in path[1] for token in block)


def _hangs(path: Path, lost: set[Path]) -> bool:
    number, blocks = path
    return any((number, blocks[:end]) in lost for end in range(1, len(blocks) + 1))


def _common(one: Block, other: Block) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length
