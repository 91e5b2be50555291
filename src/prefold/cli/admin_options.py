"""Options of the commands for a running server's cache: what was asked for, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class AdminAction(Enum):
    """What the admin plane is asked to do: a method and a path."""

    STATS = ("GET", "/cache/stats")
    TREE = ("GET", "/cache/tree")
    WHATIF = ("GET", "/cache/whatif")
    WORTH = ("GET", "/cache/worth")
    LOOKUP = ("POST", "/cache/lookup")
    WARM = ("POST", "/cache/warm")
    APPROVE = ("POST", "/cache/approve")
    APPROVALS = ("GET", "/cache/approvals")
    WITHDRAW = ("POST", "/cache/withdraw")
    INVALIDATE = ("POST", "/cache/invalidate")
    RESET = ("POST", "/cache/reset")
    MISSES = ("GET", "/cache/misses")
    EXPLAIN = ("GET", "/cache/explain/")
    REVOKE = ("DELETE", "/domains/")
    ADAPTERS = ("GET", "/adapters")
    LOAD_ADAPTER = ("POST", "/adapters")
    UNLOAD_ADAPTER = ("DELETE", "/adapters/")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPlace:
    """Where the admin plane is; None leaves it to the environment or the configuration.

    Attributes:
        url: Without a path.
        token_file: Holds what it asks for.
        config: The ``prefold.toml`` of the server.
    """

    url: str | None
    token_file: Path | None
    config: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """Where a prompt comes from; at most one of them is given.

    Attributes:
        text: The prompt itself.
        file: Holds it, as it is.
        messages: Holds a JSON list of messages, or an object with them and ``tools``.
    """

    text: str | None = field(default=None, repr=False)
    file: Path | None = None
    messages: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions:
    """What a command is to do.

    Attributes:
        action: What it asks for.
        place: Whom.
        path: What goes on behind the action's path.
        fields: Of the query or the body; those that are None are left out.
        prompt: Goes into the body; None where there is none.
        needs_prompt: Whether one must be given.
    """

    action: AdminAction
    place: AdminPlace
    as_json: bool
    path: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    prompt: PromptSource | None = None
    needs_prompt: bool = True
