"""Prefix cache: who holds which blocks, and what later requests may reuse.

| module | holds |
|---|---|
| ``prefix_cache`` | the one door: acquire, reserve, commit, release |
| ``access`` | what a request may do with the cache, and whom it reads for |
| ``lease`` | a sequence's hold on blocks |
| ``survey`` | what a prompt would hit, and why not more |
| ``explain`` | the reason of a miss |
| ``losses`` | what was lost where a match ends |
| ``room`` | where blocks come from: free, dead, idle ones |
| ``usage``, ``use_start`` | what an eviction policy gets to know |
| ``frontier`` | what running sequences are about to publish |
| ``approval``, ``approved`` | prefixes that all readers of a domain share |
| ``selector`` | what to invalidate, and the receipt |
| ``reach``, ``invalidation`` | what a selector covers, and the call itself |
| ``keys`` | block keys of live blocks |
| ``adapted`` | what adapters have beside the model's own |
| ``contents`` | what stands in token arrays for images and embeddings |
| ``listing`` | the cached runs as values |
| ``pins`` | what no eviction takes |
| ``browse``, ``browsed`` | the tree a few runs at a time, for people |
| ``children``, ``prefix_ends`` | how pages and searches go through it |
| ``accounting`` | counts for the outside |
| ``holdings`` | what cached blocks took over time, by account and by prefix |
| ``invariants`` | the check of all of it against all of it |
"""

from prefold.cache.access import APPROVING, NO_CACHE, READ_WRITE, Access
from prefold.cache.accounting import CacheSnapshot
from prefold.cache.approval import Approval, ApprovalId, ApprovalTerms
from prefold.cache.approved import ApprovedPrefixes
from prefold.cache.browse import TreeBrowser
from prefold.cache.browsed import (
    BrowsedRun,
    FoundRun,
    PageCursor,
    PathContent,
    RunApproval,
    RunPage,
    SearchResult,
)
from prefold.cache.explain import MissKind, MissReason
from prefold.cache.frontier import FrontierMatch
from prefold.cache.lease import Fork, Lease
from prefold.cache.listing import CacheListing, ListedRun, ListingBounds
from prefold.cache.prefix_cache import PrefixCache
from prefold.cache.selector import (
    ByAge,
    ByApproved,
    ByDomain,
    ByField,
    ByFingerprint,
    ByPrefix,
    Everything,
    Receipt,
    Selector,
    selector_kind,
)
from prefold.cache.survey import Lookup
from prefold.eviction.cost import CostFit, PrefillCost
from prefold.eviction.quota import NO_QUOTAS, QuotaSettings, Share
from prefold.tree.loss import Pressure
from prefold.tree.retention import KEEP, Retention

__all__ = [
    "APPROVING",
    "KEEP",
    "NO_CACHE",
    "NO_QUOTAS",
    "READ_WRITE",
    "Access",
    "Approval",
    "ApprovalId",
    "ApprovalTerms",
    "ApprovedPrefixes",
    "BrowsedRun",
    "ByAge",
    "ByApproved",
    "ByDomain",
    "ByField",
    "ByFingerprint",
    "ByPrefix",
    "CacheListing",
    "CacheSnapshot",
    "CostFit",
    "Everything",
    "Fork",
    "FoundRun",
    "FrontierMatch",
    "Lease",
    "ListedRun",
    "ListingBounds",
    "Lookup",
    "MissKind",
    "MissReason",
    "PageCursor",
    "PathContent",
    "PrefillCost",
    "PrefixCache",
    "Pressure",
    "QuotaSettings",
    "Receipt",
    "Retention",
    "RunApproval",
    "RunPage",
    "SearchResult",
    "Selector",
    "Share",
    "TreeBrowser",
    "selector_kind",
]
