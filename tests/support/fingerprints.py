"""Fingerprints for tests: one with plausible values, changed where a test says so."""

from __future__ import annotations

import dataclasses

from prefold.identity.fingerprint import Fingerprint

_PLAIN = Fingerprint(
    architecture="TinyForCausalLM",
    config=b"c",
    weights=b"w",
    tokenizer=b"t",
    chat_template=b"e",
    adapter=None,
    position_config=b"p",
    position_offset=0,
    compute_dtype="float32",
    kv_dtype="float32",
    block_size=16,
    layout_version=1,
    numerics=b"n",
)


def make_fingerprint(**changes: object) -> Fingerprint:
    values = dataclasses.asdict(_PLAIN)
    values.update(changes)
    return Fingerprint(**values)
