"""A chained log of which an operator gives up nodes that are away, and that return nevertheless.

Besides what may happen to any chained log (chained_world.py), an operator says of a node that is
down that its data never comes back. A node that is started serves nothing before it has registered;
then the word is taken back, and its replicas that left serve nothing until they are sealed.

Judged as well:
- an entry is lost only if all nodes that have it had been given up when its chain began again;
- what only such a node has is not removed from it when it is back, until it is trimmed.
"""

from __future__ import annotations

from chained_calls import Question
from chained_parties import Node, Repository
from chained_world import ChainedWorld
from violation import Violation

from loomlog.core.chained import upkeep
from loomlog.core.chained.chain import Block, Projection, Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import Remove, Seal
from loomlog.core.chained.replica import FORGETFUL
from loomlog.core.chained.upkeep import ChainsStanding, NewEpoch
from loomlog.core.requests import Lost
from loomlog.types import NodeId


class MarkedWorld(ChainedWorld):
    """Nodes are given up while they are down."""

    uses = (60, 15, 15, 8, 1)

    def __init__(self, seed: int) -> None:
        self._given_up: set[NodeId] = set()
        self._unregistered: set[NodeId] = set()  # since they were started
        self._unserved: set[Replica] = set()
        self._decided: frozenset[NodeId] = frozenset()  # were given up when an epoch was wanted
        self.begun_again = 0  # without nodes that were given up
        self.returned = 0  # nodes that were given up
        self.kept = 0  # entries, at the end, on replicas that left
        super().__init__(seed)

    # ---- what the operator does, and what nodes do

    def _do_harm(self) -> None:
        down = [node for node in self.nodes.values() if not node.up]
        chance = self.random.random()
        if chance < 0.05:
            for replica in self.random.choice(self.projection.chains):
                self._crash(self.nodes[replica.node_id])
                self._given_up.add(replica.node_id)
        elif chance < 0.3 and down:
            self._given_up.add(self.random.choice(down).node_id)
        else:
            super()._do_harm()

    def _restart(self, node: Node) -> None:
        super()._restart(node)
        self._unregistered.add(node.node_id)

    def _step(self, *, faults: bool) -> None:
        for node in sorted(self._unregistered):
            if super().reachable(node):
                self._register(node)
        super()._step(faults=faults)

    def _register(self, node: NodeId) -> None:
        self._unregistered.discard(node)
        self.returned += node in self._given_up
        self._given_up.discard(node)
        self._unserved.update(self._left_on(self.records.record, node))

    def _left_on(self, record: ChainedRecord, node: NodeId) -> list[Replica]:
        return record.unserved(node, self.life(node))

    def reachable(self, node: NodeId) -> bool:
        return super().reachable(node) and node not in self._unregistered

    def _arrive(self, question: Question, late: bool, faults: bool) -> None:
        target, request = question.ask
        if isinstance(target, Replica) and target.node_id in self._unregistered:
            self._answer(question, Lost())
            return
        if isinstance(target, Replica) and target in self._unserved:
            if not isinstance(request, Seal | Remove):
                self._answer(question, FORGETFUL)
                return
            self._unserved.discard(target)
        super()._arrive(question, late, faults)

    # ---- the upkeep

    def _standing(self) -> ChainsStanding:
        standing = super()._standing()
        lost = {r for r in standing.record.replicas if self._is_given_up(r.node_id)}
        unfit = lost.intersection(standing.projection.replicas)
        return standing._replace(lost=standing.lost | lost, unfit=standing.unfit | unfit)

    def _is_given_up(self, node: NodeId) -> bool:
        return node in self._given_up

    def _wanted(self) -> upkeep.Action:
        wanted = super()._wanted()
        if isinstance(wanted, NewEpoch) and not self._is_reconfiguring():
            self._decided = frozenset(self._given_up)
        return wanted

    def _is_reconfiguring(self) -> bool:
        return any(isinstance(call.party, Repository) for call in self.calls)

    # ---- what is judged

    def _swapped(self, before: ChainedRecord, new: Projection) -> None:
        for index, (old, chain) in enumerate(
            zip(before.projection.chains, new.chains, strict=True)
        ):
            if set(old).isdisjoint(chain):
                self.begun_again += any(r.node_id in self._decided for r in old)
                self._check_begun_again(before, index, chain[0])
                for node in self._decided:  # one that is back has to register again
                    if self.reachable(node):
                        self._unserved.update(self._left_on(self.records.record, node))

    def _check_begun_again(self, before: ChainedRecord, index: int, fresh: Replica) -> None:
        """Check that a chain that begins again has all that is left of it."""
        for block in self._acknowledged(index):
            if self._has(fresh, block):
                continue
            for replica in (*before.projection.chains[index], *before.older(index)):
                if replica.node_id not in self._decided and self._has(replica, block):
                    raise Violation(f"{block} was given up, and {replica} has it")

    def _look_at_the_end(self) -> None:
        super()._look_at_the_end()
        standing = self._standing()
        for index, chain in enumerate(self.projection.chains):
            left = [replica for replica in standing.record.needless if replica.chain == index]
            for block in self._acknowledged(index):
                holders = [replica for replica in left if self._has(replica, block)]
                if self._has(chain[0], block) or not holders:
                    continue
                if all(upkeep.is_needless(standing, replica, self) for replica in holders):
                    raise Violation(f"{holders} are to be removed, and only they have {block}")
                self.kept += 1

    def _acknowledged(self, chain: int) -> list[Block]:
        chains = len(self.projection.chains)
        return [
            block
            for block in self.judge.acknowledged.values()
            if block.first % chains == chain and block.last > self.judge.trimmed
        ]

    def _has(self, replica: Replica, block: Block) -> bool:
        table = self.nodes[replica.node_id].table
        return table.look(replica).find(block.last) == block.extent
