"""Whatever shapes KV has to match: one difference, and nothing is hit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from prefold.blocks.table import TokenIds
from prefold.cache import (
    APPROVING,
    READ_WRITE,
    Access,
    ApprovalTerms,
    ByField,
    PrefixCache,
)
from prefold.errors import ConfigError
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from support.clock import TickingClock
from support.fingerprints import make_fingerprint
from support.identity_rows import (
    APPROVAL,
    DOMAIN,
    FINGERPRINT_ROWS,
    PLACE_ROWS,
    SALT,
    TOKENS,
    FingerprintRow,
    PlaceRow,
    render_table,
)

SIZE = 16
PROMPT = np.arange(1, 4 * SIZE + 2)
WHOLE = 4 * SIZE
TEAM = Domain("acme/search")
DOCUMENT = Path(__file__).parents[3] / "docs" / "identity.md"


class Identities:
    """A cache, and requests of any fingerprint and domain."""

    def __init__(self) -> None:
        self.cache = PrefixCache(num_blocks=64, block_size=SIZE, clock=TickingClock())

    def publish(
        self,
        fingerprint: Fingerprint,
        domain: Domain,
        tokens: TokenIds = PROMPT,
        access: Access = READ_WRITE,
        terms: ApprovalTerms | None = None,
    ) -> None:
        lease = self.cache.acquire(fingerprint, domain, tokens, access=access)
        self.cache.reserve(lease, len(tokens))
        self.cache.commit(lease, tokens, len(tokens))
        if terms is not None:
            self.cache.approve(lease, len(tokens), terms)
        self.cache.release(lease, tokens, len(tokens))

    def hits(
        self, fingerprint: Fingerprint, domain: Domain, tokens: TokenIds = PROMPT
    ) -> int:
        found = self.cache.lookup(fingerprint, domain, tokens)
        lease = self.cache.acquire(fingerprint, domain, tokens)
        assert lease.num_hit_tokens == found.num_hit_tokens
        self.cache.release(lease, tokens, lease.num_matched_tokens)
        self.cache.check_invariants()
        return found.num_hit_tokens


@pytest.fixture
def identities() -> Identities:
    return Identities()


def test_every_field_of_the_fingerprint_has_a_row() -> None:
    names = [field.name for field in dataclasses.fields(Fingerprint)]
    assert [row.name for row in FINGERPRINT_ROWS] == names


@pytest.mark.parametrize("row", FINGERPRINT_ROWS, ids=lambda row: row.name)
def test_a_field_that_differs_is_a_miss_both_ways(
    identities: Identities, row: FingerprintRow
) -> None:
    plain, other = make_fingerprint(), make_fingerprint(**{row.name: row.other})
    assert plain.diff(other) == (row.name,)
    identities.publish(plain, TEAM)
    assert identities.hits(plain, TEAM) == WHOLE
    if row.name == "block_size":
        # Not even the cache is the same.
        with pytest.raises(ConfigError, match="blocks of 16 tokens"):
            identities.hits(other, TEAM)
        return
    assert identities.hits(other, TEAM) == 0
    identities.publish(other, TEAM, PROMPT[: 2 * SIZE + 1])
    assert identities.hits(plain, TEAM) == WHOLE
    assert identities.hits(other, TEAM) == 2 * SIZE


@pytest.mark.parametrize("row", FINGERPRINT_ROWS, ids=lambda row: row.name)
def test_dropping_by_a_field_takes_what_has_that_value_and_nothing_else(
    identities: Identities, row: FingerprintRow
) -> None:
    plain, other = make_fingerprint(), make_fingerprint(**{row.name: row.other})
    identities.publish(plain, TEAM)
    others = () if row.name == "block_size" else (other,)
    for fingerprint in others:
        identities.publish(fingerprint, TEAM)
    nothing = identities.cache.invalidate(ByField(name=row.name, value="of nobody"))
    assert (nothing.num_blocks, nothing.num_approvals) == (0, 0)
    value = getattr(plain, row.name)
    receipt = identities.cache.invalidate(ByField(name=row.name, value=value))
    assert receipt.num_blocks == 5
    assert identities.hits(plain, TEAM) == 0
    for fingerprint in others:
        assert identities.hits(fingerprint, TEAM) == WHOLE


def other_place(row: PlaceRow, identities: Identities) -> int:
    """Return what is hit where only what a row says differs."""
    plain = make_fingerprint()
    if row is APPROVAL:
        terms = ApprovalTerms(label="rules")
        identities.publish(plain, Domain("acme"), PROMPT, APPROVING, terms)
        [approval] = identities.cache.approved.approvals()
        assert identities.hits(plain, TEAM) == WHOLE
        identities.cache.withdraw(approval.approval_id)
        return identities.hits(plain, TEAM)
    identities.publish(plain, TEAM)
    assert identities.hits(plain, TEAM) == WHOLE
    if row is DOMAIN:
        return max(
            identities.hits(plain, Domain(path))
            for path in ("acme", "acme/search/alice", "acme/legal", "public", "globex")
        )
    if row is SALT:
        identities.publish(plain, Domain("globex", salt=b"one"))
        return max(
            identities.hits(plain, Domain("acme/search", salt=b"one")),
            identities.hits(plain, Domain("globex", salt=b"two")),
            identities.hits(plain, Domain("globex")),
        )
    assert row is TOKENS
    # The same blocks behind another one, and moved by a token.
    behind = np.concatenate([np.full(SIZE, 999), PROMPT])
    return max(
        identities.hits(plain, TEAM, behind), identities.hits(plain, TEAM, PROMPT[1:])
    )


@pytest.mark.parametrize("row", PLACE_ROWS, ids=lambda row: row.name)
def test_a_place_that_differs_is_a_miss(identities: Identities, row: PlaceRow) -> None:
    assert other_place(row, identities) == 0


def test_what_is_reusable_is_hit(identities: Identities) -> None:
    plain = make_fingerprint()
    identities.publish(plain, TEAM)
    begun = np.concatenate([PROMPT[: 2 * SIZE + 5], [999, 998, 997]])
    assert identities.hits(plain, TEAM, begun) == 2 * SIZE + 5
    fewer = np.concatenate([PROMPT[: 2 * SIZE + 3], [999, 998, 997]])
    assert identities.hits(plain, TEAM, fewer) == 2 * SIZE
    for path, readers in (
        ("public", ("globex", "acme", "acme/legal")),
        ("acme", ("acme", "acme/legal", "acme/search/alice")),
    ):
        tokens = PROMPT + 1000 * len(path)
        terms = ApprovalTerms(label=path)
        identities.publish(plain, Domain(path), tokens, APPROVING, terms)
        for reader in readers:
            assert identities.hits(plain, Domain(reader), tokens) == WHOLE
            assert identities.hits(plain, Domain(reader, salt=b"s"), tokens) == WHOLE


def test_the_document_has_the_same_rows() -> None:
    text = DOCUMENT.read_text()
    assert render_table(FINGERPRINT_ROWS) in text
    assert render_table(PLACE_ROWS) in text
