"""Protocol of prompts: one text, one list of token ids, or several such.

What a list is, its first item says, and the first wrong one refuses it: a body with a
million wrong items is not worth a million complaints.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from prefold.server.protocol import explained

#: Prompts in one request, at most.
MAX_PROMPTS = 256


def _kind_of(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    return "tokens" if value and isinstance(value[0], int) else "prompts"


def _kind_of_one(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "tokens" if isinstance(value, list) else None


_Text = Annotated[str, Tag("text")]
_SomeTokens = Annotated[list[int], Field(min_length=1, fail_fast=True), Tag("tokens")]
_AnyTokens = Annotated[list[int], Field(fail_fast=True), Tag("tokens")]
_One = Annotated[_Text | _AnyTokens, Discriminator(_kind_of_one)]
_Several = Annotated[
    list[_One],
    Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
    Tag("prompts"),
]

Prompts = Annotated[
    Annotated[_Text | _SomeTokens | _Several, Discriminator(_kind_of)],
    explained("must be a text, a list of token ids, or a list of 1 to 256 such prompts"),
]


Prompt = Annotated[
    Annotated[_Text | _SomeTokens, Discriminator(_kind_of_one)],
    explained("must be a text or a list of token ids"),
]


def split_prompts(prompt: str | list[int] | list[str | list[int]]) -> list[str | list[int]]:
    """Return the prompts of a field that may hold one or several. O(prompts)."""
    if isinstance(prompt, str):
        return [prompt]
    token_ids = [item for item in prompt if isinstance(item, int)]
    if token_ids:
        return [token_ids]
    return [item for item in prompt if not isinstance(item, int)]
