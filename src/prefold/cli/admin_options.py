"""Options of the commands for a running server's cache: what was asked for, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

_Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Of the admin plane. [default: $PREFOLD_ADMIN_URL, the configuration's, or "
        "http://127.0.0.1:8001]",
    ),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="Holds the admin token. [default: $PREFOLD_ADMIN_TOKEN_FILE, the "
        "configuration's, or admin_token in the user's state directory]",
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The server's prefold.toml. "
        "[default: $PREFOLD_CONFIG, or prefold.toml in this directory]",
    ),
]
_PromptText = Annotated[str | None, typer.Option("--prompt", "-p", help="The prompt.")]
_PromptFile = Annotated[
    Path | None, typer.Option("--prompt-file", help="A file that holds it, as it is.")
]
_MessagesFile = Annotated[
    Path | None,
    typer.Option(
        "--messages-file",
        help="A file with a JSON list of messages, or an object with messages and tools.",
    ),
]


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
    RUNS = ("GET", "/cache/runs")
    PIN = ("POST", "/cache/pin")
    UNPIN = ("POST", "/cache/unpin")
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

    url: _Url = None
    token_file: _TokenFile = None
    config: _Config = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """Where a prompt comes from; at most one of them is given.

    Attributes:
        prompt: The text itself.
        prompt_file: Holds it, as it is.
        messages_file: Holds a JSON list of messages, or an object with them and ``tools``.
    """

    prompt: _PromptText = field(default=None, repr=False)
    prompt_file: _PromptFile = None
    messages_file: _MessagesFile = None


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
