"""Adapter shelf: the adapters that are loaded, by name.

A name is only how requests ask for one. What is computed and cached under is the version
that the name meant at a request's submission, and a request keeps that version: taking it
off the shelf, or putting another in its place, changes nothing for who has it.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from prefold.engine.adapter import Adapter, AdapterHost
from prefold.engine.adapter_loading import load_adapter
from prefold.engine.adapter_name import check_adapter_name
from prefold.engine.reply import Reply
from prefold.engine.request import RequestId
from prefold.errors import (
    ConfigError,
    InvariantError,
    NameInUseError,
    UnknownAdapterError,
)
from prefold.identity.fingerprint import Fingerprint

_log = logging.getLogger(__name__)

#: Each is asked for by name in metrics and lists.
MAX_ADAPTERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """What there is to say about a version of an adapter.

    Attributes:
        name: What requests ask for; of one that is taken off, what they asked for.
        digest: Of its content: equal for equal content, whatever its name.
        source: The directory it was loaded from.
        rank: The largest of its matrices.
        num_layers: Linear layers that it adds to.
        num_bytes: Memory of its matrices.
        is_exact: Whether its rows keep their bits in any batch.
        is_activated: Whether it acts only from certain tokens of a prompt on.
        num_open: Requests with it that have not ended.
        is_leaving: Whether it was taken off the shelf and only these still have it.
    """

    name: str
    digest: bytes
    source: str = field(repr=False)
    rank: int
    num_layers: int
    num_bytes: int
    is_exact: bool
    is_activated: bool
    num_open: int
    is_leaving: bool


class AdapterShelf:
    """Keeps adapters of one engine by name. Owned by the engine; one thread.

    Invariants:
        - every adapter under a name fits the host
        - no name is another's, and there are at most ``MAX_ADAPTERS``

    Args:
        host: What the model offers; None for a model that takes no adapters.
        replies: Of the open requests; kept up to date by whoever owns them.
    """

    __slots__ = ("_by_name", "_replies", "host")

    def __init__(
        self, host: AdapterHost | None, replies: Mapping[RequestId, Reply]
    ) -> None:
        self.host = host
        self._replies = replies
        self._by_name: dict[str, Adapter] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Those that requests can ask for, in the order of loading."""
        return tuple(self._by_name)

    def load(
        self, name: str, path: str | os.PathLike[str], *, reload: bool = False
    ) -> None:
        """Load the adapter in a directory; with ``reload``, in place of another.

        Raises:
            ConfigError: It cannot be served, or not under this name; nothing was changed.
            UnknownAdapterError: It is to replace one that is not there.
        """
        self.check_name(name, replaces=reload)
        self.put(name, load_adapter(path, self.needed_host()), replaces=reload)

    def get(self, name: str) -> Adapter:
        """Return what a name means now.

        Raises:
            UnknownAdapterError: Nothing.
        """
        found = self._by_name.get(name)
        if found is None:
            raise UnknownAdapterError(
                "no adapter of this name is loaded; load it, or name one that is"
            )
        return found

    def fingerprint_of(self, model: Fingerprint, name: str | None) -> Fingerprint:
        """Return what shapes the replies of an adapter of that name, or of none.

        Raises:
            UnknownAdapterError: There is none of that name.
        """
        return model if name is None else replace(model, adapter=self.get(name).digest)

    def check_name(self, name: str, *, replaces: bool) -> None:
        """Refuse a name before anything is loaded under it.

        Raises:
            ConfigError: It cannot be a name, or there are too many adapters.
            NameInUseError: It is another's, and is not to be replaced.
            UnknownAdapterError: It is to be replaced, and there is none.
        """
        check_adapter_name(name)
        if replaces:
            self.get(name)
        elif name in self._by_name:
            raise NameInUseError(
                f"an adapter {name!r} is loaded already; ask for a reload to replace it, "
                "or take another name"
            )
        elif len(self._by_name) >= MAX_ADAPTERS:
            raise ConfigError(
                f"{MAX_ADAPTERS} adapters are loaded, which is as many as there may be; "
                "unload one"
            )

    def needed_host(self) -> AdapterHost:
        """Return what adapters are loaded for.

        Raises:
            ConfigError: The model takes none.
        """
        if self.host is None:
            raise ConfigError("the model of this engine takes no adapters")
        return self.host

    def put(self, name: str, adapter: Adapter, *, replaces: bool) -> None:
        """Let a name mean an adapter from now on.

        Raises:
            ConfigError: As ``check_name``, or it does not fit the model that is served.
            NameInUseError: As ``check_name``.
            UnknownAdapterError: As ``check_name``.
        """
        self.check_name(name, replaces=replaces)
        misfit = adapter.misfit(self.needed_host())
        if misfit is not None:
            raise ConfigError(f"the adapter is for another model: {misfit}")
        self._by_name[name] = adapter

    def unload(self, name: str) -> Adapter:
        """Let a name mean nothing; return what it meant. Requests that have it go on.

        Raises:
            UnknownAdapterError: It means nothing already.
        """
        found = self.get(name)
        del self._by_name[name]
        return found

    def rebase(self, host: AdapterHost | None) -> None:
        """Go on beside another model, without the adapters that do not fit it."""
        self.host = host
        for name, adapter in tuple(self._by_name.items()):
            misfit = "it takes none" if host is None else adapter.misfit(host)
            if misfit is not None:
                _log.warning("adapter %s does not fit the new model: %s", name, misfit)
                del self._by_name[name]

    def infos(self) -> tuple[AdapterInfo, ...]:
        """Return all that are loaded, then those that only open requests still have."""
        num_open = Counter(self._used())
        here = dict.fromkeys(self._by_name.items())
        return tuple(
            _info(name, adapter, num_open[name, adapter], is_leaving=is_leaving)
            for is_leaving, each in ((False, here), (True, num_open.keys() - here.keys()))
            for name, adapter in each
        )

    def _used(self) -> Iterator[tuple[str, Adapter]]:
        """Yield the name and the version of each open request that has an adapter."""
        for sequence in (reply.sequence for reply in self._replies.values()):
            name, adapter = sequence.options.adapter, sequence.adapter
            if name is not None and adapter is not None:
                yield name, adapter

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if an adapter does not fit the model."""
        if len(self._by_name) > MAX_ADAPTERS:
            raise InvariantError("there are more adapters than there may be")
        for adapter in self._by_name.values():
            if self.host is None or adapter.misfit(self.host) is not None:
                raise InvariantError("an adapter does not fit the model")


def _info(name: str, adapter: Adapter, num_open: int, *, is_leaving: bool) -> AdapterInfo:
    return AdapterInfo(
        name=name,
        digest=adapter.digest,
        source=adapter.source,
        rank=adapter.rank,
        num_layers=len(adapter.layers),
        num_bytes=adapter.num_bytes,
        is_exact=adapter.is_exact,
        is_activated=adapter.invocation is not None,
        num_open=num_open,
        is_leaving=is_leaving,
    )
