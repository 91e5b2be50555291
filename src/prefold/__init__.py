"""Prefold: a prefix cache for serving large language models.

The names below are imported when they are first used, so that the cache half alone
(``from prefold.cache import PrefixCache``) needs no torch.
"""

from __future__ import annotations

import importlib

_MODULES = {
    "NO_CACHE": "prefold.cache",
    "READ_WRITE": "prefold.cache",
    "Access": "prefold.cache",
    "Approval": "prefold.cache",
    "ApprovalId": "prefold.cache",
    "ApprovalTerms": "prefold.cache",
    "ByAge": "prefold.cache",
    "ByApproved": "prefold.cache",
    "ByDomain": "prefold.cache",
    "ByField": "prefold.cache",
    "ByFingerprint": "prefold.cache",
    "ByPrefix": "prefold.cache",
    "Domain": "prefold.identity.domain",
    "Engine": "prefold.engine.engine",
    "Everything": "prefold.cache",
    "FinishReason": "prefold.engine.request",
    "ImagePrompt": "prefold.engine.prompt_mixer",
    "Lookup": "prefold.cache",
    "MissKind": "prefold.cache",
    "MissReason": "prefold.cache",
    "NewToken": "prefold.engine.outbox",
    "PrefoldError": "prefold.errors",
    "PromptEmbeds": "prefold.engine.mixed_prompt",
    "Receipt": "prefold.cache",
    "RequestId": "prefold.engine.request",
    "RequestOptions": "prefold.engine.config",
    "RequestOutput": "prefold.engine.request",
    "SamplingParams": "prefold.engine.request",
    "Timing": "prefold.engine.request",
    "Usage": "prefold.engine.request",
}

# Typed by ``__init__.pyi``; a test compares the three lists.
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = vars(importlib.import_module(module))[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
