"""What-if: hits and prefill time saved if the cache were smaller or larger.

A ``MissCurve`` says what caches of several sizes would hit that evict what was used longest
ago. The cache that runs may do better or worse than that: its policy may be another one,
tenants have shares, things expire. What it really hits is known at its own size, so there
the answer is what was measured. At other sizes the difference to the curve is kept: a gain
in proportion to what is left to gain, which is the way to the largest size's hits; a loss
as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefold.advisor.miss_curve import BUDGET, CurvePoint, MissCurve
from prefold.advisor.path_marks import PathMarks
from prefold.errors import InvalidInputError, InvariantError
from prefold.eviction.cost import PRIOR, CostFit, num_pairs

#: Sizes that are asked about, as multiples of the cache's own.
FACTORS = (0.5, 1.0, 2.0, 4.0)

_OWN = FACTORS.index(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfPoint:
    """What a cache of another size would do for the same requests.

    Attributes:
        factor: Its size as a multiple of the cache's own.
        num_blocks: The same in blocks.
        hit_rate: Hit tokens over prompt tokens.
        saved_s: Prefill seconds that the hits would have saved; 0 while the cost of
            prefill is not known.
        saved_share: The same as a share of computing all prompts; while the cost is not
            known, every token counts alike.
    """

    factor: float
    num_blocks: int
    hit_rate: float
    saved_s: float
    saved_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answers of one moment.

    Attributes:
        sample_rate: Share of the blocks that is followed.
        num_sampled: Blocks that are followed now.
        num_requests: Requests that looked something up.
        has_cost: Whether the cost of prefill is known.
        points: One for each of ``FACTORS``.
    """

    block_size: int
    sample_rate: float
    num_sampled: int
    num_requests: int
    has_cost: bool
    points: tuple[WhatIfPoint, ...]


@dataclass(frozen=True, slots=True)
class _Amount:
    """Prompt tokens, and pairs of one of them with one before it: what prefill costs."""

    tokens: float = 0.0
    pairs: float = 0.0

    def plus(self, num_tokens: int) -> _Amount:
        """Return it with the first tokens of one more prompt."""
        return _Amount(self.tokens + num_tokens, self.pairs + num_pairs(0, num_tokens))

    def seconds(self, cost: CostFit) -> float:
        return cost.per_token * self.tokens + cost.per_pair * self.pairs


class WhatIfMeter:
    """Follows the requests of one cache. One thread.

    Invariants: those of its ``MissCurve``; no more hits than prompt tokens.
    """

    __slots__ = ("_asked", "_block_size", "_budget", "_curve", "_hit", "_num_blocks")

    def __init__(self, *, num_blocks: int, block_size: int, budget: int = BUDGET) -> None:
        """Begin with nothing seen.

        Args:
            num_blocks: Of the cache.
            block_size: Tokens in a block.
            budget: Blocks that are followed, at most.

        Raises:
            InvalidInputError: One of them is below 1.
        """
        if min(num_blocks, block_size) < 1:
            raise InvalidInputError(
                f"a cache has blocks and a block has tokens, got {num_blocks} blocks of "
                f"{block_size}"
            )
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._budget = budget
        self.reset()

    def reset(self) -> None:
        """Forget everything: what comes now has nothing in common with what was."""
        sizes = [max(int(self._num_blocks * factor), 1) for factor in FACTORS]
        self._curve = MissCurve(sizes, budget=self._budget)
        self._asked = _Amount()
        self._hit = _Amount()

    def note_query(
        self,
        marks: PathMarks,
        *,
        num_kept: int,
        num_prompt_tokens: int,
        num_hit_tokens: int,
    ) -> None:
        """Note a request that looked its prompt up. Costs what ``MissCurve.note`` does.

        Args:
            marks: Of the whole blocks of its prompt and its reply.
            num_kept: Leading ones that are cached afterwards.
            num_prompt_tokens: All of its prompt's.
            num_hit_tokens: Of those, the ones that hit.

        Raises:
            InvalidInputError: More hits than tokens, or fewer marks than the prompt has
                blocks that it could hit.
        """
        if not 0 <= num_hit_tokens <= num_prompt_tokens:
            raise InvalidInputError(
                f"a prompt of {num_prompt_tokens} tokens cannot hit {num_hit_tokens}"
            )
        # The last token is always computed, so it hits nothing.
        num_asked = max(num_prompt_tokens - 1, 0) // self._block_size
        self._curve.note(marks, num_asked=num_asked, num_kept=num_kept)
        self._asked = self._asked.plus(num_prompt_tokens)
        self._hit = self._hit.plus(num_hit_tokens)

    def note_use(self, marks: PathMarks, *, num_kept: int) -> None:
        """Note a request that looked nothing up, but left something behind."""
        self._curve.note_use(marks, num_kept=num_kept)

    def read(self, cost: CostFit | None) -> WhatIf:
        """Return the answers of this moment; all zeros before any request."""
        points = self._curve.counts()
        lru = [self._amount(point) for point in points]
        tokens = _correct(
            [each.tokens for each in lru], self._hit.tokens, self._asked.tokens
        )
        pairs = _correct([each.pairs for each in lru], self._hit.pairs, self._asked.pairs)
        known, whole = cost or PRIOR, self._asked.seconds(cost or PRIOR)
        hits = [_Amount(*each) for each in zip(tokens, pairs, strict=True)]
        return WhatIf(
            block_size=self._block_size,
            sample_rate=self._curve.rate,
            num_sampled=self._curve.num_sampled,
            num_requests=self._curve.num_queries,
            has_cost=cost is not None,
            points=tuple(
                WhatIfPoint(
                    factor=factor,
                    num_blocks=point.num_blocks,
                    hit_rate=_share(hit.tokens, self._asked.tokens),
                    saved_s=0.0 if cost is None else hit.seconds(cost),
                    saved_share=_share(hit.seconds(known), whole),
                )
                for factor, point, hit in zip(FACTORS, points, hits, strict=True)
            ),
        )

    def _amount(self, point: CurvePoint) -> _Amount:
        size = self._block_size
        # A block's first token has the tokens of all blocks before it in front of it.
        inside = num_pairs(0, size)
        return _Amount(
            size * point.hit_blocks,
            size**2 * point.hit_depths + inside * point.hit_blocks,
        )

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the curve is none or more was hit than asked for."""
        self._curve.check_invariants()
        if self._hit.tokens > self._asked.tokens or self._hit.pairs > self._asked.pairs:
            raise InvariantError("more tokens hit than were asked for")


def _correct(lru: Sequence[float], measured: float, most: float) -> list[float]:
    """Return what the cache would hit at each size, given what it hits at its own.

    Only differences of the curve count, so what the sample has of the hottest blocks, which
    hit at every size, does not matter.

    Args:
        lru: What the curve says, ascending.
        measured: What is hit at ``FACTORS[_OWN]``.
        most: What no size can exceed.
    """
    own, best = lru[_OWN], lru[-1]
    corrected = []
    for factor, value in zip(FACTORS, lru, strict=True):
        change = measured - own
        if change > 0 and best > own:
            change *= min((best - value) / (best - own), 1.0)
        at_least, at_most = (0.0, measured) if factor <= 1 else (measured, most)
        corrected.append(min(max(value + change, at_least), at_most))
    corrected[_OWN] = measured
    return [max(corrected[: index + 1]) for index in range(len(corrected))]


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
