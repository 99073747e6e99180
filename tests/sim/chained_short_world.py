"""A chained log whose chains become short, and whose replicas are moved away and brought back.

Besides what may happen to any chained log (chained_world.py), operators move the directory of
a node away, and bring it back; replicas that left are removed when the upkeep says so; and a node
that stopped is noticed first, and silent only later. At the end all nodes stop, one by one and so
quickly that only the first one is known to be silent, and all but the last come back.

Judged as well:
- a chain begins again only with all that was acknowledged and is on a disk that may be asked, also
  if its node is away; while it is long enough for appends, also if it was moved away;
- an acknowledged entry is lost only after as many disks as appends need were lost or moved away;
- the log is well again without the node that stopped last, unless the rules let an epoch leave
  a chain to it alone, and with that node in any case.
"""

from __future__ import annotations

from dataclasses import replace

from chained_calls import Question
from chained_parties import Node, Repository
from chained_world import CALM_STEPS, LOG, ChainedWorld
from memory_tables import MemoryTable
from violation import Violation

from loomlog.core.chained import upkeep
from loomlog.core.chained.chain import Block, Projection, Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import Swap
from loomlog.core.chained.reconfigure import (
    Goal,
)
from loomlog.core.chained.upkeep import ChainsStanding
from loomlog.types import Glsn, LogId, NodeId

PERIOD = 400  # steps with and without harm


