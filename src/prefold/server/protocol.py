"""The protocol: what requests and answers of all routes have in common.

Types are strict: a number as text, or ``true`` for a number, is refused. So is a field
that nobody knows, since it may have been meant to change the reply. A field of OpenAI's
that is known here and cannot be honoured takes null only, and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, LiteralString

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from prefold.errors import InvalidInputError
from prefold.identity.domain import MAX_PATH_LENGTH, Domain
from prefold.server.config_checks import MAX_TTL_S
from prefold.tree.retention import MAX_PRIORITY

_MAX_SALT_BYTES = 256
_SEED_LIMIT = 2**63

#: The document's numbers are floats, which round the limit up.
_DOCUMENTED_SEEDS: dict[str, JsonValue] = {"minimum": -(2**53), "maximum": 2**53}


def explained(sentence: LiteralString) -> WrapValidator:
    """Return what replaces every complaint about a field by one about its use.

    ``sentence`` goes on after the field's name: "must be ...", "is not supported ...".
    """

    def check(value: Any, check_inner: Callable[[Any], Any]) -> Any:
        try:
            return check_inner(value)
        except ValidationError as error:
            raise PydanticCustomError("explained", sentence) from error

    return WrapValidator(check)


#: Fields of one object, at most: each unknown one is a complaint to be made.
_MAX_FIELDS = 64


class StrictModel(BaseModel):
    """A part of a request. No complaint repeats what was sent."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    def __repr_args__(self) -> list[tuple[str, object]]:
        """Leave all fields out of ``repr`` and ``str``: they are what was sent."""
        return []

    @model_validator(mode="before")
    @classmethod
    def _check_width(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MAX_FIELDS:
            raise PydanticCustomError("explained", "has more than 64 fields")
        return value


class ReplyModel(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _check_salt(value: Any, check_inner: Callable[[Any], Any]) -> Any:
    sentence: LiteralString = "must be a text of 1 to 256 bytes of UTF-8"
    try:
        salt = check_inner(value)
    except ValidationError as error:
        raise PydanticCustomError("explained", sentence) from error
    if isinstance(salt, str) and len(salt.encode()) > _MAX_SALT_BYTES:
        raise PydanticCustomError("explained", sentence)
    return salt


def _check_path(path: str) -> str:
    try:
        Domain(path)
    except InvalidInputError as error:
        raise PydanticCustomError("explained", _NO_PATH) from error
    return path


_NO_PATH: LiteralString = (
    "must be a path of a-z, 0-9, '.', '_' and '-', its parts joined by '/'"
)

#: Said of a list of them, which is worth one complaint.
_NO_PATHS: LiteralString = "must be a list of at most 64 paths of domains"

_Path = Annotated[
    str,
    # All but that no part consists of dots alone, which takes looking ahead.
    Field(max_length=MAX_PATH_LENGTH, pattern=r"^[a-z0-9._-]+(/[a-z0-9._-]+)*$"),
    AfterValidator(_check_path),
]

DomainPath = Annotated[_Path, explained(_NO_PATH)]


TtlSeconds = Annotated[float, Field(gt=0, le=MAX_TTL_S)]
CachePriority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class CacheFields(StrictModel):
    """What a request may do with cached KV: at most what its tenant may."""

    read: bool = True
    """Whether it may reuse what is cached."""
    write: bool = True
    """Whether it may leave anything behind."""
    domain: Annotated[_Path | None, explained(_NO_PATH)] = None
    """Whose cached KV: the tenant's own domain or one below it, as a whole path."""
    approved: Annotated[
        Annotated[list[_Path], Field(max_length=64)] | None, explained(_NO_PATHS)
    ] = None
    """Whose approved prefixes it may read, of those it could; all if left out."""
    ttl_s: TtlSeconds | None = None
    """Seconds after its last use in which what it uses and leaves behind may be reused, at
    most the tenant's; the tenant's if left out."""
    priority: CachePriority = 0
    """Of two idle entries of its tenant, the lower one goes first."""
    ends_conversation: bool = False
    """Whether nothing is expected to follow: what only it uses goes before all else."""


class StreamOptions(StrictModel):
    """How a streamed reply is told."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[
        Literal[False] | None, explained("must be false: replies are not padded")
    ] = None


class GenerationRequest(StrictModel):
    """The fields that both completion routes have."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    """Replies to each prompt."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """1 if left out; 0 takes the most likely token each time."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Keep this many of the most likely tokens; 0 keeps all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    frequency_penalty: Annotated[
        Annotated[float, Field(ge=0, le=0)] | None,
        explained("is not supported; leave it out, or use repetition_penalty"),
    ] = None
    presence_penalty: Annotated[
        Annotated[float, Field(ge=0, le=0)] | None,
        explained("is not supported; leave it out, or use repetition_penalty"),
    ] = None
    logit_bias: Annotated[
        Annotated[
            dict[
                Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")],
                Annotated[float, Field(ge=-100, le=100)],
            ],
            Field(max_length=1024),
        ]
        | None,
        explained(
            "must be an object of at most 1024 token ids, as texts of digits, with numbers "
            "from -100 to 100"
        ),
    ] = None
    seed: (
        Annotated[
            int,
            Field(ge=-_SEED_LIMIT, lt=_SEED_LIMIT, json_schema_extra=_DOCUMENTED_SEEDS),
        ]
        | None
    ) = None

    stop: Annotated[
        Annotated[str, Field(min_length=1, max_length=1024)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(max_length=16)
        ]
        | None,
        explained("must be a text of 1 to 1024 characters, or a list of at most 16 such"),
    ] = None
    stop_token_ids: Annotated[
        Annotated[
            list[Annotated[int, Field(ge=0, lt=2**31)]],
            Field(max_length=1024, fail_fast=True),
        ]
        | None,
        explained("must be a list of at most 1024 token ids"),
    ] = None
    ignore_eos: bool | None = None

    cache_salt: Annotated[
        Annotated[str, Field(min_length=1, max_length=_MAX_SALT_BYTES)] | None,
        WrapValidator(_check_salt),
    ] = None
    """Cached KV is shared only with requests of the same tenant and salt."""
    cache: CacheFields | None = None

    user: str | None = None
    """Accepted and not used."""
    safety_identifier: str | None = None
    """Accepted and not used."""
    metadata: Annotated[
        Annotated[dict[str, str], Field(max_length=16)] | None,
        explained("must be an object of at most 16 fields whose values are texts"),
    ] = None
    """Accepted and not used."""
    prompt_cache_key: str | None = None
    """A hint which requests belong together. Equal prefixes are found without it."""
    prompt_cache_retention: Annotated[
        Literal["in_memory", "in-memory", "24h"] | None,
        explained("must be 'in_memory' or '24h'; cache.ttl_s takes any time"),
    ] = None
    """'24h' is ``cache.ttl_s`` of a day; 'in_memory' says nothing about time."""
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority"] | None,
        explained("must be 'auto', 'default', 'flex', 'scale' or 'priority'"),
    ] = None
    """Accepted and not used: requests are served in a fair order."""


class PromptTokensDetails(ReplyModel):
    """Parts of the prompt's tokens."""

    cached_tokens: int


class UsageReply(ReplyModel):
    """Tokens of a request. Each prompt counts once, however many replies it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ErrorFields(ReplyModel):
    """What went wrong, and what to change."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(ReplyModel):
    """An answer that is no success."""

    error: ErrorFields


#: How errors are documented for every route; the keys are FastAPI's.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": ErrorReply,
        "description": "The request cannot be served; the message says what to change.",
    },
    503: {
        "model": ErrorReply,
        "description": "There is no room now; the same request may work later.",
        "headers": {
            "Retry-After": {
                "description": "Seconds after which to try again.",
                "schema": {"type": "integer", "minimum": 1},
                "required": True,
            }
        },
    },
}
