"""A cache whose calls are written down: who published what when, and what may be found.

The ledger has no tree, no epochs and no eviction. It knows each published block by the
blocks above it, all with their audiences, and strikes out what a selector covers. What
the cache finds has to stand in it; what was evicted stays, so it may find less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from prefold.blocks.table import BlockIds, TokenIds
from prefold.cache import (
    READ_WRITE,
    Access,
    Approval,
    ApprovalId,
    ApprovalTerms,
    ByAge,
    ByApproved,
    ByDomain,
    ByField,
    ByFingerprint,
    ByPrefix,
    Everything,
    Lease,
    PrefixCache,
    Receipt,
    Selector,
)
from prefold.cache.lease import Fork
from prefold.identity.domain import Audience, AudienceKind, Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.tree.path import path_to
from prefold.tree.retention import KEEP, Retention
from support.naive_sharing import Asked

#: Whose each block is, from the root down, and the tokens of all of them.
Path = tuple[tuple[Audience, ...], bytes]
ROOT: Path = ((), b"")
TOKEN_BYTES = 8

#: A value of a field of digests that tests name and no fingerprint has.
NEVER_SERVED = bytes(32)


@dataclass
class Given:
    """An approval, as whoever gave it would note it down."""

    domain: Domain
    tokens: bytes
    made_at: float
    ends_at: float | None
    is_over: bool = False

    def holds(self, now: float) -> bool:
        return not self.is_over and (self.ends_at is None or now < self.ends_at)


@dataclass
class Holder:
    """A lease, as the ledger sees it.

    Attributes:
        may_publish: Whether anybody may find what it leaves.
        prompt: Whose, and what it was admitted with.
        num_found: Of that, the tokens it was spared so far.
        path: Of its published part, as long as it may publish.
    """

    domain: Domain
    asked: Asked
    audience: Audience
    started_at: float
    may_publish: bool
    prompt: tuple[Domain, bytes]
    num_found: int
    path: Path = ROOT
    is_approved: bool = False


@dataclass
class Ledger:
    """What was published and is not covered by any receipt.

    Attributes:
        faults: What the cache did that it must not have done.
        hits: The most that each domain was given of a prompt, all in all.
        is_exact: Whether all that is written here is really there.
        num_closed: Blocks that were left alone when last something was struck out, but
            that only approvals which ended with it had let anybody find.
        counts: How often what happened that a test wants to have seen.
    """

    block_size: int
    blocks: dict[Path, float] = field(default_factory=dict)
    tails: dict[tuple[Path, Audience, bytes], float] = field(default_factory=dict)
    given: dict[ApprovalId, Given] = field(default_factory=dict)
    revoked: list[Domain] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    hits: dict[tuple[Domain, bytes], int] = field(default_factory=dict)
    is_exact: bool = True
    num_closed: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def _step(self) -> int:
        return self.block_size * TOKEN_BYTES

    def parent(self, path: Path) -> Path:
        return path[0][:-1], path[1][: -self._step]

    def stands(self, path: Path) -> bool:
        return path == ROOT or path in self.blocks

    def is_revoked(self, domain: Domain) -> bool:
        return any(domain.is_within(each) for each in self.revoked)

    # -- what may be found -----------------------------------------------------------

    def may_find(self, asked: Asked, tokens: bytes, now: float) -> list[Path]:
        """Return where a match of these tokens may end."""
        return [ROOT, *(p for p in self.blocks if self._may_end(p, asked, tokens, now))]

    def _may_end(self, path: Path, asked: Asked, tokens: bytes, now: float) -> bool:
        return (
            tokens.startswith(path[1])
            and all(asked.may_read(audience) for audience in path[0])
            and self._is_open(path, asked, now)
        )

    def _is_open(self, path: Path, asked: Asked, now: float) -> bool:
        is_own = path[0][-1].kind is AudienceKind.OWN
        return is_own or asked.approves or self._is_approved(path, now)

    def _is_approved(self, path: Path, now: float) -> bool:
        audience = path[0][-1]
        return audience.kind is AudienceKind.APPROVED and any(
            given.domain == audience.domain
            and given.tokens.startswith(path[1])
            and given.holds(now)
            for given in self.given.values()
        )

    def check_hit(
        self, asked: Asked, tokens: TokenIds, matched: int, copied: int, now: float
    ) -> None:
        """Note a fault if more was found than stands here."""
        sent = tokens.tobytes()
        ends = self.may_find(asked, sent, now)
        most = max(len(path[0]) for path in ends) * self.block_size
        if matched > most:
            self.faults.append(f"{asked.domain!r} hit {matched} tokens, and may {most}")
        begin = sent[: matched * TOKEN_BYTES]
        rest = tokens[matched : matched + self.block_size]
        near = [
            np.frombuffer(block, dtype=np.int64)
            for above, block in self._pieces(asked, now)
            if above == begin
        ]
        agreed = max((_agreement(each, rest) for each in near), default=0)
        if copied > agreed:
            self.faults.append(f"{asked.domain!r} copied {copied} tokens, not {agreed}")
        self.counts["hits"] += matched > 0
        self.counts["copies"] += copied > 0

    def _pieces(self, asked: Asked, now: float) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is above each block that may be copied from, and its tokens."""
        for path in self.blocks:
            if all(map(asked.may_read, path[0])) and self._is_open(path, asked, now):
                yield path[1][: -self._step], path[1][-self._step :]
        for above, audience, tail in self.tails:
            if all(map(asked.may_read, (*above[0], audience))):
                yield above[1], tail

    # -- what is struck out ----------------------------------------------------------

    def strike(
        self, selector: Selector, leases: dict[Lease, Holder], now: float
    ) -> tuple[int, int, int]:
        """Strike out what a selector covers; return how many blocks, tails, approvals."""
        covers = _covers(selector, now)
        approved = [path for path in self.blocks if self._is_approved(path, now)]
        num_over = self._end_approvals(selector, now)
        before = len(self.blocks)
        kept: dict[Path, float] = {}
        for path in sorted(self.blocks, key=lambda path: len(path[0])):
            above = self.parent(path)
            at = self.blocks[path]
            if (above == ROOT or above in kept) and not covers(path[0][-1], path[1], at):
                kept[path] = at
        self.blocks = kept
        # An approval may begin above what is covered of it, and ends as a whole.
        self.num_closed = sum(
            path in kept and not self._is_approved(path, now) for path in approved
        )
        num_tails = len(self.tails)
        self.tails = {
            (above, audience, tail): at
            for (above, audience, tail), at in self.tails.items()
            if self.stands(above) and not covers(audience, above[1], at)
        }
        for lease, holder in leases.items():
            if holder.may_publish and (
                not self.stands(holder.path)
                or self._is_held_up(selector, lease, holder, now)
            ):
                holder.may_publish = False
                self.counts["doomed"] += 1
        return before - len(kept), num_tails - len(self.tails), num_over

    def _end_approvals(self, selector: Selector, now: float) -> int:
        num_over = 0
        for approval_id, given in self.given.items():
            if not given.holds(now):
                continue
            audience = Audience(AudienceKind.APPROVED, given.domain)
            if isinstance(selector, ByApproved):
                is_meant = approval_id == selector.approval_id
            else:
                is_meant = _covers(selector, now)(audience, given.tokens, given.made_at)
            given.is_over = is_meant
            num_over += is_meant
        return num_over

    def _is_held_up(
        self, selector: Selector, lease: Lease, holder: Holder, now: float
    ) -> bool:
        """Tell whether what a lease will publish is covered before it is computed."""
        if not isinstance(selector, ByPrefix):
            return _covers(selector, now)(holder.audience, b"", holder.started_at)
        prefix = self.whole(selector.tokens)
        known = lease.tokens.tobytes()[: len(prefix)]
        is_its = selector.domain in (None, holder.domain)
        return is_its and prefix.startswith(known)

    def whole(self, tokens: TokenIds) -> bytes:
        return tokens[: len(tokens) // self.block_size * self.block_size].tobytes()


def _covers(selector: Selector, now: float) -> Callable[[Audience, bytes, float], bool]:
    """Return what tells whether a block is covered: its readers, tokens and age."""
    covers: Callable[[Audience, bytes, float], bool] = lambda *_: False  # noqa: E731
    match selector:
        case Everything() | ByFingerprint():
            covers = lambda *_: True  # noqa: E731
        case ByField():
            # Tests ask for what is served, or for what never was.
            covers = lambda *_: selector.value != NEVER_SERVED  # noqa: E731
        case ByDomain(domain=its, below=below):
            covers = lambda audience, *_: (  # noqa: E731
                audience.domain.is_within(its) if below else audience.domain == its
            )
        case ByPrefix(domain=whose, tokens=tokens, fingerprint=fingerprint):
            size = len(tokens) // fingerprint.block_size * fingerprint.block_size
            prefix = tokens[:size].tobytes()
            covers = lambda audience, known, _: (  # noqa: E731
                whose in (None, audience.domain) and known.startswith(prefix)
            )
        case ByAge(older_than_s=age):
            covers = lambda _audience, _known, at: at < now - age  # noqa: E731
        case ByApproved():
            pass
    return covers


def _agreement(one: npt.NDArray[np.int64], other: TokenIds) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


class LedgerCache(PrefixCache):
    """A cache that notes a fault wherever it does what its ledger does not allow.

    Attributes:
        revokes: The domain whose revocation comes next.
    """

    def __init__(self, *, clock: Callable[[], float], **sizes: Any) -> None:
        super().__init__(clock=clock, **sizes)
        self.ledger = Ledger(self.block_size)
        self.revokes: Domain | None = None
        self._now = clock
        self._holders: dict[Lease, Holder] = {}
        self._num_evicted = 0

    def acquire(
        self,
        fingerprint: Fingerprint,
        domain: Domain,
        tokens: TokenIds,
        *,
        access: Access = READ_WRITE,
        retention: Retention = KEEP,
        limit: int | None = None,
    ) -> Lease:
        lease = super().acquire(
            fingerprint, domain, tokens, access=access, retention=retention, limit=limit
        )
        asked = Asked(domain, access.approved, access.approves)
        ledger, now = self.ledger, self._now()
        ledger.check_hit(
            asked, tokens, lease.num_matched_tokens, lease.num_copy_tokens, now
        )
        prompt = (domain, tokens.tobytes())
        ledger.hits[prompt] = max(ledger.hits.get(prompt, 0), lease.num_hit_tokens)
        holder = Holder(
            domain=domain,
            asked=asked,
            audience=asked.writes,
            started_at=now,
            may_publish=access.write and not ledger.is_revoked(domain),
            prompt=prompt,
            num_found=lease.num_hit_tokens,
        )
        self._holders[lease] = holder
        self._follow(lease, lease.block_ids[:0].copy(), 0)
        return lease

    def commit(self, lease: Lease, tokens: TokenIds, computed: int) -> None:
        ids, before = lease.block_ids.copy(), lease.num_published
        super().commit(lease, tokens, computed)
        self._follow(lease, ids, before)

    def adopt(self, lease: Lease, tokens: TokenIds, computed: int) -> int:
        before = lease.num_published
        reached = super().adopt(lease, tokens, computed)
        holder = self._holders[lease]
        holder.num_found += reached - computed
        found = self.ledger.hits
        found[holder.prompt] = max(found[holder.prompt], holder.num_found)
        self.ledger.counts["adoptions"] += lease.num_published > before
        self._follow(lease, lease.block_ids[:0].copy(), len(holder.path[0]))
        return reached

    def fork(
        self, lease: Lease, tokens: TokenIds, computed: int, num_forks: int
    ) -> list[Fork]:
        forks = super().fork(lease, tokens, computed, num_forks)
        for fork in forks:
            self._holders[fork.lease] = Holder(**vars(self._holders[lease]))
        return forks

    def release(self, lease: Lease, tokens: TokenIds, computed: int) -> None:
        super().release(lease, tokens, computed)
        holder = self._holders.pop(lease)
        tail = tokens[lease.num_published_tokens : computed].tobytes()
        if holder.may_publish and tail:
            self.ledger.tails[holder.path, holder.audience, tail] = self._now()
        if holder.asked.approves and not holder.is_approved:
            self.ledger.is_exact = False

    def approve(
        self, lease: Lease, num_tokens: int, terms: ApprovalTerms, *, num_kept: int = 0
    ) -> Approval:
        approval = super().approve(lease, num_tokens, terms, num_kept=num_kept)
        holder = self._holders[lease]
        if not holder.may_publish:
            self.ledger.faults.append("what was invalidated meanwhile was approved")
        holder.is_approved = True
        self.ledger.given.setdefault(
            approval.approval_id,
            Given(
                domain=approval.domain,
                tokens=approval.tokens.tobytes(),
                made_at=approval.created_at,
                ends_at=approval.expires_at,
            ),
        )
        self.ledger.counts["approvals"] += 1
        return approval

    def invalidate(self, selector: Selector) -> Receipt:
        counts = self.counts
        receipt = super().invalidate(selector)
        ledger = self.ledger
        if isinstance(selector, ByDomain) and selector.domain == self.revokes:
            ledger.revoked.append(selector.domain)
            self.revokes = None
        self._note_ended()
        num_struck, num_tails, num_over = ledger.strike(
            selector, self._holders, self._now()
        )
        # Who may find nothing of a block any more has lost it, wherever it stays.
        least = num_struck + ledger.num_closed
        self._check_number(receipt, selector, least, least + num_tails)
        self._check_rest(receipt, num_over, counts.shared)
        self._note_certainty(selector)
        if receipt.num_blocks > counts.shared + counts.idle:
            ledger.faults.append("more was dropped than had been published")
        self.check_invariants()
        return receipt

    def _check_number(
        self, receipt: Receipt, selector: Selector, least: int, most: int
    ) -> None:
        """Hold the blocks of a receipt against what was struck out here."""
        ledger, dropped = self.ledger, receipt.num_blocks
        # Runs are as old as their oldest block: younger ones may have gone with it.
        if isinstance(selector, ByAge) or receipt.is_upper_bound:
            return
        is_known = ledger.is_exact and not self._has_evicted()
        if dropped > most or (is_known and dropped < least):
            ledger.faults.append(
                f"{type(selector).__name__} dropped {dropped}, not {least} to {most}"
            )
        ledger.counts["exact receipts"] += is_known and least > 0

    def _check_rest(self, receipt: Receipt, num_over: int, num_shared: int) -> None:
        ledger = self.ledger
        if not receipt.num_leased_blocks <= min(receipt.num_blocks, num_shared):
            ledger.faults.append("more leased blocks were dropped than there were")
        if receipt.num_approvals != num_over:
            ledger.faults.append(f"{receipt.num_approvals} approvals ended, not {num_over}")

    def _note_certainty(self, selector: Selector) -> None:
        ledger = self.ledger
        if isinstance(selector, Everything):
            ledger.is_exact = not self._holders
            self._num_evicted = self.snapshot().num_evictions
            # All have ended, and nothing is left that they let anybody find.
            ledger.given.clear()
        elif isinstance(selector, ByAge):
            ledger.is_exact = False
        self._note_ended()

    def _note_ended(self) -> None:
        """Note that something may be gone if an approval has ended.

        What is approved no more is freed as soon as nobody needs it.
        """
        now = self._now()
        if not all(each.holds(now) for each in self.ledger.given.values()):
            self.ledger.is_exact = False

    def _has_evicted(self) -> bool:
        return self.snapshot().num_evictions > self._num_evicted

    def _follow(self, lease: Lease, ids: BlockIds, before: int) -> None:
        """Write down what a lease published, and check what it took over."""
        holder, ledger, now = self._holders[lease], self.ledger, self._now()
        if lease.num_published <= before:
            return
        audiences = tuple(
            node.readers.audience
            for node in path_to(lease.node)
            for _ in range(node.num_blocks)
        )
        tokens = lease.tokens.tobytes()
        size = self.block_size * TOKEN_BYTES
        for end in range(before + 1, lease.num_published + 1):
            path: Path = (audiences[:end], tokens[: end * size])
            is_made = end <= len(ids) and ids[end - 1] == lease.block_ids[end - 1]
            if is_made:
                self._note_made(holder, path, now, is_doomed=lease.is_doomed)
            elif holder.may_publish and not ledger.stands(path):
                ledger.faults.append("a block was taken over that nobody may find")
        holder.path = (audiences, tokens[: lease.num_published * size])

    def _note_made(
        self, holder: Holder, path: Path, now: float, *, is_doomed: bool
    ) -> None:
        audience = path[0][-1]
        if is_doomed and audience.kind is AudienceKind.THROWAWAY:
            # A run went whole with what was too old of it.
            holder.may_publish = False
        if holder.may_publish:
            self.ledger.blocks[path] = now
            if audience != holder.audience:
                self.ledger.faults.append(f"{holder.domain!r} published to {audience}")
        elif audience.kind is not AudienceKind.THROWAWAY:
            self.ledger.faults.append(f"{holder.domain!r} published what nobody may find")
