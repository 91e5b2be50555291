"""The fingerprint: everything besides tokens and domain that shapes KV.

Two requests may share a block only if their fingerprints are equal. Each field is a
content digest or a number, never a name alone: a name can come to mean other weights.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from prefold.errors import InvalidInputError
from prefold.identity import encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What shapes KV, as one comparable value.

    All fields are required: a value that is left out is a value that is assumed.
    """

    #: The model class, which decides what the other fields mean.
    architecture: str
    #: Digest of the model's configuration.
    config: bytes
    #: Digest of the contents of the weights.
    weights: bytes
    tokenizer: bytes
    chat_template: bytes | None
    #: Digest of the adapter's weights, configuration and scale.
    adapter: bytes | None
    #: Digest of the RoPE frequencies and scaling, as numbers.
    position_config: bytes
    #: Added to every position before it is rotated or looked up.
    position_offset: int
    compute_dtype: str
    kv_dtype: str
    #: Tokens in a block.
    block_size: int
    #: Version of the order of bytes inside a block.
    layout_version: int
    #: Digest of what may move the last bit: implementations, versions, threads.
    numerics: bytes

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise InvalidInputError(f"block_size must be at least 1, got {self.block_size}")
        if self.position_offset < 0:
            raise InvalidInputError(
                f"position_offset must be at least 0, got {self.position_offset}"
            )

    def digest(self) -> bytes:
        """Return the 32 bytes that root the key chain. Takes about 0.1 ms."""
        # Names are part of it, so that a field added later can never be taken
        # for one that an older release wrote at its place.
        return encoding.digest(
            "fingerprint", *((name, self._value(name)) for name in _NAMES)
        )

    @property
    def of_model(self) -> Fingerprint:
        """The same without an adapter."""
        return self if self.adapter is None else replace(self, adapter=None)

    def diff(self, other: Fingerprint) -> tuple[str, ...]:
        """Name the fields that differ, in the order of their definition."""
        return tuple(name for name in _NAMES if self._value(name) != other._value(name))

    def _value(self, name: str) -> encoding.Field:
        value: encoding.Field = getattr(self, name)
        return value


_NAMES = tuple(field.name for field in fields(Fingerprint))
