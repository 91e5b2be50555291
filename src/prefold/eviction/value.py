"""Value: keeps what is worth most, in prefill time saved per second and byte held.

A leaf's value is the rate at which its blocks can be expected to be used again, times the
prefill time that one of them saves. The rate comes from ``survival``, by how the blocks
were used last:

==========  ==================================================================
turn        how many requests, each extending the one before, led there
new tokens  what the request added to what was known
reply       tokens that it produced, which take time to be read and answered
gap         how long after the one it extends it came
forks       how many requests went on differently, for what several begin with
==========  ==================================================================

and by how long ago that was. Blocks with forks, such as a system prompt, are told apart by
forks and by their own gap alone. Runs that were evicted are remembered for a while, so that
the model learns what became of them, too: otherwise it would only ever see what it kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence

from prefold.errors import InvariantError
from prefold.eviction.cost import PrefillCost
from prefold.eviction.policy import LeafFacts, Rank
from prefold.eviction.survival import EDGES, NUM_AGES, Survival, age_of, end_of
from prefold.tree.cohort import Cohort, Request

#: Evicted blocks that are remembered, as a multiple of the pool.
REMEMBERED = 12

#: Requests between two fits, but for the first ones; and those after which what was seen
#: counts half.
FIT_EVERY = 300
HALF_LIFE = 1000

_NONE_TURN, _NONE_NEW, _NONE_REPLY = 7, 10, 9
_FORKED_GAP = 10
#: How many values the features have, in the order of the table above.
_NUM_VALUES = (8, 11, 10, 20, 7)


class Value:
    """The policy. Owned by one cache; one thread.

    Attributes:
        version: Number of fits.

    Invariants: cohorts stand in the queue of their age, oldest first.
    """

    __slots__ = (
        "_by_age",
        "_cost",
        "_limit",
        "_lost",
        "_num_lost",
        "_num_requests",
        "_survival",
        "version",
    )

    name = "value"
    learns = True

    def __init__(self, cost: PrefillCost, num_blocks: int) -> None:
        """Make one that knows nothing yet.

        Args:
            cost: What prefill takes, as it is learned.
            num_blocks: Of the pool.
        """
        self._cost = cost
        self._survival = Survival(_NUM_VALUES)
        self._by_age: list[deque[Cohort]] = [deque() for _ in range(NUM_AGES)]
        # Evicted blocks by cohort, in the order of their eviction.
        self._lost: deque[tuple[Cohort, int]] = deque()
        self._num_lost = 0
        self._limit = REMEMBERED * num_blocks
        self._num_requests = 0
        self.version = 0

    # -- ranks ---------------------------------------------------------------------

    def rank(self, facts: LeafFacts, now: float) -> Rank:
        """Return where an idle leaf stands: by its kind, its age and its depth."""
        kind = facts.kind
        if kind is None:
            kind = self._survival.kind_of(_features(_UNKNOWN, 0, None))
        age = age_of(max(now - facts.last_used_at, 0.0))
        level = (facts.depth + 1).bit_length() if self._cost.grows else 0
        return Rank(
            (kind, age, level), facts.last_used_at, facts.last_used_at + end_of(age)
        )

    def worth(self, shelf: Hashable) -> float:
        """Return the prefill seconds that a block saves per second it is held."""
        if not isinstance(shelf, tuple):
            return 0.0
        kind, age, level = shelf
        rate = self._survival.worth(kind, age)
        return rate * self._cost.relative(1 << level >> 1)

    # -- learning ------------------------------------------------------------------

    def kind_of(self, request: Request, num_forks: int, gap_s: float | None) -> int:
        """Return the number of the features' values."""
        return self._survival.kind_of(_features(request, num_forks, gap_s))

    def note_uses(self, cohorts: Sequence[Cohort], now: float) -> None:
        """Let cohorts begin to wait; now and then, fit."""
        self._let_time_pass(now)
        self._by_age[0].extend(cohorts)
        self._num_requests += 1
        # The first ones count most, so they do not have to wait.
        is_early = self._num_requests < FIT_EVERY
        if is_early and self._num_requests & (self._num_requests - 1) == 0:
            self._fit(1.0)
        elif self._num_requests % FIT_EVERY == 0:
            self._fit(0.5 ** (FIT_EVERY / HALF_LIFE))

    def note_reuse(self, cohort: Cohort, num_blocks: int, now: float) -> None:
        """Learn that blocks of a cohort had their next use."""
        self._let_time_pass(now)
        if num_blocks:
            self._survival.note_event(cohort.kind, cohort.age, _weight(cohort, num_blocks))
            self._let_go(cohort, num_blocks, now)

    def note_lost_reuse(self, cohort: Cohort, num_blocks: int, now: float) -> None:
        """Learn that blocks would have had their next use, had they not been evicted."""
        num_blocks = min(num_blocks, cohort.num_lost)
        self._num_lost -= num_blocks
        cohort.num_lost -= num_blocks
        self.note_reuse(cohort, num_blocks, now)

    def note_eviction(
        self, rank: Rank, cohort: Cohort | None, num_blocks: int, now: float
    ) -> None:
        """Go on waiting for the next use of what is evicted, as long as there is room."""
        del rank
        if cohort is None:
            return
        cohort.num_lost += num_blocks
        self._lost.append((cohort, num_blocks))
        self._num_lost += num_blocks
        while self._lost and not self._lost[0][0].num_lost:
            self._lost.popleft()
        while self._num_lost > self._limit:
            oldest, num_lost = self._lost.popleft()
            num_forgotten = min(num_lost, oldest.num_lost)
            oldest.num_lost -= num_forgotten
            self._num_lost -= num_forgotten
            self._let_go(oldest, num_forgotten, now)

    def _let_go(self, cohort: Cohort, num_blocks: int, now: float) -> None:
        """Let blocks wait no longer: they were used, or are to be forgotten."""
        waited = max(now - cohort.use.at - EDGES[cohort.age], 0.0)
        weight = _weight(cohort, num_blocks)
        self._survival.note_exposure(cohort.kind, cohort.age, weight * waited)
        cohort.leave(num_blocks)

    def _let_time_pass(self, now: float) -> None:
        """Move cohorts to the age that they have come to. Amortised O(ages) a cohort."""
        for age in range(NUM_AGES - 1):
            waiting, end = self._by_age[age], EDGES[age + 1]
            while waiting and (waiting[0].num_live <= 0 or now - waiting[0].use.at >= end):
                cohort = waiting.popleft()
                if cohort.num_live <= 0:
                    continue
                weight = _weight(cohort, cohort.num_live)
                seconds = end - EDGES[age]
                self._survival.note_exposure(cohort.kind, age, weight * seconds)
                cohort.age = age + 1
                self._by_age[age + 1].append(cohort)
        oldest = self._by_age[-1]
        while oldest and oldest[0].num_live <= 0:
            oldest.popleft()

    def _fit(self, keep: float) -> None:
        # Those whose blocks were all used again need not wait, nor be remembered, longer.
        for age, waiting in enumerate(self._by_age):
            self._by_age[age] = deque(it for it in waiting if it.num_live > 0)
        self._lost = deque(entry for entry in self._lost if entry[0].num_lost)
        self._survival.fit(keep)
        self.version += 1

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if cohorts are out of order or blocks miscounted."""
        for age, waiting in enumerate(self._by_age):
            ends = [cohort.use.at for cohort in waiting]
            if ends != sorted(ends) or any(cohort.age != age for cohort in waiting):
                raise InvariantError("cohorts do not wait in the order of their age")
        lost = {id(cohort): cohort for cohort, _ in self._lost}
        if sum(cohort.num_lost for cohort in lost.values()) != self._num_lost:
            raise InvariantError("the evicted blocks that are remembered do not add up")
        if self._num_lost > self._limit:
            raise InvariantError("more evicted blocks are remembered than may be")


def _weight(cohort: Cohort, num_blocks: int) -> float:
    # Blocks of one cohort mostly meet one fate, so that a long one tells more than a short
    # one, but not as much more as it has blocks.
    return float(num_blocks / math.sqrt(cohort.num_blocks))


def _features(request: Request, num_forks: int, gap_s: float | None) -> tuple[int, ...]:
    """Return the values of the features, each a small number."""
    if num_forks:
        gap = _FORKED_GAP + _gap_level(gap_s or 0.0, 9)
        return (_NONE_TURN, _NONE_NEW, _NONE_REPLY, gap, _fork_level(num_forks))
    new = _level(request.num_new_tokens, first=8, most=9)
    return (
        _turn_level(request),
        max(new, int(request.num_new_tokens > 0)),
        _level(request.num_reply_tokens, first=5, most=8),
        # Whatever follows within two seconds was sent by a program.
        0 if request.gap_s is None else max(_gap_level(request.gap_s, 9), 1),
        0,
    )


def _turn_level(request: Request) -> int:
    if request.turn == 0:
        return int(request.is_fork)
    return 2 + min(request.turn - 1, 2) + (request.turn >= 4) + (request.turn >= 8)


def _level(number: int, *, first: int, most: int) -> int:
    """Return 0 below ``2 ** first``, then one more for every doubling."""
    return min(max(number.bit_length() - first, 0), most)


def _gap_level(seconds: float, most: int) -> int:
    return 0 if seconds < 1 else min(1 + int(math.log2(seconds)), most)


def _fork_level(num_forks: int) -> int:
    level = num_forks.bit_length()
    return min(level - (level > 5), 6)


#: Of blocks that nobody is known to have used.
_UNKNOWN = Request(
    turn=0,
    is_fork=False,
    num_new_tokens=0,
    num_reply_tokens=0,
    gap_s=None,
)
