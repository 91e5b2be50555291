"""Block keys: names of blocks that hold wherever a block goes.

Made in two steps, so that a prompt needs one chain whatever it may read::

    content[-1]  = digest of the fingerprint
    content[i]   = H(content[i - 1], tokens of block i)     never leaves the process
    block_key[i] = H(domain key; content[i])                what everybody else sees

A content key covers everything that determines a block's KV: the fingerprint and
all tokens up to the block's end. The second step is keyed, so the keys of two
audiences are unrelated numbers, and nobody without the domain key can test a guess.
"""

from __future__ import annotations

from typing import NewType

import numpy as np
import numpy.typing as npt

from prefold.errors import InvalidInputError
from prefold.identity.content import ContentSpan, cut_spans
from prefold.identity.encoding import Field, digest, digest_chain
from prefold.identity.fingerprint import Fingerprint

ContentKey = NewType("ContentKey", bytes)
BlockKey = NewType("BlockKey", bytes)

_TAG = "content"


def root_content(fingerprint: Fingerprint) -> ContentKey:
    """Return the content key that stands before a sequence's first block."""
    return ContentKey(fingerprint.digest())


def extend_content(
    parent: ContentKey,
    tokens: npt.NDArray[np.int64],
    block_size: int,
    spans: tuple[ContentSpan, ...] = (),
) -> list[ContentKey]:
    """Return the content keys of the whole blocks of ``tokens``, which follow ``parent``.

    A trailing partial block gets no key: more tokens will be written into it. Costs
    about 2 µs a block of 16 tokens.

    Args:
        parent: Key of the block before, or the root.
        tokens: One-dimensional int64, negative exactly where a span is.
        block_size: That of the fingerprint.
        spans: Ascending and disjoint, counted from the start of ``tokens``. Where an
            item's span is cut makes no difference.

    Raises:
        InvalidInputError: A block size below 1, tokens of another type, or negative
            tokens that are not those of the spans.
    """
    if block_size < 1:
        raise InvalidInputError(f"block_size must be at least 1, got {block_size}")
    _check_spans(tokens, spans)
    keys: list[bytes] = []
    last = bytes(parent)
    done = 0
    for block in _blocks_with_content(spans, block_size, len(tokens) // block_size):
        keys += digest_chain(_TAG, last, tokens[done : block * block_size], block_size)
        last = keys[-1] if keys else last
        done = (block + 1) * block_size
        own_spans = cut_spans(spans, block * block_size, done)
        last = digest(
            _TAG, last, *_content_fields(tokens[done - block_size : done], own_spans)
        )
        keys.append(last)
    keys += digest_chain(_TAG, last, tokens[done:], block_size)
    return [ContentKey(key) for key in keys]


def block_key(domain_key: bytes, content: ContentKey) -> BlockKey:
    """Return the key under which one audience knows a block.

    Args:
        domain_key: From ``MasterSecret.domain_key``, 32 bytes.
        content: From ``extend_content``.
    """
    return BlockKey(digest("block", content, key=domain_key))


def _check_spans(tokens: npt.NDArray[np.int64], spans: tuple[ContentSpan, ...]) -> None:
    # Negative numbers mean something only in this process. One that reached a
    # key as a number would name other content in the next process.
    covered = np.zeros(len(tokens), dtype=np.bool_)
    end = 0
    for span in spans:
        if span.start < end or span.end > len(tokens):
            raise InvalidInputError(
                f"the span from {span.start} to {span.end} overlaps the one before or "
                f"exceeds the {len(tokens)} tokens"
            )
        end = span.end
        covered[span.start : end] = True
    if not np.array_equal(tokens < 0, covered):
        raise InvalidInputError("tokens must be negative exactly where a content span is")


def _blocks_with_content(
    spans: tuple[ContentSpan, ...], block_size: int, num_blocks: int
) -> list[int]:
    blocks: set[int] = set()
    for span in spans:
        blocks.update(range(span.start // block_size, (span.end - 1) // block_size + 1))
    return sorted(block for block in blocks if block < num_blocks)


def _content_fields(
    tokens: npt.NDArray[np.int64], spans: tuple[ContentSpan, ...]
) -> tuple[Field, Field]:
    # Position by position, so that it makes no difference where an item was cut.
    items = tuple(
        (position, span.digest, span.offset + position - span.start)
        for span in spans
        for position in range(span.start, span.end)
    )
    return np.maximum(tokens, 0), items
