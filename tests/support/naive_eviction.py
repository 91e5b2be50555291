"""Naive eviction: what a prefix cache hits, from a dict of prefixes, and the best of all.

A block is named by the prompt's ids up to it. Slow and obviously right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

Prompt = Sequence[int]
Prefix = tuple[int, ...]


def prefixes(prompt: Prompt) -> list[Prefix]:
    return [tuple(prompt[: end + 1]) for end in range(len(prompt))]


class NaiveLru:
    """Serves one prompt at a time, and evicts the leaf that was used longest ago."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evicted_blocks = 0
        self._used_at: dict[Prefix, int] = {}
        self._now = 0

    def serve(self, prompt: Prompt) -> int:
        """Return the blocks that were there."""
        self._now += 1
        path = prefixes(prompt)
        if len(path) > self.num_blocks:
            return 0
        num_hits = sum(prefix in self._used_at for prefix in path)
        while len(self._used_at) + len(path) - num_hits > self.num_blocks:
            victim = min(
                (prefix for prefix in self._used_at if self._is_free(prefix, path)),
                key=lambda prefix: self._used_at[prefix],
            )
            del self._used_at[victim]
            self.num_evicted_blocks += 1
        self._used_at.update(dict.fromkeys(path, self._now))
        return num_hits

    def _is_free(self, prefix: Prefix, path: list[Prefix]) -> bool:
        return prefix not in path and not any(
            len(other) == len(prefix) + 1 and other[:-1] == prefix
            for other in self._used_at
        )


def most_hits(prompts: Sequence[Prompt], num_blocks: int, *, holds_prompts: bool) -> int:
    """Return the most blocks that can be hit, over all choices of what to keep.

    Args:
        prompts: In the order in which they are served.
        num_blocks: Blocks of the cache; a prompt of more is served uncached.
        holds_prompts: Whether all of a prompt has to be kept until it was served.
    """
    paths = [frozenset(prefixes(prompt)) for prompt in prompts]

    @cache
    def best(number: int, cached: frozenset[Prefix]) -> int:
        if number == len(paths):
            return 0
        path = paths[number]
        if len(path) > num_blocks:
            return best(number + 1, cached)
        must = path if holds_prompts else frozenset[Prefix]()
        after = max(
            best(number + 1, kept)
            for kept in _closed_subsets(cached | path, num_blocks)
            if must <= kept
        )
        return len(cached & path) + after

    return best(0, frozenset())


@cache
def _closed_subsets(found: frozenset[Prefix], most: int) -> list[frozenset[Prefix]]:
    return list(_grow_subsets(found, most))


def _grow_subsets(found: frozenset[Prefix], most: int) -> Iterator[frozenset[Prefix]]:
    for size in range(min(most, len(found)) + 1):
        for chosen in combinations(sorted(found), size):
            kept = frozenset(chosen)
            if all(len(prefix) == 1 or prefix[:-1] in kept for prefix in kept):
                yield kept
