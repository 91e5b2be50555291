"""Prompts: text or token ids in, checked token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from prefold.blocks.table import TOKEN_DTYPE, TokenIds
from prefold.engine.config import ModelLimits
from prefold.engine.mixed_prompt import MixedPrompt, PromptEmbeds
from prefold.engine.prompt_mixer import ImagePrompt
from prefold.errors import RequestError

#: Text, or token ids.
PlainPrompt = str | Sequence[int] | npt.NDArray[np.integer]

#: The same, or with images or embeddings.
Prompt = PlainPrompt | ImagePrompt | PromptEmbeds | MixedPrompt


class TextEncoder(Protocol):
    """The part of a tokenizer that prompts need."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, special ones included."""
        ...


#: What the code of a template can raise, apart from what templates raise on purpose.
TEMPLATE_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def encode_prompt(
    prompt: PlainPrompt, encoder: TextEncoder | None, limits: ModelLimits
) -> TokenIds:
    """Return a new array with a prompt's token ids.

    Raises:
        RequestError: It is empty, longer than the model's context leaves room for, has
            ids outside the vocabulary, or is text where there is no tokenizer.
    """
    if isinstance(prompt, str):
        if encoder is None:
            raise RequestError("without a tokenizer, prompts are lists of token ids")
        check_text(prompt)
        token_ids = np.array(encoder.encode(prompt), dtype=TOKEN_DTYPE)
    else:
        token_ids = _from_ids(prompt)
    return check_ids(token_ids, limits)


def check_ids(token_ids: TokenIds, limits: ModelLimits) -> TokenIds:
    """Return token ids that can be served.

    Raises:
        RequestError: As ``encode_prompt``.
    """
    if len(token_ids) == 0:
        raise RequestError("the prompt is empty; it needs at least one token")
    # A reply has at least one token.
    if len(token_ids) >= limits.max_model_len:
        raise RequestError(
            f"the prompt has {len(token_ids)} tokens, but max_model_len is "
            f"{limits.max_model_len} tokens for prompt and reply; shorten the prompt, or "
            "raise max_model_len if the model allows it"
        )
    is_outside = (token_ids < 0) | (token_ids >= limits.vocab_size)
    if is_outside.any():
        # The position, not the id: token ids do not enter messages.
        raise RequestError(
            f"the token id at position {int(is_outside.argmax())} of the prompt is outside "
            f"the vocabulary of {limits.vocab_size}"
        )
    return token_ids


def check_text(text: str) -> None:
    """Refuse a text that is not Unicode, such as one made of bytes that are not UTF-8.

    Raises:
        RequestError: It cannot be encoded.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"character {error.start} of the prompt is not valid Unicode; send UTF-8"
        ) from None


def _from_ids(prompt: Sequence[int] | npt.NDArray[np.integer]) -> TokenIds:
    try:
        array = np.asarray(prompt)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError("a prompt is a text or a flat list of token ids") from error
    if array.ndim != 1:
        raise RequestError(
            f"a prompt is a text or a flat list of token ids, got {array.ndim} dimensions"
        )
    if len(array) and not np.issubdtype(array.dtype, np.integer):
        raise RequestError(
            f"token ids are whole numbers of 64 bits at most, got {array.dtype}"
        )
    if array.dtype == np.uint64 and len(array) and array.max() > np.iinfo(np.int64).max:
        raise RequestError("token ids are whole numbers of 64 bits at most")
    return array.astype(TOKEN_DTYPE)
