"""Pins and pages against a naive model.

After every move: what is pinned is found to its end, whatever was evicted, until something
that covers it is dropped; the pages of the tree, put together, are the listing of it; and
all invariants hold.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefold.cache import (
    BrowsedRun,
    ByAge,
    ByDomain,
    ByPrefix,
    Everything,
    ListedRun,
    ListingBounds,
    PageCursor,
    PrefixCache,
    Selector,
)
from prefold.errors import CapacityError, InvalidInputError, OutOfBlocksError
from prefold.identity.domain import AudienceKind, Domain
from prefold.tree.retention import Retention
from support.cache_driver import CacheDriver
from support.running import as_tokens
from support.settable_clock import SettableClock

B = 2
NUM_BLOCKS = 40
DOMAINS = [Domain("a"), Domain("a/b"), Domain("a", b"salt"), Domain("c")]
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
BOUNDS = ListingBounds(max_nodes=10_000, max_depth=10_000)


class PinsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = SettableClock(1_000.0)
        self.driver = CacheDriver(NUM_BLOCKS, B, shares=True, clock=self.clock)
        #: What operators pinned: by handle, whose it is and what leads to it.
        self.pinned: dict[str, tuple[Domain, AudienceKind, list[int]]] = {}

    @property
    def cache(self) -> PrefixCache:
        return self.driver.cache

    # -- moves ---------------------------------------------------------------------

    @rule(prompt=PROMPTS, at=st.integers(0, 3), ttl_s=st.sampled_from([5.0, 1e9]))
    def serve(self, prompt: list[int], at: int, ttl_s: float) -> None:
        keeping = Retention(ttl_s=ttl_s)
        try:
            self.driver.serve(prompt, domain=DOMAINS[at], retention=keeping)
        except OutOfBlocksError:
            for run in list(self.driver.running):
                self.driver.end(run)

    @rule(prompt=PROMPTS, is_pinned=st.booleans(), ttl_s=st.sampled_from([5.0, None]))
    def approve(self, prompt: list[int], is_pinned: bool, ttl_s: float | None) -> None:  # noqa: FBT001
        try:
            self.driver.approve(
                prompt, DOMAINS[0], label=str(prompt), pinned=is_pinned, ttl_s=ttl_s
            )
        except (InvalidInputError, CapacityError):
            for run in list(self.driver.running):
                self.driver.end(run)

    @rule(pick=st.randoms(use_true_random=False))
    def withdraw(self, pick: Random) -> None:
        approvals = self.cache.approved.approvals()
        if approvals:
            self.cache.withdraw(pick.choice(approvals).approval_id)
            self._forget_unfound()

    @rule(pick=st.randoms(use_true_random=False))
    def pin(self, pick: Random) -> None:
        runs = self._all_runs()
        if not runs:
            return
        run = pick.choice(runs)
        content = self.cache.browser.content(run.handle)
        try:
            is_there = self.cache.browser.pin(run.handle, 0)
        except (InvalidInputError, CapacityError):
            return
        assert is_there
        assert content is not None
        tokens = content.token_ids.tolist()
        self.pinned[run.handle] = (content.domain, content.kind, tokens)

    @rule(pick=st.randoms(use_true_random=False))
    def unpin(self, pick: Random) -> None:
        if self.pinned:
            handle = pick.choice(sorted(self.pinned))
            assert self.cache.browser.unpin(handle)
            del self.pinned[handle]

    @rule(num_blocks=st.integers(1, NUM_BLOCKS))
    def need(self, num_blocks: int) -> None:
        try:
            self.driver.fill(num_blocks)
        except OutOfBlocksError:
            for run in list(self.driver.running):
                self.driver.end(run)

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.cache.expire_due()
        self._forget_unfound()

    @rule(prompt=PROMPTS, at=st.integers(0, 3), which=st.integers(0, 3))
    def invalidate(self, prompt: list[int], at: int, which: int) -> None:
        domain = DOMAINS[at]
        selector: Selector = Everything()
        if which == 1:
            selector = ByDomain(domain=domain)
        elif which == 2 and len(prompt) >= B:
            selector = ByPrefix(
                fingerprint=self.driver.fingerprint,
                domain=domain,
                kind=AudienceKind.OWN,
                tokens=as_tokens(prompt),
            )
        elif which == 3:
            # What is as old as the cut stays; so nothing is.
            self.clock.advance(1.0)
            selector = ByAge(older_than_s=0.0)
        self.cache.invalidate(selector)
        self.pinned = {
            handle: pinned
            for handle, pinned in self.pinned.items()
            if not _is_covered(selector, *pinned)
        }
        self._forget_unfound()

    def _forget_unfound(self) -> None:
        """Forget pins of approved runs that no approval reads any more."""
        approvals = [it.tokens.tolist() for it in self.cache.approved.approvals()]
        self.pinned = {
            handle: (domain, kind, tokens)
            for handle, (domain, kind, tokens) in self.pinned.items()
            if kind is AudienceKind.OWN
            or any(it[: len(tokens)] == tokens for it in approvals)
        }

    # -- what holds ----------------------------------------------------------------

    @invariant()
    def what_is_pinned_is_found(self) -> None:
        self.driver.check()
        self.cache.browser.check_invariants()
        for handle, (domain, kind, tokens) in self.pinned.items():
            run = self.cache.browser.run(handle, num_text_tokens=0)
            assert run is not None
            assert run.is_pin
            reader = domain if kind is AudienceKind.OWN else Domain("a/b")
            found = self.driver.lookup([*tokens, 9], reader)
            assert found.num_matched_tokens >= len(tokens)
        pins = self.cache.approved.pins
        assert {self.cache.browser._handle(it) for it in pins._by_operator} == set(
            self.pinned
        )

    @invariant()
    def the_pages_are_the_tree(self) -> None:
        self.cache.expire_due()
        shown = sorted(_facts(run) for run in self._all_runs())
        listed = self.cache.listing(BOUNDS)
        assert shown == sorted(_facts(run) for run in listed.runs)

    def _all_runs(self) -> list[BrowsedRun]:
        found: list[BrowsedRun] = []
        waiting: list[str | None] = [None]
        while waiting:
            parent = waiting.pop()
            cursor: PageCursor | None = None
            while True:
                page = self.cache.browser.children(
                    parent, limit=2, num_text_tokens=99, cursor=cursor
                )
                assert page is not None
                found += page.runs
                waiting += [run.handle for run in page.runs]
                cursor = page.following
                if cursor is None:
                    break
        return found


def _facts(
    run: BrowsedRun | ListedRun,
) -> tuple[int, tuple[int, ...], str, bool, str, bool]:
    tokens = tuple(run.token_ids.tolist())
    return (run.start, tokens, run.domain, run.is_salted, run.kind.value, run.is_partial)


def _is_covered(
    selector: Selector, domain: Domain, kind: AudienceKind, tokens: list[int]
) -> bool:
    match selector:
        case ByDomain(domain=its):
            return domain.is_within(its)
        case ByPrefix():
            size = len(selector.tokens) // B * B
            begins = tokens[:size] == selector.tokens[:size].tolist()
            return begins and kind is selector.kind and domain == selector.domain
        case _:
            return True


TestPins = PinsMachine.TestCase
