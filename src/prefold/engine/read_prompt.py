"""Read prompts: what a prompt is to the engine once it was checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefold.blocks.table import TokenIds
from prefold.cache.contents import ContentIds
from prefold.engine.config import ModelLimits
from prefold.engine.mixed_prompt import MixedPrompt
from prefold.engine.prompt import check_ids
from prefold.engine.sequence_content import SequenceContent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadPrompt:
    """A prompt's positions.

    Attributes:
        token_ids: With the cache's own numbers where contents are.
        content: What those stand for; None if every position holds a token.
    """

    token_ids: TokenIds = field(repr=False)
    content: SequenceContent | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


def read_mixed(
    prompt: MixedPrompt, contents: ContentIds, limits: ModelLimits
) -> ReadPrompt:
    """Return a mixed prompt with the cache's numbers in it.

    Raises:
        RequestError: As ``check_ids``.
    """
    token_ids = check_ids(prompt.token_ids.copy(), limits)
    items = contents.number(token_ids, prompt.spans)
    return ReadPrompt(token_ids=token_ids, content=SequenceContent(prompt, items))
