"""The served model: what clients call it, and what the server needs of it."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from prefold.engine.config import ModelLimits
from prefold.identity.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The one model of a server.

    Attributes:
        name: What requests name it by.
        created: When it was loaded, in seconds since 1970.
    """

    name: str
    created: int
    tokenizer: PreTrainedTokenizerBase
    limits: ModelLimits
    fingerprint: Fingerprint

    @property
    def system_fingerprint(self) -> str:
        """A short name for everything that shapes its replies."""
        return f"fp_{self.fingerprint.digest().hex()[:12]}"
