"""Journal: what the last requests asked for and why they missed, to explain it when asked.

::

    taken in   a prompt is entered, with its tokens         note_asked
    ended      its reason, its hits and its reply           note_output
    asked      it is compared with earlier ones             compared
    dropped    tokens go, the reason stays                  forget, and the bounds below

Tokens are kept of requests that may leave something in the cache, for no longer than their
time to live, and for nobody but whoever may explain. They never leave this process, and no
``repr`` shows them.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prefold.advisor import Breakpoint
from prefold.blocks.table import TokenIds
from prefold.cache import MissKind, MissReason
from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestOutput
from prefold.errors import InvariantError
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.server.observer import AskedPrompt, ExchangeId

#: Half of what the engine computes with: no vocabulary needs more.
KeptTokens: TypeAlias = npt.NDArray[np.int32]

#: Prompts kept, and of one request.
MAX_PROMPTS = 1_000
MAX_OF_REQUEST = 64
#: Replies kept of one prompt: any of them may be what its client goes on with.
MAX_REPLIES = 4
#: Tokens kept of all of them; at four bytes each, 16 MiB.
MAX_TOKENS = 4 * 2**20
#: How often tokens are dropped whose time is over, in seconds.
_SWEEP_S = 10.0


class Entry:
    """One prompt of a request. Changed by the journal only.

    Attributes:
        number: Its place in the order in which prompts came.
        at: When it came, in seconds since 1970.
        expires_at: When its tokens are dropped at the latest.
        sequences: Its tokens, with those of each reply once there are some; empty where
            they are not kept, or not any more.
        miss: None before it has ended, and where it was never admitted.
        was_compared: Whether ``finding`` is what a comparison has found.
        finding: Where, and by what, it parts from the nearest earlier one.
    """

    __slots__ = (
        *("at", "domain", "expires_at", "finding", "fingerprint", "miss", "num_hit_tokens"),
        *("num_prompt_tokens", "number", "request", "sequences", "was_compared"),
    )

    def __init__(
        self,
        request: ExchangeId,
        number: int,
        at: float,
        num_prompt_tokens: int,
        options: RequestOptions,
        fingerprint: Fingerprint,
    ) -> None:
        self.request = request
        self.number = number
        self.at = at
        self.domain = options.domain
        self.expires_at = at + options.retention.ttl_s
        self.fingerprint = fingerprint
        self.num_prompt_tokens = num_prompt_tokens
        self.sequences: tuple[KeptTokens, ...] = ()
        self.miss: MissReason | None = None
        self.num_hit_tokens = 0
        self.was_compared = False
        self.finding: Breakpoint | None = None

    @property
    def prompt(self) -> KeptTokens | None:
        """Its prompt's tokens, if they are kept."""
        return self.sequences[0][: self.num_prompt_tokens] if self.sequences else None

    @property
    def num_kept(self) -> int:
        return sum(len(each) for each in self.sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What an entry is compared with: an earlier request of its domain, as values."""

    request_id: str
    number: int
    at: float
    sequences: tuple[KeptTokens, ...] = field(repr=False)


class Journal:
    """The last prompts. One thread, that of the event loop.

    Args:
        clock: Seconds since 1970.
        max_tokens: Of all prompts and replies that are kept; 0 keeps none.

    Invariants: at most ``MAX_PROMPTS`` entries, in the order of their numbers; the tokens
    of those that have some are counted, and at most ``max_tokens``.
    """

    __slots__ = (
        *("_by_request", "_clock", "_entries", "_holding", "_last_number"),
        *("_max_tokens", "_num_tokens", "_swept_at"),
    )

    def __init__(
        self, clock: Callable[[], float] = time.time, max_tokens: int = MAX_TOKENS
    ) -> None:
        self._clock = clock
        self._max_tokens = max_tokens
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        #: By tenant and the client's id, the entries of the latest request of that id.
        self._by_request: dict[tuple[str | None, str], list[Entry]] = {}
        #: Those that have tokens, by number; the one that changed last is the last.
        self._holding: OrderedDict[int, Entry] = OrderedDict()
        self._num_tokens = 0
        self._last_number = 0
        self._swept_at = -math.inf

    # -- taking notes --------------------------------------------------------------

    def note_asked(self, request: ExchangeId, prompts: Sequence[AskedPrompt]) -> None:
        """Enter the prompts of a request that the engine took in. O(tokens)."""
        self._sweep()
        key = (request.tenant, request.text)
        self._by_request[key] = []
        for asked in prompts[:MAX_OF_REQUEST]:
            self._last_number += 1
            entry = Entry(
                request,
                self._last_number,
                self._clock(),
                len(asked.token_ids),
                asked.options,
                asked.fingerprint,
            )
            self._entries[entry.number] = entry
            self._by_request[key].append(entry)
            if asked.options.access.write:
                self._hold(entry, (_kept(asked.token_ids),))
        while len(self._entries) > MAX_PROMPTS:
            self._drop(next(iter(self._entries.values())))

    def note_output(
        self, request: ExchangeId, output: RequestOutput, *, prompt: int
    ) -> None:
        """Complete an entry with what became of one of its choices. O(tokens)."""
        entries = self._by_request.get((request.tenant, request.text), ())
        if prompt >= len(entries) or entries[prompt].request.serial != request.serial:
            return
        entry = entries[prompt]
        if entry.miss is None and output.miss_reason is not None:
            entry.miss = output.miss_reason
            entry.num_hit_tokens = output.usage.cached_tokens
        own = entry.prompt
        has_reply = own is not None and len(entry.sequences[0]) > len(own)
        if own is None or not output.token_ids or len(entry.sequences) >= MAX_REPLIES:
            return
        whole = np.concatenate([own, np.array(output.token_ids, dtype=np.int32)])
        # The first reply takes the place of the bare prompt, which it begins with.
        others = entry.sequences if has_reply else ()
        self._release(entry)
        self._hold(entry, (*others, whole))

    def _hold(self, entry: Entry, sequences: tuple[KeptTokens, ...]) -> None:
        entry.sequences = sequences
        self._num_tokens += entry.num_kept
        self._holding[entry.number] = entry
        while self._num_tokens > self._max_tokens:
            self._release(next(iter(self._holding.values())))

    def _release(self, entry: Entry) -> None:
        self._num_tokens -= entry.num_kept
        entry.sequences = ()
        self._holding.pop(entry.number, None)

    def _drop(self, entry: Entry) -> None:
        self._release(entry)
        self._entries.pop(entry.number, None)
        key = (entry.request.tenant, entry.request.text)
        if entry in self._by_request.get(key, ()):
            self._by_request[key].remove(entry)
            if not self._by_request[key]:
                del self._by_request[key]

    def _sweep(self) -> None:
        now = self._clock()
        if now - self._swept_at < _SWEEP_S:
            return
        self._swept_at = now
        for entry in list(self._holding.values()):
            if entry.expires_at <= now:
                self._release(entry)

    # -- questions -----------------------------------------------------------------

    def latest(self, limit: int) -> list[Entry]:
        """Return the last prompts that have ended and missed something, newest first."""
        found: list[Entry] = []
        for entry in reversed(self._entries.values()):
            if len(found) >= limit:
                break
            if entry.miss is not None and entry.miss.kind is not MissKind.COMPLETE:
                found.append(entry)
        return found

    def tenants_of(self, text: str) -> list[str]:
        """Return the tenants that requests of that id are known of, by name."""
        found = {tenant for tenant, own in self._by_request if own == text}
        return sorted(tenant for tenant in found if tenant is not None)

    def find(self, text: str, tenant: str) -> list[Entry]:
        """Return the prompts of a tenant's latest request of that id; none if unknown."""
        return list(self._by_request.get((tenant, text), ()))

    def kept_before(self, entries: Sequence[Entry]) -> list[list[Kept]]:
        """Return for each the earlier requests of its domain and fingerprint, newest first.

        As values, to be compared on another thread; one for each request, however many
        it is compared with. O(kept), and a slice for each of ``entries``.
        """
        self._sweep()
        now = self._clock()
        alike: dict[tuple[Domain, Fingerprint], list[Kept]] = {}
        for each in reversed(self._entries.values()):
            if each.sequences and each.expires_at > now:
                kept = Kept(
                    request_id=each.request.text,
                    number=each.number,
                    at=each.at,
                    sequences=each.sequences,
                )
                alike.setdefault((each.domain, each.fingerprint), []).append(kept)
        found = []
        for entry in entries:
            its = alike.get((entry.domain, entry.fingerprint), [])
            earlier = bisect_right(its, -entry.number, key=lambda kept: -kept.number)
            found.append(its[earlier:])
        return found

    # -- forgetting ----------------------------------------------------------------

    def forget(self, domain: Domain | None = None, before: float = math.inf) -> None:
        """Drop the tokens of what came before a time: of a domain and below, or of all.

        What is running keeps no tokens either. The reasons stay: they quote nothing.
        """
        for entry in self._entries.values():
            is_meant = domain is None or entry.domain.is_within(domain)
            if is_meant and entry.at <= before:
                self._release(entry)

    def drop_domain(self, domain: Domain) -> None:
        """Drop everything of a domain and those below it: it is out of service."""
        for entry in list(self._entries.values()):
            if entry.domain.is_within(domain):
                self._drop(entry)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if bounds or counts do not hold. O(entries)."""
        entries = list(self._entries.values())
        if len(entries) > MAX_PROMPTS:
            raise InvariantError(f"the journal has {len(entries)} prompts")
        if [entry.number for entry in entries] != sorted(self._entries):
            raise InvariantError("the journal is not in order")
        if self._num_tokens != sum(entry.num_kept for entry in entries):
            raise InvariantError("the journal miscounts its tokens")
        if self._num_tokens > self._max_tokens:
            raise InvariantError(f"the journal keeps {self._num_tokens} tokens")
        holding = {entry.number for entry in entries if entry.sequences}
        if holding != self._holding.keys():
            raise InvariantError("the journal does not know which entries have tokens")
        if sum(map(len, self._by_request.values())) > len(entries):
            raise InvariantError("the journal lists prompts that it has dropped")


def _kept(token_ids: TokenIds) -> KeptTokens:
    return np.asarray(token_ids).astype(np.int32)
