"""Constructed misses: prompts that miss in a real cache, with the label of who made it so.

Texts are cut into words, digits and signs; ids are numbers of their own for each piece.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prefold.cache import (
    NO_CACHE,
    ByAge,
    ByApproved,
    ByDomain,
    ByField,
    ByFingerprint,
    ByPrefix,
    Everything,
    MissKind,
    MissReason,
    QuotaSettings,
    Retention,
    Selector,
    Share,
)
from prefold.identity.domain import Domain
from support.breaks import Break, chat
from support.cache_driver import A, CacheDriver
from support.fingerprints import make_fingerprint
from support.running import as_tokens
from support.settable_clock import SettableClock

BLOCK_SIZE = 16

_PIECE = re.compile(r"\d|[^\W\d]+|\s|[^\w\s]")


class Cutter:
    """Cuts texts into tokens, and puts them together again."""

    def __init__(self) -> None:
        self._piece_by_id: dict[int, str] = {}

    def tokens(self, text: str, recut_at: int | None = None) -> list[int]:
        """Return token ids; from ``recut_at`` on, words are cut into letters."""
        whole = text if recut_at is None else text[:recut_at]
        pieces = _PIECE.findall(whole) + list(text[len(whole) :])
        ids = [zlib.crc32(piece.encode()) >> 1 for piece in pieces]
        self._piece_by_id.update(zip(ids, pieces, strict=True))
        return ids

    def decode(self, token_ids: object) -> str:
        assert isinstance(token_ids, list)
        return "".join(self._piece_by_id[each] for each in token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A miss in a real cache.

    Attributes:
        earlier: Tokens of what was served first.
        later: Tokens of what missed.
        num_common: Leading tokens that agree.
    """

    earlier: list[int]
    later: list[int]
    num_common: int
    miss: MissReason


def miss_of(broken: Break, cutter: Cutter) -> Missed:
    """Serve one prompt of a break, and ask for the other."""
    earlier = cutter.tokens(broken.earlier)
    recut_at = None
    if broken.is_recut:
        # The reply comes back in other tokens: from its last line on.
        recut_at = broken.earlier.rstrip().rfind("\n") + 1
    later = cutter.tokens(broken.later, recut_at)
    driver = CacheDriver(num_blocks=128, block_size=BLOCK_SIZE)
    driver.serve(earlier)
    pairs = enumerate(zip(earlier, later, strict=False))
    num_common = next(number for number, (one, other) in pairs if one != other)
    miss = driver.lookup(later).miss
    return Missed(earlier=earlier, later=later, num_common=num_common, miss=miss)


# -- other reasons -------------------------------------------------------------------------

Scenario = Callable[[list[int]], MissReason]

_OTHER = Domain("b")


def _driver(
    num_blocks: int = 128, clock: SettableClock | None = None, maximum: float | None = None
) -> CacheDriver:
    shares = () if maximum is None else (Share(domain=A, maximum=maximum),)
    return CacheDriver(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        clock=clock,
        quotas=QuotaSettings(shares=shares),
    )


def _never_seen(tokens: list[int]) -> MissReason:
    driver = _driver()
    driver.serve(tokens, domain=_OTHER)
    return driver.lookup(tokens).miss


