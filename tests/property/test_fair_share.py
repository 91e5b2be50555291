"""Who keeps what over minutes of made-up traffic."""

from random import Random

import pytest

from prefold.cache import QuotaSettings, Share
from prefold.eviction.registry import POLICIES
from prefold.identity.domain import Domain
from support.logical_world import SIZE, World


def test_the_prefix_used_often_has_the_room_of_the_one_used_seldom() -> None:
    """2,048 tokens that take 80 ms and hold 512 MiB, among chat.

    Used once a minute they save 1.33 ms a second, used twenty times a second 1,600 ms.
    """
    hits = worked_example(num_blocks=128 + 700)
    assert hits["often"] > 0.99
    assert hits["seldom"] < 0.1


def test_where_there_is_room_for_all_the_seldom_one_stays() -> None:
    hits = worked_example(num_blocks=128 * 2 + 20_000)
    assert hits["often"] > 0.99
    assert hits["seldom"] > 0.99


def worked_example(num_blocks: int) -> dict[str, float]:
    """Return the share of each prefix that was there when asked for, in the second half."""
    world = World(num_blocks, "value")
    dice = Random(3)  # noqa: S311 -- a test's dice
    often, seldom = world.new(128), world.new(128)
    hits: dict[str, list[int]] = {"often": [], "seldom": []}
    due: list[tuple[float, list[int]]] = []
    for step in range(4 * 60 * 20):
        now = world.clock.now = step / 20
        is_measured = now > 100
        found = world.serve([*often, *world.new(1)])
        hits["often"] += [found] if is_measured else []
        if step % 1200 == 600:
            found = world.serve([*seldom, *world.new(1)])
            hits["seldom"] += [found] if is_measured else []
        # Chat: two new conversations a second, continued four times in five, after 8 s.
        while due and due[0][0] <= now:
            goes_on_with = due.pop(0)[1]
            world.serve(goes_on_with)
            if dice.random() < 0.8:
                due.append((now + 8.0, [*goes_on_with, *world.new(6)]))
        if step % 10 == 0:
            prompt = world.new(12)
            world.serve(prompt)
            if dice.random() < 0.8:
                due.append((now + 8.0, [*prompt, *world.new(6)]))
    return {name: sum(its) / len(its) / 128 for name, its in hits.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_tenant_keeps_tells_nothing_of_others_where_its_share_is_fixed(
    policy: str,
) -> None:
    """Neither in what is there, nor in what was learned from whom."""

    def hits(*, with_victim: bool) -> list[int]:
        shares = tuple(
            Share(domain=Domain(name), reserved=0.3, maximum=0.3)
            for name in ("attacker", "victim")
        )
        world = World(200, policy, QuotaSettings(shares=shares))
        dice = Random(11)  # noqa: S311 -- a test's dice
        mine = [list(range(10**6 * n, 10**6 * n + 8 * SIZE)) for n in range(1, 21)]
        found = []
        for _ in range(450):
            prompt = dice.choice(mine)[: dice.randint(2, 8) * SIZE]
            found.append(world.serve(prompt, domain=Domain("attacker")))
            if with_victim:
                theirs = world.new(6)
                for _ in range(3):
                    world.serve(theirs, num_reply_blocks=3, domain=Domain("victim"))
            world.clock.advance(0.5)
        return found

    alone = hits(with_victim=False)
    assert hits(with_victim=True) == alone
    assert 0 < sum(alone) / len(alone) < 4
