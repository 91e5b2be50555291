"""Protocol of the what-if: what operators are told about other cache sizes."""

from __future__ import annotations

from typing import Literal

from prefold.advisor.what_if import WhatIf
from prefold.server.protocol import ReplyModel

_NOTHING_SEEN = (
    "no request has looked its prompt up yet; send some, and ask again when they have ended"
)
_NO_COST = (
    "what prefill costs is not known yet, so seconds are 0 and every token counts alike in "
    "saved_share; a few prompts have to be computed first"
)


class WhatIfPointReply(ReplyModel):
    """What a cache of another size would do for the same requests."""

    factor: float
    """Its size, as a multiple of the present one."""
    capacity_blocks: int
    hit_rate: float
    """Hit tokens over prompt tokens. At factor 1 it is measured, at others estimated."""
    saved_s: float
    """Prefill seconds that the hits save, in all."""
    saved_share: float
    """The same over what computing all prompts would take."""


class WhatIfReply(ReplyModel):
    """Hit rate and prefill seconds saved against capacity, since the model was loaded."""

    object: Literal["cache.whatif"] = "cache.whatif"
    block_tokens: int
    sample_rate: float
    """Share of the blocks that is followed."""
    sampled: int
    """Blocks that are followed now."""
    requests: int
    """Sequences that looked their prompt up."""
    points: list[WhatIfPointReply]
    """From small to large."""
    note: str | None
    """What is not known yet, as a sentence."""


def what_if_reply(what_if: WhatIf) -> WhatIfReply:
    """Return the answers as they are sent."""
    note = None
    if what_if.num_requests == 0:
        note = _NOTHING_SEEN
    elif not what_if.has_cost:
        note = _NO_COST
    return WhatIfReply(
        block_tokens=what_if.block_size,
        sample_rate=what_if.sample_rate,
        sampled=what_if.num_sampled,
        requests=what_if.num_requests,
        points=[
            WhatIfPointReply(
                factor=point.factor,
                capacity_blocks=point.num_blocks,
                hit_rate=point.hit_rate,
                saved_s=point.saved_s,
                saved_share=point.saved_share,
            )
            for point in what_if.points
        ],
        note=note,
    )
