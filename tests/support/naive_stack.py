"""A cache that evicts what was used longest ago, as a list of prefixes; slow."""

from __future__ import annotations

from collections.abc import Sequence

Prompt = Sequence[int]


class NaiveLru:
    """Blocks by the prefix that they end, most recently used last.

    Attributes:
        num_hits: Blocks looked up that were there.
        depths: Sum over those of how many blocks were before each.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._blocks: list[tuple[int, ...]] = []
        self.num_hits = 0
        self.depths = 0

    def serve(self, prompt: Prompt, num_asked: int, num_kept: int) -> None:
        paths = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        if self._num_blocks >= max(num_asked, num_kept):
            for depth, path in enumerate(paths[:num_asked]):
                if path not in self._blocks:
                    break
                self.num_hits += 1
                self.depths += depth
        self.use(prompt, num_kept)

    def use(self, prompt: Prompt, num_kept: int) -> None:
        paths = [tuple(prompt[: end + 1]) for end in range(num_kept)]
        for path in reversed(paths):
            if path in self._blocks:
                self._blocks.remove(path)
            self._blocks.append(path)
        # A block whose prefix is not there could not be found.
        del self._blocks[: max(len(self._blocks) - self._num_blocks, 0)]