def _evicted(taker: Domain) -> Scenario:
    def scenario(tokens: list[int]) -> MissReason:
        driver = _driver(num_blocks=len(tokens) // BLOCK_SIZE + 2)
        driver.serve(tokens)
        driver.fill(driver.cache.num_blocks, taker)
        return driver.lookup(tokens).miss

    return scenario


def _above_its_share(tokens: list[int]) -> MissReason:
    driver = _driver(maximum=0.01)
    driver.serve(tokens)
    return driver.lookup(tokens).miss


def _expired(tokens: list[int]) -> MissReason:
    clock = SettableClock()
    driver = _driver(clock=clock)
    driver.serve(tokens, retention=Retention(ttl_s=60.0))
    clock.advance(61.0)
    return driver.lookup(tokens).miss


def _approval_expired(tokens: list[int]) -> MissReason:
    clock = SettableClock()
    driver = _driver(clock=clock)
    driver.approve(tokens, ttl_s=60.0)
    clock.advance(61.0)
    return driver.lookup(tokens).miss


def _withdrawn(tokens: list[int]) -> MissReason:
    driver = _driver()
    approval = driver.approve(tokens)
    driver.cache.invalidate(ByApproved(approval_id=approval.approval_id))
    return driver.lookup(tokens).miss


def _invalidated(selector: Callable[[CacheDriver, list[int]], Selector]) -> Scenario:
    def scenario(tokens: list[int]) -> MissReason:
        driver = _driver()
        driver.serve(tokens)
        driver.cache.invalidate(selector(driver, tokens))
        return driver.lookup(tokens).miss

    return scenario


def _other_fingerprint(tokens: list[int]) -> MissReason:
    driver = _driver()
    driver.serve(tokens)
    other = make_fingerprint(block_size=BLOCK_SIZE, chat_template=b"another")
    return driver.cache.lookup(other, A, as_tokens(tokens)).miss


def _too_short(tokens: list[int]) -> MissReason:
    return _driver().lookup(tokens[: BLOCK_SIZE - 3]).miss


def _read_off(tokens: list[int]) -> MissReason:
    driver = _driver()
    driver.serve(tokens)
    found = driver.cache.lookup(driver.fingerprint, A, as_tokens(tokens), access=NO_CACHE)
    return found.miss


def _no_logprobs(tokens: list[int]) -> MissReason:
    driver = _driver()
    driver.serve(tokens)
    found = driver.cache.lookup(driver.fingerprint, A, as_tokens(tokens), limit=BLOCK_SIZE)
    return found.miss


def _complete(tokens: list[int]) -> MissReason:
    driver = _driver()
    driver.serve(tokens)
    return driver.lookup(tokens).miss


#: What was done, by name, with the reason that it has to give, and what more to say.
SCENARIOS: Mapping[str, tuple[Scenario, MissKind, str | None]] = {
    "never seen": (_never_seen, MissKind.NEVER_SEEN, None),
    "evicted for its own": (_evicted(A), MissKind.EVICTED, "own"),
    "evicted for others": (_evicted(_OTHER), MissKind.EVICTED, "pool"),
    "above its share": (_above_its_share, MissKind.EVICTED, "share"),
    "expired": (_expired, MissKind.EXPIRED, None),
    "approval expired": (_approval_expired, MissKind.EXPIRED, None),
    "withdrawn": (_withdrawn, MissKind.WITHDRAWN, "approval"),
    "reset": (_invalidated(lambda *_: Everything()), MissKind.INVALIDATED, "everything"),
    "domain dropped": (
        _invalidated(lambda *_: ByDomain(domain=A)),
        MissKind.INVALIDATED,
        "domain",
    ),
    "prefix dropped": (
        _invalidated(
            lambda driver, tokens: ByPrefix(
                fingerprint=driver.fingerprint, domain=A, tokens=as_tokens(tokens[:32])
            )
        ),
        MissKind.INVALIDATED,
        "prefix",
    ),
    "age dropped": (
        _invalidated(lambda *_: ByAge(older_than_s=0.0)),
        MissKind.INVALIDATED,
        "age",
    ),
    "field dropped": (
        _invalidated(
            lambda driver, _: ByField(name="tokenizer", value=driver.fingerprint.tokenizer)
        ),
        MissKind.INVALIDATED,
        "field tokenizer",
    ),
    "fingerprint dropped": (
        _invalidated(lambda driver, _: ByFingerprint(fingerprint=driver.fingerprint)),
        MissKind.INVALIDATED,
        "fingerprint",
    ),
    "other template": (_other_fingerprint, MissKind.OTHER_FINGERPRINT, None),
    "too short": (_too_short, MissKind.TOO_SHORT, None),
    "reading off": (_read_off, MissKind.READ_OFF, None),
    "no log-probabilities": (_no_logprobs, MissKind.NO_LOGPROBS, None),
    "nothing missed": (_complete, MissKind.COMPLETE, None),
}


def prompt_of(form: int, cutter: Cutter) -> list[int]:
    """Return a prompt in a form's language and template, of four blocks and more."""
    return cutter.tokens(chat(form, "Ab cd, ef. " * 10))
