"""Registry: eviction policies by name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from prefold.errors import ConfigError
from prefold.eviction.lru import Lru
from prefold.eviction.policy import EvictionPolicy

POLICIES: dict[str, Callable[[], EvictionPolicy]] = {"lru": Lru}


def make_policy(name: str) -> EvictionPolicy:
    """Return a new policy of that name.

    Raises:
        ConfigError: There is none; the message names those there are.
    """
    factory = POLICIES.get(name)
    if factory is None:
        near = get_close_matches(name, POLICIES, n=1)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f"known: {', '.join(sorted(POLICIES))}"
        )
        raise ConfigError(f"there is no eviction policy {name!r}; {hint}")
    return factory()
