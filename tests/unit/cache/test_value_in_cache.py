"""What the value policy does in a cache that other policies do otherwise, or not at all."""

import pytest

from prefold.eviction.registry import POLICIES
from support.logical_world import SIZE, World


def chat(world: World) -> None:
    """Prompts with short replies are continued after ten seconds; long replies end it."""
    for _ in range(300):
        short, long = world.new(4), world.new(4)
        world.serve(short)
        world.serve(long, num_reply_blocks=40)
        world.clock.advance(10.0)
        world.serve([*short, *world.new(1)], num_reply_blocks=40)
        world.clock.advance(5.0)


@pytest.mark.parametrize(
    ("policy", "victim"),
    [
        # Nobody has used it for longer than the others.
        ("lru", "oldest"),
        # It was used once, the others more often.
        ("lfu", "seldom"),
        # Its last reply was long, after which nobody ever went on.
        ("value", "ended"),
    ],
)
def test_each_policy_evicts_another_entry_after_one_history(
    policy: str, victim: str
) -> None:
    world = World(200, policy)
    chat(world)
    prompts = {name: world.new(4) for name in ("oldest", "seldom", "ended")}
    for name in ("oldest", "ended", "oldest", "ended", "oldest"):
        world.serve(prompts[name])
    world.clock.advance(0.4)
    world.serve(prompts["seldom"])
    world.clock.advance(0.4)
    world.serve(prompts["ended"], num_reply_blocks=40)
    # What is left of the chat goes first, under every policy but the one that counts hits.
    while all(world.held(prompt) == 4 for prompt in prompts.values()):
        world.take(world.cache.counts.free + 1)
    gone = {name for name, prompt in prompts.items() if world.held(prompt) < 4}
    assert gone == {victim}


def conversation_with_repeats(world: World) -> int:
    """Say one thing again and again, with more and more of a reply, and count the nodes."""
    prompt = world.new(4)
    reply = world.new(100)
    for length in range(1, 100):
        world.serve([*prompt, *reply[: length * SIZE]])
        world.clock.advance(1.0)
    return world.cache.snapshot().num_nodes


@pytest.mark.parametrize("policy", POLICIES)
def test_a_conversation_stays_a_few_nodes_however_often_it_goes_on(policy: str) -> None:
    assert conversation_with_repeats(World(300, policy)) <= 3
