"""Frontiers: what running sequences are about to publish.

A sequence that still computes its prompt is filed under (the node its published part
ends at, its audience, its first pending block). A later prompt whose match ends at
that node and goes on with that block shares what the sequence will publish, and may
wait for it instead of computing it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prefold.blocks.table import TokenIds
from prefold.cache.frontier_key import FrontierKey
from prefold.cache.lease import Lease
from prefold.errors import InvariantError
from prefold.identity.domain import Audience
from prefold.tree.walk import Endpoint, common_prefix

#: Owners listed under one key; further ones are not waited for.
MAX_OWNERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierMatch:
    """A running sequence that will publish what a prompt shares with it.

    Attributes:
        owner: Its lease; look at ``num_published_tokens`` and ``is_released``.
        num_common_tokens: Leading tokens both have, the prompt's last one left out.
    """

    owner: Lease
    num_common_tokens: int


class Frontiers:
    """Pending prompts of all running leases. Owned by the cache.

    Invariants:
        - a lease is listed exactly where its ``frontier_key`` says
        - no released lease is listed
    """

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[FrontierKey, list[Lease]] = {}

    def refile(self, lease: Lease) -> None:
        """File a lease under its first pending whole block, if it has one."""
        self.remove(lease)
        size = lease.tree.block_size
        begin = lease.num_published_tokens
        if lease.throwaway is not None or len(lease.tokens) < begin + size:
            return
        pending = lease.tokens[begin : begin + size].tobytes()
        key = (lease.node, lease.own_audience, pending)
        owners = self._owners.setdefault(key, [])
        if len(owners) < MAX_OWNERS:
            owners.append(lease)
            lease.frontier_key = key
            lease.tree.version += 1

    def remove(self, lease: Lease) -> None:
        """Take a lease out, wherever it is filed."""
        key = lease.frontier_key
        if key is None:
            return
        owners = self._owners[key]
        owners.remove(lease)
        if not owners:
            del self._owners[key]
        lease.frontier_key = None
        lease.tree.version += 1

    def find(
        self,
        ends: Sequence[Endpoint],
        tokens: TokenIds,
        audience: Audience,
        block_size: int,
    ) -> FrontierMatch | None:
        """Return the owner that agrees longest beyond ``ends``, or None.

        ``audience`` is the one that asks and writes. Nobody waits for what another one
        will be given: that can only be read once it is approved, as a whole.
        """
        best: FrontierMatch | None = None
        for end in ends:
            begin = end.position * block_size
            if not end.is_node_end or len(tokens) < begin + block_size:
                continue
            pending = tokens[begin : begin + block_size].tobytes()
            for owner in self._owners.get((end.node, audience, pending), ()):
                common = begin + common_prefix(owner.tokens[begin:], tokens[begin:])
                common = min(common, len(tokens) - 1)
                if best is None or common > best.num_common_tokens:
                    best = FrontierMatch(owner=owner, num_common_tokens=common)
        return best

    def check_invariants(self, leases: Iterable[Lease]) -> None:
        """Raise ``InvariantError`` if leases and lists disagree."""
        filed = {(lease, lease.frontier_key) for lease in leases if lease.frontier_key}
        listed = [(lease, key) for key, owners in self._owners.items() for lease in owners]
        if len(listed) != len(set(listed)) or set(listed) != filed:
            raise InvariantError("frontiers and leases disagree")
        for lease, (node, _, pending) in listed:
            begin = lease.num_published_tokens
            expected = lease.tokens[begin : begin + lease.tree.block_size].tobytes()
            if lease.is_released or node is not lease.node or pending != expected:
                raise InvariantError("a frontier is not where its lease ends")
