"""Miss reasons: why a prompt did not hit further than it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prefold.tree.loss import Pressure


class MissKind(Enum):
    """The one primary reason."""

    #: Nothing was missed: all but the last token, which is always computed.
    COMPLETE = "complete"
    #: The request did not want to read the cache.
    READ_OFF = "read_off"
    #: The prompt is too short to fill a block, and nothing cached begins with it.
    TOO_SHORT = "too_short"
    #: Nothing readable was cached here, as far as is known.
    NEVER_SEEN = "never_seen"
    #: Cached prompts went on with other tokens.
    DIVERGED = "diverged"
    #: It was cached, and evicted for room.
    EVICTED = "evicted"
    #: It was cached, and invalidated.
    INVALIDATED = "invalidated"
    #: It was approved, and the approval was withdrawn.
    WITHDRAWN = "withdrawn"
    #: It was cached and not used again in time, or its approval's time is over.
    EXPIRED = "expired"
    #: The request wants log-probabilities of its prompt, which are kept less far than KV.
    NO_LOGPROBS = "no_logprobs"
    #: The prompt's first block is cached under another fingerprint.
    OTHER_FINGERPRINT = "other_fingerprint"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissReason:
    """Why the first missed token was missed.

    Attributes:
        at_token: Leading tokens of the prompt that agree with something cached; where
            the kind is ``DIVERGED``, the position of the first one that differs.
        lost_at: When it was evicted, expired or invalidated, or its approval ended, on
            the cache's clock.
        policy: The eviction policy that chose it.
        pressure: For whom it was evicted.
        selector: What kind of selector invalidated it, as ``selector_kind`` names it.
        num_lost_blocks: Blocks lost at that place and below; 0 where nobody counted.
        was_approved: Whether what ended was an approval, and not the KV itself.
        differing_fields: Fingerprint fields that differ, for ``OTHER_FINGERPRINT``.
    """

    kind: MissKind
    at_token: int
    lost_at: float | None = None
    policy: str | None = None
    pressure: Pressure | None = None
    selector: str | None = None
    num_lost_blocks: int = 0
    was_approved: bool = False
    differing_fields: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the reason as a sentence without its full stop."""
        place = f"from token {self.at_token} on"
        return {
            MissKind.COMPLETE: "all but the last token was cached",
            MissKind.READ_OFF: "the request did not read the cache",
            MissKind.TOO_SHORT: (
                "the prompt does not fill a block and nothing cached begins with it"
            ),
            MissKind.NEVER_SEEN: f"nothing is cached {place}",
            MissKind.DIVERGED: f"what is cached goes on differently {place}",
            MissKind.EVICTED: self._evicted(place),
            MissKind.INVALIDATED: f"{self._lost(place)} invalidated{self._by_selector()}",
            MissKind.WITHDRAWN: (
                f"the approval of {self.num_lost_blocks} blocks {place} was withdrawn"
            ),
            MissKind.EXPIRED: self._expired(place),
            MissKind.NO_LOGPROBS: f"the prompt's log-probabilities are not kept {place}",
            MissKind.OTHER_FINGERPRINT: (
                f"cached with another {', '.join(self.differing_fields)}"
            ),
        }[self.kind]

    def _lost(self, place: str) -> str:
        if not self.num_lost_blocks:
            return f"what was cached {place} was"
        return f"{self.num_lost_blocks} blocks {place} were"

    def _evicted(self, place: str) -> str:
        whose = {
            None: "",
            Pressure.OWN: ", for a request of the same tenant",
            Pressure.SHARE: ", because the tenant had more than its share",
            Pressure.POOL: ", because the pool was full",
        }[self.pressure]
        return f"{self._lost(place)} evicted by {self.policy}{whose}"

    def _expired(self, place: str) -> str:
        if self.was_approved:
            return f"the approval of {self.num_lost_blocks} blocks {place} has expired"
        return f"{self._lost(place)} not used again in time, and expired"

    def _by_selector(self) -> str:
        return "" if self.selector is None else f", by {self.selector}"
