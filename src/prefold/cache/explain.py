"""Miss reasons: why a prompt did not hit further than it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    #: It was approved, and the approval's time is over.
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
        lost_at: When it was evicted or invalidated, or its approval ended, on the
            cache's clock.
        policy: The eviction policy that chose it.
        num_lost_blocks: Blocks lost at that place and below.
        differing_fields: Fingerprint fields that differ, for ``OTHER_FINGERPRINT``.
    """

    kind: MissKind
    at_token: int
    lost_at: float | None = None
    policy: str | None = None
    num_lost_blocks: int = 0
    differing_fields: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the reason as a sentence without its full stop."""
        place = f"from token {self.at_token} on"
        return {
            MissKind.COMPLETE: "all but the last token was reused",
            MissKind.READ_OFF: "the request did not read the cache",
            MissKind.TOO_SHORT: (
                "the prompt does not fill a block and nothing cached begins with it"
            ),
            MissKind.NEVER_SEEN: f"nothing is cached {place}",
            MissKind.DIVERGED: f"what is cached goes on differently {place}",
            MissKind.EVICTED: (
                f"{self.num_lost_blocks} blocks {place} were evicted by {self.policy}"
            ),
            MissKind.INVALIDATED: f"{self.num_lost_blocks} blocks {place} were invalidated",
            MissKind.WITHDRAWN: (
                f"the approval of {self.num_lost_blocks} blocks {place} was withdrawn"
            ),
            MissKind.EXPIRED: (
                f"the approval of {self.num_lost_blocks} blocks {place} has expired"
            ),
            MissKind.NO_LOGPROBS: f"the prompt's log-probabilities are not kept {place}",
            MissKind.OTHER_FINGERPRINT: (
                f"cached with another {', '.join(self.differing_fields)}"
            ),
        }[self.kind]
