"""Registry: eviction policies by name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from prefold.errors import ConfigError
from prefold.eviction.cost import PrefillCost
from prefold.eviction.lfu import Lfu
from prefold.eviction.lru import Lru
from prefold.eviction.policy import EvictionPolicy
from prefold.eviction.value import Value

POLICIES: dict[str, Callable[[PrefillCost, int], EvictionPolicy]] = {
    "lru": lambda _cost, _num_blocks: Lru(),
    "value": Value,
    "lfu": lambda _cost, _num_blocks: Lfu(),
}


#: What a cache evicts by if nobody says.
DEFAULT_POLICY = "value"


def check_policy(name: str) -> None:
    """Refuse a name that no policy has.

    Raises:
        ConfigError: The message names the nearest, or those there are.
    """
    if name in POLICIES:
        return
    near = get_close_matches(str(name), POLICIES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(POLICIES))}"
    raise ConfigError(f"there is no eviction policy {name!r}; {hint}")


def make_policy(name: str, cost: PrefillCost, num_blocks: int) -> EvictionPolicy:
    """Return a new policy of that name.

    Args:
        name: One of ``POLICIES``.
        cost: What prefill takes, as it is learned.
        num_blocks: Of the pool.

    Raises:
        ConfigError: As ``check_policy``.
    """
    check_policy(name)
    return POLICIES[name](cost, num_blocks)
