"""Fair split: shares sum to the whole, equals owe alike, who uses nothing owes nothing."""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import grow_block_tree
from prefold.advisor.fair_split import split_fairly, users_of_runs
from prefold.tree.holding import NOBODY, Holding, Users

NUM_USERS = 4
COSTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2**NUM_USERS - 1)), max_size=12
)


def split(rows: list[tuple[int, int]]) -> list[float]:
    costs, users = [float(cost) for cost, _ in rows], [its for _, its in rows]
    return split_fairly(costs, users, NUM_USERS)


@given(COSTS)
def test_it_sums_to_the_whole(rows: list[tuple[int, int]]) -> None:
    used = sum(cost for cost, users in rows if users)
    assert sum(split(rows)) == pytest.approx(used)


@given(COSTS, st.permutations(range(NUM_USERS)))
def test_names_do_not_count(rows: list[tuple[int, int]], order: list[int]) -> None:
    renamed = [
        (cost, sum(1 << order[user] for user in range(NUM_USERS) if users >> user & 1))
        for cost, users in rows
    ]
    owed, again = split(rows), split(renamed)
    assert [again[order[user]] for user in range(NUM_USERS)] == pytest.approx(owed)


@given(COSTS)
def test_it_is_the_shapley_value(rows: list[tuple[int, int]]) -> None:
    def cost_of(group: int) -> int:
        return sum(cost for cost, users in rows if users & group)

    owed = [0.0] * NUM_USERS
    orders = list(permutations(range(NUM_USERS)))
    for order in orders:
        group = 0
        for user in order:
            added = cost_of(group | 1 << user) - cost_of(group)
            owed[user] += added / len(orders)
            group |= 1 << user
    assert split(rows) == pytest.approx(owed)


PROMPTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
        st.none() | st.integers(0, NUM_USERS - 1),
    ),
    max_size=8,
)


@given(PROMPTS)
def test_who_used_a_run_is_who_sent_a_prompt_through_it(
    sent: list[tuple[list[int], int | None]],
) -> None:
    tree = grow_block_tree(np.array(prompt, dtype=np.int64) for prompt, _ in sent)
    naive = [0] * len(tree.parents)
    for path, (_, user) in zip(tree.paths(), sent, strict=True):
        for run in path.tolist():
            naive[run] |= 0 if user is None else 1 << user
    found = users_of_runs(tree, [user for _, user in sent])
    assert found[1:] == naive[1:]


# -- while a server runs ---------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "go", "use", "wait"]),
        st.integers(0, 5),
        st.sampled_from("abc"),
    ),
    max_size=40,
)


@given(EVENTS)
def test_a_holding_counts_every_block_and_second(
    events: list[tuple[str, int, str]],
) -> None:
    holding, now = Holding(), 100.0
    users_of: dict[int, Users] = {}
    naive: defaultdict[str | None, float] = defaultdict(float)
    for kind, number, user in events:
        match kind:
            case "come" if number not in users_of:
                users_of[number] = NOBODY
                holding.note(1, now)
            case "go" if number in users_of:
                holding.note(-1, now, users_of.pop(number))
            case "use" if number in users_of:
                users = users_of[number] | {user}
                holding.move(1, now, users_of[number], users)
                users_of[number] = users
            case "wait":
                now += number
                for users in users_of.values():
                    for each in users or [None]:
                        naive[each] += number / max(len(users), 1)
        holding.check_invariants()
        owed = holding.block_s(now)
        for each in {*owed, *naive}:
            assert owed.get(each, 0.0) == pytest.approx(naive[each], abs=1e-6)
    for users in set(users_of.values()):
        assert holding.num_blocks(users) == list(users_of.values()).count(users)
