"""Fair split: what everybody owes for memory that several of them use.

A block costs the same however many use it, so its byte-seconds are split equally between
those who do. That is the Shapley value of the game in which a group pays for every block
that anybody in it uses (Shapley, "A value for n-person games", 1953): the shares sum to the
whole, who uses the same pays the same, and who uses nothing pays nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from prefold.advisor.block_tree import BlockTree

#: A set of users as bits: user i is in it if bit i is set.
Users = int


def users_of_runs(tree: BlockTree, user_of_request: Sequence[int | None]) -> list[Users]:
    """Return who used each run. O(runs), and a bit for every run and user.

    Args:
        tree: Of all prompts.
        user_of_request: Who sent each, counted from 0; None for what is not to count.
    """
    users = [0] * len(tree.parents)
    for end, user in zip(tree.ends.tolist(), user_of_request, strict=True):
        if user is not None:
            users[end] |= 1 << user
    parents: list[int] = tree.parents.tolist()
    # Whoever used a run used all before it. Children are deeper, empty runs do not occur.
    for run in np.argsort(-tree.depths, kind="stable").tolist():
        if run:
            users[parents[run]] |= users[run]
    return users


def split_fairly(
    costs: Sequence[float], users: Sequence[Users], num_users: int
) -> list[float]:
    """Return what each user owes of ``costs``, each shared by a set of users.

    A cost that nobody shares is nobody's.
    """
    by_users: defaultdict[Users, float] = defaultdict(float)
    for cost, its in zip(costs, users, strict=True):
        by_users[its] += cost
    owed = [0.0] * num_users
    for its, cost in by_users.items():
        members = _members(its)
        for user in members:
            owed[user] += cost / len(members)
    return owed


def _members(users: Users) -> list[int]:
    members = []
    while users:
        lowest = users & -users
        members.append(lowest.bit_length() - 1)
        users ^= lowest
    return members
