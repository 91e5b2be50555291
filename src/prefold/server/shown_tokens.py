"""Shown tokens: the text of a token array in which contents may stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

#: What stands in a shown text for positions that hold no token.
CONTENT_SIGN = "[image]"


def show_tokens(token_ids: Sequence[int], decode: Callable[[list[int]], object]) -> str:
    """Return the text of tokens, with a sign for each run of what is none.

    Args:
        token_ids: Negative where a content is.
        decode: The tokenizer's.
    """
    return "".join(
        str(decode(list(run))) if is_token else CONTENT_SIGN
        for is_token, run in groupby(token_ids, lambda token_id: token_id >= 0)
    )
