"""Where the blocks of a log are, in one epoch. Pure.

A projection is replaced as a whole, by a compare-and-swap on its epoch. All its replicas were
sealed at its epoch before it came into force, so nothing of an older epoch is written to them any
more, and nothing at or above `start` has been: there its sequencer begins.

The number of chains never changes: it says where an address is. Chains keep their order: who
leaves is taken out, who joins is put at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from loomlog.errors import InvalidArgument
from loomlog.types import Glsn, LogId, NodeId


class Replica(NamedTuple):
    """A chain's blocks on one node. A node that left and comes back gets a replica of another
    `birth`: what the old one holds may be what nobody else ever saw."""

    node_id: NodeId
    log_id: LogId
    chain: int
    birth: int  # no two replicas of a chain on a node have the same


Chain: TypeAlias = tuple[Replica, ...]  # head first


class Projection(NamedTuple):
    log_id: LogId
    epoch: int
    first: Glsn  # of the log, or of the segment of it that is kept here
    start: Glsn  # the first position of this epoch
    chains: tuple[Chain, ...]
    sequencer: int  # who made this projection, and hands out its positions
    closed: bool = False  # for good: there is nothing at or above `start`

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
    """Of a new log, with a chain for each list of nodes. Create its replicas and seal them at
    epoch 1 before it comes into force."""
    if not nodes or not all(nodes):
        raise InvalidArgument("a log needs at least one chain, and each chain a node")
    chains = tuple(
        tuple(Replica(node_id, log_id, index, birth) for node_id in chain)
        for index, chain in enumerate(nodes)
    )
    return Projection(log_id, 1, first, first, chains, sequencer)
