"""Engine configuration: limits of a step and of a model, and options of one request."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from prefold.cache import KEEP, READ_WRITE, Access, ApprovalTerms, Retention
from prefold.errors import ConfigError, RequestError
from prefold.identity.domain import Domain

_MAX_TENANT_LENGTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step.

    Attributes:
        max_step_tokens: Tokens computed in one step at most. Longer prompts are computed
            in chunks.
        max_running: Sequences that hold blocks at the same time, at most. Fewer than
            ``max_step_tokens``, unless it is one, so that decoding alone can never keep
            a prompt from advancing.
        max_queued: Requests that may wait at the same time.

    Raises:
        ConfigError: A limit is below 1, or the two do not fit together.
    """

    max_step_tokens: int = 512
    max_running: int = 64
    max_queued: int = 10_000

    def __post_init__(self) -> None:
        _check_positive("max_step_tokens", self.max_step_tokens)
        _check_positive("max_running", self.max_running)
        _check_positive("max_queued", self.max_queued)
        if self.max_running > 1 and self.max_running >= self.max_step_tokens:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) must be larger than max_running "
                f"({self.max_running}), so that prompts advance while others decode"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a model can take.

    Attributes:
        vocab_size: Token ids are below it.
        max_model_len: Tokens of a prompt and its reply together.
        eos_token_ids: The model's own end tokens.
    """

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        _check_positive("vocab_size", self.vocab_size)
        if self.max_model_len < 2:
            raise ConfigError(
                f"max_model_len must be at least 2, a prompt and a reply of one token, "
                f"got {self.max_model_len}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All limits of an engine."""

    limits: ModelLimits
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)


class JointAnswer:
    """Requests whose replies are one answer, and so have to be of one model.

    Attributes:
        has_begun: Whether any of them was ever admitted.
        has_result: Whether any of them has a token of its reply, or has ended.
    """

    __slots__ = ("has_begun", "has_result")

    def __init__(self) -> None:
        self.has_begun = False
        self.has_result = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How a request is treated, apart from how its tokens are chosen.

    Attributes:
        domain: Who may share its KV.
        access: Whether it reads the cache, and whether it leaves anything behind.
        tenant: Who it counts for: tenants take turns.
        priority: When blocks run out, lower ones give way first. How dearly the KV is kept
            afterwards is another matter, and said in ``retention``.
        retention: How the KV that it uses and leaves behind is kept.
        adapter: The name of the adapter that its tokens pass; None for the model as it is.
        approval: Under which terms its prompt is to be approved for ``domain`` once it is
            computed. Such a request has no reply, and only what is approved for exactly
            this domain spares it anything.
        joint: The answer that it is a part of, together with others; None if it is all of
            it.

    Raises:
        RequestError: A value has another type, the tenant's name is empty or too long, or
            a request that approves has a salted domain or an ``access`` of its own.
    """

    domain: Domain = Domain("local")  # noqa: RUF009 -- frozen
    access: Access = READ_WRITE
    tenant: str = "default"
    priority: int = 0
    retention: Retention = KEEP
    adapter: str | None = None
    approval: ApprovalTerms | None = None
    joint: JointAnswer | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.domain, Domain):
            raise RequestError("domain must be a Domain")
        if not isinstance(self.access, Access):
            raise RequestError("access must be an Access, such as READ_WRITE or NO_CACHE")
        if not isinstance(self.retention, Retention):
            raise RequestError("retention must be a Retention, such as KEEP")
        _check_tenant(self.tenant)
        _check_priority(self.priority)
        if self.adapter is not None and not isinstance(self.adapter, str):
            raise RequestError("adapter must be the name of one that is loaded, or None")
        _check_approval(self)


_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_memory(value: object) -> int:
    """Return a memory size such as ``"4GiB"``, ``"512 MiB"`` or ``2**30`` in bytes.

    Raises:
        ConfigError: It is no size, has an unknown unit, or is below one byte.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(
            f"a memory size is a number of bytes or a text such as '4GiB', "
            f"got a {type(value).__name__}"
        )
    if isinstance(value, int):
        num_bytes = value
    else:
        found = _SIZE.fullmatch(value)
        if found is None or found[2].upper() not in _UNITS:
            raise ConfigError(
                f"{value[:40]!r} is no memory size; write a number and one of "
                "B, KiB, MiB, GiB, TiB, KB, MB, GB, TB, such as '4GiB'"
            )
        num_bytes = int(float(found[1]) * _UNITS[found[2].upper()])
    if num_bytes < 1:
        raise ConfigError(f"a memory size must be at least 1 byte, got {value!r}")
    return num_bytes


def _check_approval(options: RequestOptions) -> None:
    terms: object = options.approval
    if terms is None:
        if options.access.approves:
            raise RequestError("a request approves under terms: set approval, not access")
        return
    if not isinstance(terms, ApprovalTerms):
        raise RequestError("approval must be ApprovalTerms, or None")
    if options.domain.salt is not None:
        raise RequestError(
            f"nothing can be approved for {options.domain!r}; leave the salt out"
        )
    if options.access != READ_WRITE:
        raise RequestError("a request that approves reads and writes; leave access out")


def _check_tenant(value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TENANT_LENGTH:
        raise RequestError(f"tenant must be a name of 1 to {_MAX_TENANT_LENGTH} characters")


def _check_priority(value: object) -> None:
    # A bool is an int to Python, and never meant as one here.
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError("priority must be a whole number")


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
