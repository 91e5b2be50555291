"""Activation: adapters that act only from certain tokens of a prompt on.

::

    prompt     [ system prompt, conversation | invocation | rest     | reply        ]
    computed   [ by the model alone          | with the adapter                     ]
    cached     [ shared with all the model's | for this adapter, from this place on ]

Attention is causal, so such an adapter cannot change the KV of what is before: that is the
model's own. What follows depends on where the adapter set in, which tokens do not tell: a
longer prompt may call it again. So from there on the cache gets, in place of tokens,
numbers that only this adapter has for them, and keys the adapter's whole digest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prefold.blocks.table import TokenIds
from prefold.cache.contents import ContentIds, ContentItem
from prefold.engine.adapter import Adapter
from prefold.identity.fingerprint import Fingerprint

#: Token ids are below it, whatever the vocabulary.
_MAX_TOKENS = 2**32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FiledPrompt:
    """What a prompt is computed with, and what it is filed under.

    Attributes:
        fingerprint: Of the model, with the adapter if that acts on all of the prompt.
        tokens: What the cache compares.
        adapter: What its tokens pass; None for the model as it is.
        adapted_from: The first position that does.
        item: What stands for tokens from there on; None where tokens do.
    """

    fingerprint: Fingerprint
    tokens: TokenIds = field(repr=False)
    adapter: Adapter | None = None
    adapted_from: int = 0
    item: ContentItem | None = None


def file_prompt(
    tokens: TokenIds, adapter: Adapter, fingerprint: Fingerprint, contents: ContentIds
) -> FiledPrompt:
    """Return what a prompt with an adapter is filed under.

    Args:
        tokens: Of the prompt.
        adapter: Where it is not called in the prompt, nothing is computed with it.
        fingerprint: Of the model with the adapter.
        contents: Of the cache.
    """
    if adapter.invocation is None:
        return FiledPrompt(fingerprint=fingerprint, tokens=tokens, adapter=adapter)
    start = find_activation(tokens, adapter.invocation)
    if start is None:
        return FiledPrompt(fingerprint=fingerprint.of_model, tokens=tokens)
    item = contents.item(adapter.digest, _MAX_TOKENS)
    return FiledPrompt(
        fingerprint=fingerprint.of_model,
        tokens=number_tokens(tokens, start, item),
        adapter=adapter,
        adapted_from=start,
        item=item,
    )


def find_activation(tokens: TokenIds, invocation: tuple[int, ...]) -> int | None:
    """Return where the last occurrence of an invocation begins; None if there is none."""
    places = np.arange(max(0, len(tokens) - len(invocation) + 1))
    for offset, token in enumerate(invocation):
        places = places[tokens[places + offset] == token]
    return int(places[-1]) if len(places) else None


def number_tokens(tokens: TokenIds, start: int, item: ContentItem) -> TokenIds:
    """Return tokens with an adapter's own numbers from ``start`` on."""
    numbered = tokens.copy()
    numbered[start:] = item.first - tokens[start:]
    return numbered
