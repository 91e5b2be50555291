"""Stand-in: the conditions under which benchmarks without a model cache their tokens."""

from __future__ import annotations

from prefold.identity.fingerprint import Fingerprint


def stand_in_fingerprint(block_size: int) -> Fingerprint:
    """Return the fingerprint of no model, for blocks of that size."""
    return Fingerprint(
        architecture="stand-in",
        config=b"",
        weights=b"",
        tokenizer=b"",
        chat_template=None,
        adapter=None,
        position_config=b"",
        position_offset=0,
        compute_dtype="float32",
        kv_dtype="float32",
        block_size=block_size,
        layout_version=1,
        numerics=b"",
    )