class ShortWorld(ChainedWorld):
    """Chains of at least two replicas, which appends need or not."""

    replicas: tuple[int, ...] = (2, 3, 3)
    leasts: tuple[int, ...] = (1, 2, 2, 2, 3)
    spares = 1
    steps = 3 * PERIOD
    uses = (60, 15, 15, 8, 1)
    stops = 1  # of all nodes, at the end

    def __init__(self, seed: int) -> None:
        self._moved: dict[NodeId, MemoryTable] = {}  # what operators moved away
        self._harmed: list[int] = []  # moments in which disks were lost or moved
        self._tried_at: dict[Glsn, int] = {}  # when acknowledged blocks were begun
        self._unnoticed: set[NodeId] = set()  # stopped, and seem to be there
        self._expected: set[NodeId] = set()  # stopped, and may be back in a moment
        self._is_calm = False
        self._steps = 0
        self._is_quick = False  # nobody falls silent now
        self._left_short: set[int] = set()  # chains, by the rules, when all were stopped
        self.begun_again = 0  # chains without a whole replica
        self.removed = 0
        super().__init__(seed)
        self._loses_chains = self.random.random() < 0.6
        self._calmness = self.random.choice((0.3, 0.7, 1.0))  # the rest of harm is by chance

    def run(self) -> None:
        super().run()
        if 1 < self.judge.least < self.replicas_wanted:
            for _ in range(self.stops):
                self._stop_all()

    # ---- good times, in which entries are appended, and bad ones

    def _step(self, *, faults: bool) -> None:
        if faults:
            self._steps += 1
            self._tell(self._steps % PERIOD)
        super()._step(faults=faults)

    def _tell(self, moment: int) -> None:
        """Leave a node alone with its chain, then harm it when others may be back."""
        if moment == 0:
            super()._calm_down()
        elif moment == PERIOD // 2:
            survivor = self.random.choice(list(self.projection.replicas)).node_id
            for node in set(self.nodes) - {survivor}:
                self._crash(self.nodes[node])
                if self.random.random() < 0.9:
                    self._unnoticed.discard(node)  # and so it is silent at once
        elif moment > 0.65 * PERIOD:
            down = [node for node in self.nodes.values() if not node.up]
            chance = self.random.random()
            if chance < 0.03 and down:
                self.random.choice(down).restart()
            elif chance < 0.06 and moment > 0.8 * PERIOD:
                self._harm_disk()
            elif chance > 0.75:
                self._mend()

    def _harm_disk(self) -> None:
        """Lose, move away or bring back what a node has, more often one of a short chain."""
        shortest = min(self.projection.chains, key=len)
        alone = [replica.node_id for replica in shortest] * 3
        victim = self.nodes[self.random.choice([*alone, *self.nodes])]
        chance = self.random.random()
        if chance < 0.3 and self._moved and not self._is_reconfiguring():
            self._bring_back(self.nodes[self.random.choice(sorted(self._moved))])
        elif chance < 0.6:
            self._move_away(victim)
        else:
            self._lose_disk(victim)

    def _do_harm(self) -> None:
        if self._steps % PERIOD < PERIOD // 2 or self.random.random() < self._calmness:
            self._mend()
        elif self.random.random() < 0.3:
            self._harm_disk()
        else:
            super()._do_harm()

    # ---- directories that are moved

    def _move_away(self, node: Node) -> None:
        if node.node_id not in self._moved:
            self._crash(node)
            self._moved[node.node_id] = node.table
            node.lose_disk()
            self._note_harm(node)
            node.restart()

    def _bring_back(self, node: Node) -> None:
        self._crash(node)
        node.table.take_over(self._moved.pop(node.node_id))
        node.restart()

    def _lose_disk(self, node: Node) -> None:
        before = node.table
        super()._lose_disk(node)
        if node.table is not before:
            self._note_harm(node)

    def _note_harm(self, node: Node) -> None:
        self._disks_lost[node.node_id] = self.judge.now()
        self._harmed.append(self.judge.moment)

    def _is_reconfiguring(self) -> bool:
        """Return whether something is decided now; it does not learn what is brought back."""
        swaps = any(isinstance(q.ask.request, Swap) for q in [*self.questions, *self.late])
        return swaps or any(isinstance(call.party, Repository) for call in self.calls)

    def _is_moved(self, replica: Replica) -> bool:
        moved = self._moved.get(replica.node_id)
        return moved is not None and replica in moved.replicas()

    def _standing(self) -> ChainsStanding:
        standing = super()._standing()
        there = [r for r in standing.record.replicas if self.reachable(r.node_id)]
        missing = frozenset(r for r in there if self._is_moved(r) and not self._is_sound(r))
        in_force = missing.intersection(standing.projection.replicas)
        return standing._replace(lost=standing.lost - missing, missing=in_force)

    def _must_reconfigure(self) -> bool:
        """Return whether no sequencer is there, or an epoch was begun and is not in force."""
        projection = self.projection
        sequencers = [r for r in self.repositories if projection.sequencer in r.sequencers]
        if not (sequencers or projection.closed):
            return True
        standings = [self.nodes[r.node_id].table.look(r).standing for r in projection.replicas]
        return any(s is not None and s.epoch > projection.epoch for s in standings)

    # ---- nodes that stop

    def _crash(self, node: Node) -> None:
        if node.up:
            self._unnoticed.add(node.node_id)
        super()._crash(node)

    def _arrive(self, question: Question, late: bool, faults: bool) -> None:
        target = question.ask.target
        is_asking = isinstance(question.call.party, Repository)
        if is_asking and isinstance(target, Replica) and not self.nodes[target.node_id].up:
            self._notice(target.node_id)  # its connection is lost
        super()._arrive(question, late, faults)

    def _notice(self, node: NodeId) -> None:
        if node in self._unnoticed:
            self._unnoticed.discard(node)
            self._expected.add(node)

    def reachable(self, node: NodeId) -> bool:
        if (self.repositories[-1].name, node) in self.blocked:
            return False
        return self.nodes[node].up or node in self._unnoticed

    def silent(self, loglet: LogId, node: NodeId) -> bool:
        return not self.reachable(node) and node not in self._expected

    def replaced(self, node: NodeId) -> bool:
        return self._is_calm or node % 2 == 0

    def _mend(self) -> None:
        for node in sorted(self._unnoticed | self._expected):
            if self.nodes[node].up:
                self._unnoticed.discard(node)
                self._expected.discard(node)
            elif node in self._unnoticed:
                if self.random.random() < 0.5:
                    self._notice(node)
            elif not self._is_quick and self.random.random() < 0.3:
                self._expected.discard(node)
        if self._is_reconfiguring():
            return
        if self._is_calm and self._moved:
            self._bring_back(self.nodes[min(self._moved)])
        elif self.random.random() < 0.5:
            self._remove_needless()
        else:
            super()._mend()

    def _remove_needless(self) -> None:
        standing, repository = self._standing(), self.repositories[-1]
        for replica in standing.record.needless:
            there = self.reachable(replica.node_id)
            if there and upkeep.is_needless(standing, replica, self):
                self._check_removed(standing.record, replica)
                self._call(repository, repository.remove(replica))
                self.removed += 1
                return

    def _is_well(self) -> bool:
        doubtful = [n for n in self._unnoticed | self._expected if not self.nodes[n].up]
        unfinished = doubtful or self._moved or self.records.record.joining
        return not unfinished and super()._is_well()

    def _calm_down(self) -> None:
        super()._calm_down()
        self._is_calm = True

    # ---- what is judged

    def _check_removed(self, record: ChainedRecord, removed: Replica) -> None:
        """Check that enough copies are left of what a replica has."""
        others = [r for r in record.replicas if r != removed and r.chain == removed.chain]
        table = self.nodes[removed.node_id].table
        for block in self.judge.acknowledged.values():
            is_gone = block.last <= self.judge.trimmed or self.judge.is_lost(block)
            if is_gone or not self._has(table, removed, block):
                continue
            left = {r.node_id for r in others if self._has(self.nodes[r.node_id].table, r, block)}
            if len(left) + self._harmed_since(block) < self.judge.least:
                raise Violation(f"{removed} is removed, and {block} is only on {left}")

    def _harmed_since(self, block: Block) -> int:
        """Return how many disks were lost or moved away since an entry was appended."""
        return sum(moment >= self._tried_at.get(block.first, 0) for moment in self._harmed)

    def _count_copies(self, block: Block, since: int) -> int:
        self._tried_at.setdefault(block.first, since)
        return super()._count_copies(block, since)

    def _swapped(self, before: ChainedRecord, new: Projection) -> None:
        chains = zip(before.projection.chains, new.chains, strict=True)
        for index, (old, chain) in enumerate(chains):
            if set(old).isdisjoint(chain):
                self.begun_again += 1
                self._check_begun_again(before, index, chain[0])
            elif self._is_quick and new.sequencer in self.records.may_be_short:
                self._left_short |= {index} if len(chain) < new.least else set()

    def _check_begun_again(self, before: ChainedRecord, index: int, fresh: Replica) -> None:
        """Check that a chain that begins again has all that is left of it."""
        old = before.projection
        for block in self.judge.acknowledged.values():
            is_here = block.first % len(old.chains) == index
            if not is_here or block.last <= self.judge.trimmed or self.judge.is_lost(block):
                continue
            if self._has(self.nodes[fresh.node_id].table, fresh, block):
                continue
            for replica in (*old.chains[index], *before.older(index)):
                tables = [self.nodes[replica.node_id].table]
                if replica in old.chains[index] and len(old.chains[index]) >= old.least:
                    tables += [t for n, t in self._moved.items() if n == replica.node_id]
                if any(self._has(table, replica, block) for table in tables):
                    raise Violation(f"{block} was given up, and {replica} has it")
            harmed = self._harmed_since(block)
            if harmed < self.judge.least:
                raise Violation(f"{block} is lost, and {harmed} disks were lost or moved")

    @staticmethod
    def _has(table: MemoryTable, replica: Replica, block: Block) -> bool:
        return table.look(replica).find(block.last) == block.extent

    # ---- the end

    def _stop_all(self) -> None:
        """Stop all nodes; only the first is known to be silent. All but the last come back."""
        self._is_quick = True
        chain = {replica.node_id for replica in self.random.choice(self.projection.chains)}
        *order, last = self.random.sample(sorted(chain), len(chain))
        order += [*sorted(set(self.nodes) - chain), last]
        if self.random.random() < 0.3:
            self.random.shuffle(order)
        if self.random.random() < 0.5:  # and another node is filled meanwhile
            moving = self.random.choice(list(self.projection.replicas))
            self.records.record = self.records.record.move(moving, 0)
            for _ in range(100):
                self._step(faults=False)
        closing = self.random.choice([*order, 0, 0, 0])  # when its segment ends
        for node in order:
            if node == closing:
                self._close()
            self._crash(self.nodes[node])
            if node == order[0]:
                self._unnoticed.discard(node)
            else:
                self._wait_a_little()
        for node in self.random.sample(order[:-1], len(order) - 1):
            self.nodes[node].restart()
            self._wait_a_little()
        self._is_quick = False
        self.records.record = replace(self.records.record, moving=())
        last = order[-1]
        for _ in range(CALM_STEPS):
            if self._is_left_to(last) or self._is_well():
                break
            self._step(faults=False)
        else:
            raise Violation(f"not well without node {last}: {self.projection}")
        if not self._is_left_to(last):
            self._look_at_the_end()
        self._left_short.clear()
        self.nodes[last].restart()
        for _ in range(CALM_STEPS):
            if self._is_well():
                break
            self._step(faults=False)
        else:
            raise Violation(f"not well with node {last}, either: {self.projection}")
        self._look_at_the_end()

    def _is_left_to(self, node: NodeId) -> bool:
        """Return whether a chain was left to this node alone, by the rules."""
        chains = [self.projection.chains[index] for index in self._left_short]
        return any({replica.node_id for replica in chain} == {node} for chain in chains)

    def _close(self) -> None:
        """End the segment, as a switch does, unless it would wait for nodes."""
        nodes = {replica.node_id for replica in self.projection.replicas}
        is_certain = all(self.reachable(node) or self.silent(LOG, node) for node in nodes)
        if is_certain and not self.projection.closed and not self._is_reconfiguring():
            short = upkeep.may_become_short(self._standing(), self)
            goal, repository = self.goal_to_close(short), self.repositories[-1]
            self._call(repository, repository.reconfigure(goal, may_be_short=short))

    def goal_to_close(self, short: bool) -> Goal:
        return Goal(close=True, short=short)

    def _wait_a_little(self) -> None:
        for _ in range(self.random.choice((0, 0, 10, 50))):
            self._step(faults=False)


class StoppedWorld(ShortWorld):
    """A short life, but all nodes stop again and again."""

    replicas = (3,)
    leasts = (2,)
    steps = PERIOD // 2
    stops = 8
