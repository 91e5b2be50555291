"""Miss advice: what to change about each reason and each culprit, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from prefold.advisor import BreakKind
from prefold.cache import MissKind, Pressure

_LATER = "move it behind everything that stays the same, or into the last message"

_BY_CULPRIT: Mapping[BreakKind, str] = {
    BreakKind.CLOCK: f"The prompt has a clock; {_LATER}, or give only the date.",
    BreakKind.DATE: f"The prompt has a date; {_LATER}.",
    BreakKind.UUID: f"The prompt has a UUID of its own; leave it out, or {_LATER}.",
    BreakKind.RANDOM_ID: f"The prompt has an id of its own; leave it out, or {_LATER}.",
    BreakKind.COUNTER: f"The prompt has a counter; leave it out, or {_LATER}.",
    BreakKind.REORDERED_KEYS: "Write JSON with its keys sorted.",
    BreakKind.REORDERED_LIST: "Write the entries in the same order every time.",
    BreakKind.REORDERED_TOOLS: "Send the tools in the same order every time.",
    BreakKind.WHITE_SPACE: "Make white space the same every time: ends of lines, indents.",
    BreakKind.TEMPLATE: "Use one template, or expect a miss after each change of it.",
    BreakKind.REASONING: (
        "Replies are sent back without their reasoning; send them back as they were, or "
        "expect to compute the last reply again."
    ),
    BreakKind.TOKENS: (
        "The reply was cut into other tokens when it came back; send token ids, or expect "
        "to compute from there on."
    ),
}

_BY_KIND: Mapping[MissKind, str] = {
    MissKind.READ_OFF: "Let the request, and its tenant, read the cache.",
    MissKind.NO_LOGPROBS: "Ask for prompt_logprobs only where they are needed.",
    MissKind.OTHER_FINGERPRINT: (
        "This is right after a change of these; warm what matters under the new ones."
    ),
    MissKind.EXPIRED: "Give it a longer time to live, or approve or warm it again.",
    MissKind.INVALIDATED: "This is what the invalidation asked for; warm what matters.",
    MissKind.WITHDRAWN: "Approve the prefix again, if it is still to be shared.",
}

_BY_PRESSURE: Mapping[Pressure | None, str] = {
    None: "Give the cache more memory, or approve and pin what matters.",
    Pressure.OWN: "Give the cache more memory, or give what matters a higher priority.",
    Pressure.SHARE: "Raise the tenant's cache_max.",
    Pressure.POOL: "Give the cache more memory, or the tenant a cache_reserved.",
}


def advise(
    kind: MissKind, pressure: Pressure | None, culprit: BreakKind | None
) -> str | None:
    """Return what to change; None where there is nothing."""
    if culprit is not None:
        return _BY_CULPRIT.get(culprit)
    if kind is MissKind.EVICTED:
        return _BY_PRESSURE[pressure]
    return _BY_KIND.get(kind)
