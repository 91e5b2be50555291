"""Prompt encoder: text into token ids, without reading what is far too long to its end.

Tokenizing megabytes takes seconds to a minute, for a prompt that is refused anyway. So a
long text is first tried by its beginning, in growing pieces::

    |----|                          too many tokens already? refused
    |----------------|              once more, with four times as much
    |-------------------------|     all of it
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from prefold.engine.config import ModelLimits
from prefold.engine.prompt import check_text
from prefold.errors import RequestError

#: Characters of the first piece for each token that the model takes: about as many as a
#: token has, so a text that fits is seldom tried.
_FIRST = 4
_GROWTH = 4

#: Where a piece is cut, its last tokens may differ from those of the text, so it takes
#: clearly more than the model's limit to refuse by it.
_EXCESS = 2


class PromptEncoder:
    """Encodes texts for one model. May be used by several threads."""

    __slots__ = ("_limits", "_tokenizer")

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limits: ModelLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits

    def encode(self, text: str, *, has_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a text: at most four times what the model takes.

        Args:
            text: A prompt.
            has_special_tokens: Whether it brings those that the tokenizer would add.

        Raises:
            RequestError: It has clearly more than the model takes, or is not Unicode.
        """
        check_text(text)
        size = _FIRST * self._limits.max_model_len
        while size < len(text):
            begun = self._tokenizer.encode(text[:size], add_special_tokens=False)
            self._check(begun, _EXCESS)
            size *= _GROWTH
        token_ids = self._tokenizer.encode(text, add_special_tokens=not has_special_tokens)
        self._check(token_ids, _FIRST)
        return list(token_ids)

    def _check(self, token_ids: Sequence[int], excess: int) -> None:
        max_model_len = self._limits.max_model_len
        if len(token_ids) > excess * max_model_len:
            raise RequestError(
                f"the prompt has more than {excess * max_model_len} tokens, but "
                f"max_model_len is {max_model_len} tokens for prompt and reply; "
                "shorten the prompt"
            )
