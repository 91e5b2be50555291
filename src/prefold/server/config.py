"""Server configuration: what one ``prefold.toml`` says, a value for each section.

The classes check what they hold, whoever makes them; reading the file is another
module's work. They are free of torch, so that ``prefold keys`` starts at once.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from prefold.engine.adapter_name import check_adapter_name
from prefold.engine.config import SchedulerConfig, parse_memory
from prefold.errors import ConfigError, InvalidInputError
from prefold.eviction.quota import MAX_FIXED, QuotaSettings, Share
from prefold.eviction.registry import DEFAULT_POLICY, check_policy
from prefold.identity.domain import PUBLIC, Domain
from prefold.server.config_checks import (
    check_flag,
    check_seconds,
    check_share,
    check_ttl,
    check_whole,
    is_number,
    show,
)
from prefold.server.images_config import ImagesConfig

#: Of a JSON body, at most; Python's own reader gives up somewhere above.
MAX_DEPTH_LIMIT = 200
#: Choices of one request, at most.
MAX_N_LIMIT = 128

_MAX_QUEUED = 1024
_MAX_PORT = 65_535
_MAX_COUNT = 10**12
_TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Section ``[model]``: which model, and how it computes.

    Attributes:
        source: A directory or a hub id; None for the demo model.
        served_name: The name that clients ask for; None for the source's own.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        max_model_len: Tokens of prompt and reply; None for what the model allows.
        num_threads: Threads of torch; None leaves them.
        device: Such as ``"cpu"`` or ``"cuda"``.
        position_offset: Added to every position.
        rehash: Read the weights again instead of trusting a remembered digest.
    """

    source: str | None = None
    served_name: str | None = None
    dtype: str = "float32"
    max_model_len: int | None = None
    num_threads: int | None = None
    device: str = "cpu"
    position_offset: int = 0
    rehash: bool = False

    def __post_init__(self) -> None:
        for name, text in (("source", self.source), ("served_name", self.served_name)):
            if text is not None and not text.strip():
                raise ConfigError(f"{name} must not be empty; leave it out for the default")
        if self.max_model_len is not None:
            check_whole("max_model_len", self.max_model_len, 2, _MAX_COUNT)
        if self.num_threads is not None:
            check_whole("num_threads", self.num_threads, 1, 4096)
        check_whole("position_offset", self.position_offset, 0, _MAX_COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Section ``[cache]``: how much KV is kept, and in what pieces.

    Attributes:
        memory: Of all blocks, such as ``"4GiB"`` or a number of bytes; None takes a
            share of the free memory.
        blocks: The same as a number of blocks; only one of the two may be given.
        block_size: Token positions in a block.
        kv_dtype: Of the cached KV; None for the model's.
        policy: Name of the eviction policy: what goes first when blocks run out.
        ttl_s: Seconds after its last use in which an entry may be reused, where neither
            request nor tenant says; None for as long as there is room.
        max_pinned: Of all blocks, what pinned approvals may take, as far as tenants have
            not reserved it.
        ranks_across: Whether the cache priority of a request counts against other
            tenants' entries, too.
    """

    memory: str | int | None = None
    blocks: int | None = None
    block_size: int = 16
    kv_dtype: str | None = None
    policy: str = DEFAULT_POLICY
    ttl_s: float | None = None
    max_pinned: float = MAX_FIXED
    ranks_across: bool = False

    def __post_init__(self) -> None:
        if self.memory is not None and self.blocks is not None:
            raise ConfigError("give memory or blocks, not both")
        if self.memory is not None:
            parse_memory(self.memory)
        if self.blocks is not None:
            check_whole("blocks", self.blocks, 1, _MAX_COUNT)
        check_whole("block_size", self.block_size, 1, 2**20)
        check_policy(self.policy)
        check_ttl(self.ttl_s)
        check_share("max_pinned", self.max_pinned, most=MAX_FIXED)
        check_flag("ranks_across", self.ranks_across)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Section ``[server]``: the two planes and what they accept.

    Attributes:
        host: Address of the public plane. Without tenants it must be this machine's own.
        port: Of the public plane; 0 takes any that is free.
        admin_host: Address of the admin plane.
        admin_port: Of the admin plane; 0 takes any that is free.
        admin_token_file: What the admin plane asks for; None for the file in the user's
            state directory. It is made if it is missing.
        key_file: The tenants' API keys, as hashes; None for the file in the user's state
            directory.
        max_body_bytes: A body of so many bytes, or more, is refused.
        max_depth: Levels of nesting in a JSON body, at most.
        max_n: Choices of one request, at most.
        drain_s: At the end, seconds that open requests are given to finish.
        allow_prompt_text: Whether the admin plane may show text of prompts.
        request_timeout_s: Seconds after which a request is aborted; None for never.
        max_queued: Requests that may wait at the same time; more get a 503.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8001
    admin_token_file: Path | None = None
    key_file: Path | None = None
    max_body_bytes: int = 10_000_000
    max_depth: int = 64
    max_n: int = 8
    drain_s: float = 30.0
    allow_prompt_text: bool = False
    request_timeout_s: float | None = None
    max_queued: int = _MAX_QUEUED

    def __post_init__(self) -> None:
        for name, host in (("host", self.host), ("admin_host", self.admin_host)):
            if not host.strip():
                raise ConfigError(f"{name} must be an address such as '127.0.0.1'")
        check_whole("port", self.port, 0, _MAX_PORT)
        check_whole("admin_port", self.admin_port, 0, _MAX_PORT)
        if self.port == self.admin_port != 0:
            raise ConfigError(
                f"port and admin_port are both {self.port}; the two planes need two ports"
            )
        check_whole("max_body_bytes", self.max_body_bytes, 1, _MAX_COUNT)
        check_whole("max_depth", self.max_depth, 1, MAX_DEPTH_LIMIT)
        check_whole("max_n", self.max_n, 1, MAX_N_LIMIT)
        check_seconds("drain_s", self.drain_s, least=0.0)
        if self.request_timeout_s is not None:
            check_seconds("request_timeout_s", self.request_timeout_s, least=0.001)
        check_whole("max_queued", self.max_queued, 1, _MAX_COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """One ``[[tenants]]``: who is served, and how much of the server it may take.

    Attributes:
        name: Stands in keys, metrics and logs.
        domain: Path of the domain its requests read and write; the name if left out.
        max_concurrent: Replies that may be made for it at the same time: each prompt of
            a call and each of its choices is one.
        tokens_per_minute: Prompt and reply tokens, on average; None for any number.
        queue_share: Of the server's ``max_queued``, what its waiting requests may take;
            1 for all of it.
        may_read: Whether its requests may reuse what is cached.
        may_write: Whether they may leave anything behind.
        approved: Paths of the domains whose approved prefixes they may read, each the
            tenant's own, above it or below; None for all that they could.
        cache_reserved: Of all blocks, what it keeps of idle ones whatever others need.
        cache_max: Of all blocks, what it may have of idle ones; more goes at once.
        ttl_s: Seconds after their last use in which its entries may be reused, unless a
            request says less; None leaves it to the request, and then to the section
            ``[cache]``.
        adapters: Names of the adapters that its requests may ask for; None for all.
    """

    name: str
    domain: str = ""
    max_concurrent: int = 64
    tokens_per_minute: int | None = None
    queue_share: float = 1.0
    may_read: bool = True
    may_write: bool = True
    approved: tuple[str, ...] | None = None
    cache_reserved: float = 0.0
    cache_max: float = 1.0
    ttl_s: float | None = None
    adapters: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_tenant_name(self.name)
        if not self.domain:
            # Set once, here: every reader may rely on a path.
            object.__setattr__(self, "domain", self.name)
        try:
            self._check()
        except InvalidInputError as exc:
            raise ConfigError(f"tenant {self.name!r}: {exc}") from exc

    def _check(self) -> None:
        if Domain(self.domain) == PUBLIC:
            raise ConfigError(
                f"the domain {PUBLIC.path!r} is everybody's and nobody's own; give another"
            )
        check_whole("max_concurrent", self.max_concurrent, 1, _MAX_COUNT)
        if self.tokens_per_minute is not None:
            check_whole("tokens_per_minute", self.tokens_per_minute, 1, _MAX_COUNT)
        for name, flag in (("may_read", self.may_read), ("may_write", self.may_write)):
            check_flag(name, flag)
        share = self.queue_share
        if not is_number(share) or not 0 < share <= 1:
            raise ConfigError(f"queue_share must be above 0 and at most 1, got {share!r}")
        for path in self.approved or ():
            self._check_approved(path)
        for name in self.adapters or ():
            check_adapter_name(name)
        check_share("cache_reserved", self.cache_reserved)
        check_share("cache_max", self.cache_max)
        if self.cache_reserved > self.cache_max:
            raise ConfigError(
                f"cache_reserved, {self.cache_reserved:g}, is above cache_max, "
                f"{self.cache_max:g}; lower the one or raise the other"
            )
        check_ttl(self.ttl_s)

    def _check_approved(self, path: str) -> None:
        # A name that means nothing here was meant to be another one.
        own, asked = Domain(self.domain), Domain(path)
        if not own.is_within(asked) and not asked.is_within(own):
            above = (PUBLIC, *own.ancestors(), own)
            raise ConfigError(
                f"approved names {path!r}, whose approved prefixes no request of "
                f"{own.path!r} can read; {nearest(path, [each.path for each in above])}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefoldConfig:
    """All of one ``prefold.toml``.

    Attributes:
        engine: Limits of a step. Its ``max_queued`` is the server's, which is the only
            place to set it.
        adapters: Directories of the adapters to begin with, by name.
        tenants: Empty means that there is one, which needs no key and reaches the server
            only from the same machine.

    Raises:
        ConfigError: Two tenants have a name or a domain in common, or reserve too much of
            the cache together, or there are none and the public plane could be reached
            from another machine.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    engine: SchedulerConfig = field(
        default_factory=lambda: SchedulerConfig(max_queued=_MAX_QUEUED)
    )
    server: ServerConfig = field(default_factory=ServerConfig)
    adapters: Mapping[str, Path] = field(default_factory=dict)
    images: ImagesConfig = field(default_factory=ImagesConfig)
    tenants: tuple[TenantConfig, ...] = ()

    def __post_init__(self) -> None:
        for name in self.adapters:
            check_adapter_name(name)
        names: set[str] = set()
        owners: dict[str, str] = {}
        for tenant in self.tenants:
            if tenant.name in names:
                raise ConfigError(
                    f"there are two tenants named {tenant.name!r}; rename one"
                )
            if tenant.domain in owners:
                raise ConfigError(
                    f"tenants {owners[tenant.domain]!r} and {tenant.name!r} both have the "
                    f"domain {tenant.domain!r}; they would share what only one may read"
                )
            names.add(tenant.name)
            owners[tenant.domain] = tenant.name
        if not self.tenants and not is_loopback(self.server.host):
            raise ConfigError(
                f"without [[tenants]] nobody needs a key, so host must be 127.0.0.1, "
                f"got {self.server.host!r}; configure tenants to be reached from elsewhere"
            )
        try:
            self.quotas()
        except ConfigError as exc:
            raise ConfigError(f"the tenants' cache_reserved do not fit: {exc}") from exc

    def quotas(self) -> QuotaSettings:
        """Return what is whose of the blocks.

        Every tenant has a share, if only one that reserves nothing and allows all of it:
        the priority of a request ranks inside its own share alone.
        """
        return QuotaSettings(
            shares=tuple(
                Share(
                    domain=Domain(tenant.domain),
                    reserved=tenant.cache_reserved,
                    maximum=tenant.cache_max,
                )
                for tenant in self.tenants
            ),
            max_pinned=self.cache.max_pinned,
            ranks_across=self.cache.ranks_across,
        )


def tenant_by_domain(tenants: Iterable[TenantConfig]) -> Mapping[str, str]:
    """Return the tenants' names by the paths of their domains."""
    return {tenant.domain: tenant.name for tenant in tenants}


def check_tenant_name(name: object) -> None:
    """Raise ``ConfigError`` if no tenant can have that name."""
    if not isinstance(name, str) or not _TENANT_NAME.fullmatch(name):
        raise ConfigError(
            "a tenant's name is 1 to 64 letters, digits, '.', '_' and '-', beginning with "
            f"a letter or digit, got {show(name)}"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return how a message about an unknown ``name`` ends: with what may be meant."""
    names = list(known)
    close = get_close_matches(name[:40].lower(), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(names)}"


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on is reached from the same machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may come to mean anything
        return False


#: Who everybody is where no tenants are configured; there is nobody to protect from it.
LOCAL_TENANT = TenantConfig(name="default", domain="local", max_concurrent=_MAX_COUNT)
