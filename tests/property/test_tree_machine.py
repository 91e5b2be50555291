"""The prefix tree under several audiences, against the set of all published paths.

Here approved prefixes exist, so that a prompt may be followed along several paths. The
model keeps each path block by block with the audience of each block, and finds the
longest ones by trying all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from prefold.blocks.pool import BlockPool
from prefold.identity.domain import PUBLIC, Audience, AudienceKind, Domain
from prefold.tree.account import Account
from prefold.tree.dead import all_children
from prefold.tree.invalidation import kill_all, kill_audience, kill_subtree
from prefold.tree.invariants import check_tree
from prefold.tree.mark import Mark
from prefold.tree.node import Node
from prefold.tree.path import path_to
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.trimming import trim
from prefold.tree.walk import Endpoint, longest_paths
from support.clock import TickingClock

SIZE = 2
NUM_BLOCKS = 40
SEEDS = st.integers(0, 2**32 - 1)
NUM_MOVES = 5

#: All of one approval, so that everything can be read.
MARKED = frozenset({Mark()})

EVERYBODY = Audience(AudienceKind.APPROVED, PUBLIC)
TEAM = Audience(AudienceKind.APPROVED, Domain("a"))
OWN_A = Audience(AudienceKind.OWN, Domain("a"))
OWN_B = Audience(AudienceKind.OWN, Domain("b"))
AUDIENCES = [EVERYBODY, TEAM, OWN_A, OWN_B]
#: What each writer reads, from wide to narrow; it writes the last.
READS = [(EVERYBODY,), (EVERYBODY, TEAM), (EVERYBODY, TEAM, OWN_A), (EVERYBODY, OWN_B)]

Block = tuple[int, ...]
Path = tuple[tuple[Audience, Block], ...]


class PrefixTreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        account = Account("all", num_reserved=0, max_idle=NUM_BLOCKS)
        self.tree = PrefixTree(
            tree_id=0,
            pool=self.pool,
            block_size=SIZE,
            clock=TickingClock(),
            max_tombstones=5,
            account_of=lambda _: account,
        )
        self.paths: set[Path] = {()}
        self.path_of: dict[int, Path] = {}
        self.pins: list[Node] = []
        self.num_rules = 0

    @rule(seed=SEEDS)
    def move(self, seed: int) -> None:
        self.num_rules += 1
        # Equal seeds, which are common, should not mean equal moves.
        dice = Random(1_000_003 * seed + self.num_rules)  # noqa: S311 -- a test's dice
        moves = {
            self.publish: 12,
            self.publish_a_tail: 4,
            self.unpin: 5,
            self.trim: 3,
            self.kill_a_subtree: 1,
            self.kill_an_audience: 1,
            self.sweep: 2,
        }
        for chosen in dice.choices(list(moves), list(moves.values()), k=NUM_MOVES):
            chosen(dice)
            self.nodes_agree_with_each_other()
            self.the_published_paths_are_there()

    def publish(self, dice: Random) -> None:
        reads = dice.choice(READS)
        tokens = self._prompt(dice)
        ends = self._walk(reads, tokens)
        end, begin = ends[0], ends[0].position
        full = len(tokens) // SIZE
        node = self.tree.settle(end)
        self.tree.pin(node)
        path = self._path(node)
        if begin < full and full - begin <= self.pool.num_free:
            ids = self.pool.allocate(full - begin)
            run = np.array(tokens[begin * SIZE : full * SIZE], dtype=np.int64)
            own = self.tree.audiences.of(reads[-1])
            node = self.tree.publish(node, own, run, ids)
            if own.is_approved:
                for each in path_to(node):
                    if each.readers.is_approved:
                        each.marks = MARKED
            for index, block in enumerate(ids.tolist()):
                at = (begin + index) * SIZE
                path = (*path, (reads[-1], tokens[at : at + SIZE]))
                self.paths.add(path)
                self.path_of[block] = path
        self.pins.append(node)
        if dice.random() < 0.6:
            self._unpin(self.pins.pop())

    def publish_a_tail(self, dice: Random) -> None:
        if not self.pins or not self.pool.num_free:
            return
        node = dice.choice(self.pins)
        if self.tree.audiences.is_doomed(node):
            return
        reads = READS[AUDIENCES.index(self._path(node)[-1][0])] if node.parent else READS[0]
        own = self.tree.audiences.of(reads[-1])
        tail = np.array([dice.randrange(3)], dtype=np.int64)
        ids = self.pool.allocate(1)
        if not self.tree.publish_partial(node, self.tree.view(reads), tail, ids):
            self.pool.publish(ids)
            self.pool.rest(ids)
            self.pool.free(ids, self.pool.state_of(int(ids[0])))
        self.tree.audiences.forget_if_empty(own)

    def unpin(self, dice: Random) -> None:
        if self.pins:
            self._unpin(self.pins.pop(dice.randrange(len(self.pins))))

    def trim(self, dice: Random) -> None:
        leaves = [node for node in self._nodes() if node.is_evictable]
        if not leaves:
            return
        leaf = dice.choice(leaves)
        num_blocks = dice.randint(1, 3)
        if not leaf.is_partial:
            for block in leaf.block_ids[-num_blocks:].tolist():
                self.paths.discard(self.path_of[block])
        trim(self.tree, leaf, num_blocks, "lru", 0.0)

    def kill_a_subtree(self, dice: Random) -> None:
        nodes = [node for node in self._nodes() if not node.is_partial]
        if nodes and dice.random() < 0.5:
            top = dice.choice(nodes)
            first = self.path_of[int(top.block_ids[0])]
            kill_subtree(self.tree, top, at=0.0)
            self._forget(lambda path: path[: len(first)] == first)

    def kill_an_audience(self, dice: Random) -> None:
        if dice.random() < 0.3:
            audience = dice.choice(AUDIENCES)
            kill_audience(self.tree, audience)
            self._forget(lambda path: any(one == audience for one, _ in path))

    def sweep(self, dice: Random) -> None:
        num_blocks = dice.randint(1, 5)
        before = self.pool.num_free
        freed = self.tree.sweep(num_blocks)
        assert self.pool.num_free == before + freed
        if freed < num_blocks:
            assert not self.tree.dead

    def nodes_agree_with_each_other(self) -> None:
        self.pool.check_invariants()
        nodes = check_tree(self.tree, self.pins)
        assert sum(node.num_blocks for node in nodes) == NUM_BLOCKS - self.pool.num_free

    def the_published_paths_are_there(self) -> None:
        live: set[Path] = {()}
        for node in self._nodes():
            if not node.is_partial:
                for index, block in enumerate(node.block_ids.tolist()):
                    path = self.path_of[block]
                    begin = index * SIZE
                    tokens = tuple(node.tokens[begin : begin + SIZE].tolist())
                    assert path[-1] == (node.readers.audience, tokens)
                    live.add(path)
        assert live == self.paths

    def teardown(self) -> None:
        while self.pins:
            self._unpin(self.pins.pop(0))
            self.nodes_agree_with_each_other()
        kill_all(self.tree)
        self.tree.sweep(NUM_BLOCKS)
        check_tree(self.tree, [])
        assert self.tree.num_nodes == 0
        assert self.pool.num_free == NUM_BLOCKS

    # -- helpers -------------------------------------------------------------------

    def _walk(self, reads: tuple[Audience, ...], tokens: Block) -> list[Endpoint]:
        """Walk, and check against trying all paths."""
        full = len(tokens) // SIZE
        start = Endpoint(self.tree.root, 0, 0, 0)
        array = np.array(tokens, dtype=np.int64)
        ends = longest_paths(start, array, full, self.tree.view(reads), SIZE)
        found = [self._path(end.node)[: end.position] for end in ends]
        longest: list[Path] = [()]
        for index in range(full):
            block = tokens[index * SIZE : (index + 1) * SIZE]
            longer = [
                (*path, (audience, block))
                for path in longest
                for rank, audience in enumerate(reads)
                if not path or rank >= reads.index(path[-1][0])
                if (*path, (audience, block)) in self.paths
            ]
            if not longer:
                break
            longest = longer
        longest.sort(key=lambda path: [reads.index(audience) for audience, _ in path])
        assert found == longest
        return ends

    def _path(self, node: Node) -> Path:
        return self.path_of[int(node.block_ids[-1])] if node.parent is not None else ()

    def _nodes(self) -> list[Node]:
        """Return the nodes that a walk could meet."""
        nodes = [self.tree.root]
        for node in nodes:
            nodes += [
                child
                for child in all_children(node)
                if not self.tree.audiences.is_dead(child)
            ]
        return nodes[1:]

    def _unpin(self, node: Node) -> None:
        parent = node.parent
        self.tree.unpin(node)
        self.tree.merge(node)
        if parent is not None:
            self.tree.merge(parent)

    def _forget(self, concerns: Callable[[Path], bool]) -> None:
        self.paths = {path for path in self.paths if not path or not concerns(path)}

    def _prompt(self, dice: Random) -> Block:
        path = dice.choice(sorted(self.paths, key=repr))
        old = [token for _, block in path for token in block]
        more = [dice.randrange(2) for _ in range(SIZE * dice.randrange(4))]
        return (*old[: dice.randint(0, len(old))], *more) or (0, 0)


TestPrefixTree = PrefixTreeMachine.TestCase
