"""Projections: where the blocks of a log are, in one epoch. Pure.

A projection is replaced as a whole, by a compare-and-swap on its epoch. All its replicas were
sealed at its epoch before it came into force, so nothing of an older epoch is written to them any
more, and nothing at or above `start` has been: there its sequencer begins.

The number of chains never changes: it determines the chain of an address. Chains keep their order:
a leaving replica is taken out, a joining one is put at the end. A chain that lost all its replicas
begins again with another one, and the projection says below which position blocks were lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from loomlog.core.chained.block import Block
from loomlog.errors import InvalidArgument
from loomlog.types import Glsn, LogId, NodeId


class Replica(NamedTuple):
    """The blocks of a chain on one node. A node that left and comes back gets a replica of another
    `birth`, because the old one may hold blocks that no other replica has."""

    node_id: NodeId
    log_id: LogId
    chain: int
    birth: int  # random: a request that names it means this replica and no other


Chain: TypeAlias = tuple[Replica, ...]  # head first


class Projection(NamedTuple):
    log_id: LogId
    epoch: int
    first: Glsn  # of the log, or of the segment of it that is kept here
    start: Glsn  # the first position of this epoch
    chains: tuple[Chain, ...]
    sequencer: int  # of the party that made this projection and hands out its positions
    closed: bool = False  # for good: there is nothing at or above `start`
    lost: tuple[Glsn, ...] = ()  # see `lost_end`; empty: no chain ever lost anything

    def lost_end(self, address: Glsn) -> Glsn:
        """Return the position below which the chain of an address lost blocks, 0 if it lost none.
        Some blocks may be left; junk below it stands for a lost block or for nothing."""
        return self.lost[address % len(self.chains)] if self.lost else 0

    def is_lost(self, block: Block) -> bool:
        """Return whether there may have been another block in the place of this one."""
        return block.is_junk and block.first < self.lost_end(block.first)

    def chain_of(self, address: Glsn) -> Chain:
        return self.chains[address % len(self.chains)]

    @property
    def replicas(self) -> Iterator[Replica]:
        return (replica for chain in self.chains for replica in chain)

    @property
    def heads(self) -> list[Replica]:
        return [chain[0] for chain in self.chains]

    @property
    def tails(self) -> list[Replica]:
        return [chain[-1] for chain in self.chains]


def first_projection(
    log_id: LogId, nodes: list[list[NodeId]], *, birth: int, sequencer: int, first: Glsn = 1
) -> Projection:
    """Return the first projection of a log, with a chain for each list of nodes. Create its
    replicas and seal them at epoch 1 before it comes into force."""
    if not nodes or not all(nodes):
        raise InvalidArgument("a log needs at least one chain, and each chain a node")
    chains = tuple(
        tuple(Replica(node_id, log_id, index, birth) for node_id in chain)
        for index, chain in enumerate(nodes)
    )
    return Projection(log_id, 1, first, first, chains, sequencer)
