"""Prompts for an engine and a replay alike: whole blocks, the last of them its own.

A replay knows nothing of what an engine does besides: copies out of blocks that agree in
part, and partial last blocks. So no two blocks begin alike, and each prompt ends with one
that no other has.
"""

from __future__ import annotations

from hypothesis import strategies as st

from prefold.engine.engine import Engine
from prefold.engine.request import SamplingParams

BLOCK_SIZE = 16
#: Block ids below it are common ones, above it a prompt's own.
OWN = 100


def tokens_of(block_id: int) -> list[int]:
    """Return the block's tokens; no two blocks begin with the same four."""
    first = [block_id] if block_id < OWN else [10 + block_id % 50, (block_id - OWN) // 50]
    return first + [(7 * block_id + place) % 60 for place in range(BLOCK_SIZE - len(first))]


def hits_of(engine: Engine, prompts: list[list[int]]) -> list[int]:
    """Return the hit tokens of each prompt, served one after another."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    hits = []
    for prompt in prompts:
        token_ids = [token for block_id in prompt for token in tokens_of(block_id)]
        [output] = engine.generate([token_ids], params)
        hits.append(output.usage.cached_tokens)
    return hits


@st.composite
def own_ended(draw: st.DrawFn) -> list[list[int]]:
    prompts: list[list[int]] = []
    for number in range(draw(st.integers(2, 12))):
        earlier: list[int] = []
        if number > 0 and draw(st.booleans()):
            earlier = draw(st.sampled_from(prompts))
        middle = draw(st.lists(st.integers(0, 3), max_size=4))
        prompts.append([*earlier[:6], *middle, OWN + number])
    return prompts
