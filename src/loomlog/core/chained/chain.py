"""Chains: the blocks that they hold, and the projection that says where they are. Pure.

A block occupies the positions [first, first + count). Its first position is its address. It is
written once: a second writer finds it, and two blocks never share a position.

A projection is replaced as a whole, by a compare-and-swap on its epoch. All its replicas were
sealed at its epoch before it came into force, so nothing of an older epoch is written to them any
more, and nothing at or above `start` has been: there its sequencer begins.

The number of chains never changes: it determines the chain of an address. Chains keep their order:
a leaving replica is taken out, a joining one is put at the end. A chain that lost all its replicas
begins again with another one, and the projection says below which position blocks were lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from loomlog.batch import assign_place, latest_in, read_header
from loomlog.core.history import Unknowable
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.limits import POSITION_MAX, REFERENCE_RECORDS_MAX
from loomlog.types import Buffer, Glsn, LogId, NodeId, StreamId

NEVER_US: Final = -(1 << 63)
FOREVER_US: Final = (1 << 63) - 1


class Extent(NamedTuple):
    """The positions of a block."""

    first: Glsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count

    @property
    def end(self) -> Glsn:
        """The first position behind it."""
        return self.first + self.count

    @property
    def last(self) -> Glsn:
        return self.first + self.count - 1


class Block(NamedTuple):
    """A batch and its producer; junk has neither."""

    first: Glsn
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    producer_id: int = 0
    sequence: int = 0
    batch: Buffer = b""
    # The addresses of blocks on its chain of which its writer tells that they were acknowledged.
    # They are kept with it, and not read with it.
    acknowledged: tuple[Glsn, ...] = ()

    @property
    def end(self) -> Glsn:
        """The first position behind it."""
        return self.first + self.count

    @property
    def last(self) -> Glsn:
        return self.first + self.count - 1

    @property
    def is_sane(self) -> bool:
        """Return whether it can be stored at all."""
        first, count = self.first, self.count
        fits = first > 0 and first + count - 1 <= POSITION_MAX
        return fits and 0 < count <= REFERENCE_RECORDS_MAX

    @property
    def is_junk(self) -> bool:
        return not self.batch

    @property
    def latest_us(self) -> int:
        """The timestamp of its youngest entry. Junk counts as older than anything, and an
        unreadable batch as younger, so that it is kept."""
        if self.is_junk:
            return NEVER_US
        try:
            return latest_in(self.batch)
        except Corrupt:
            return FOREVER_US

    @property
    def extent(self) -> Extent:
        return Extent(self.first, self.count)

    def is_same(self, other: Block) -> bool:
        """Return whether it is the same append, by the producer's number of the batch."""
        return self[:4] == other[:4] and self.is_junk == other.is_junk


def block_of(batch: Buffer) -> Block:
    """Return the block of a batch that has its positions."""
    header = read_header(batch)
    return Block(header.first_position, header.count, header.producer_id, header.sequence, batch)


def placed(
    unplaced: Block, stream: StreamId, epoch: int, first: Glsn, acknowledged: tuple[Glsn, ...] = ()
) -> Block:
    """Return the block at an address; the header of its batch, a bytearray, is given positions."""
    _, count, producer_id, sequence, batch, _ = unplaced
    assert isinstance(batch, bytearray)
    assign_place(batch, stream, epoch, first)
    return Block(first, count, producer_id, sequence, batch, acknowledged)


def junk(first: Glsn, count: int) -> Block:
    """Return a block that takes the place of one that was never written."""
    return Block(first, count)


def crashed_between(then: int, now: int) -> bool:
    """Return whether a node is known to have crashed, given its lives; 0: not known."""
    return 0 < then != now > 0


class Replica(NamedTuple):
    """The blocks of a chain on one node. A node that left and comes back gets a replica of another
    `birth`, because the old one may hold blocks that no other replica has."""

    node_id: NodeId
    log_id: LogId
    chain: int
    birth: int  # random: a request that names it means this replica and no other


Chain: TypeAlias = tuple[Replica, ...]  # head first


class Unheard(NamedTuple):
    """A replica that an epoch did without, although all that answered of its chain had crashed and
    may have forgotten blocks."""

    replica: Replica
    epoch: int  # that did without it
    end: Glsn  # where that epoch starts: its blocks are below
    decided: Glsn = POSITION_MAX  # those that answered had all its blocks below


class Projection(NamedTuple):
    """The chains of a loglet in one epoch."""

    log_id: LogId
    epoch: int
    first: Glsn  # of the log, or of the segment of it that is kept here
    start: Glsn  # the first position of this epoch
    chains: tuple[Chain, ...]
    sequencer: int  # of the party that made this projection and hands out its positions
    closed: bool = False  # for good: there is nothing at or above `start`
    lost: tuple[Glsn, ...] = ()  # see `lost_end`; empty: no chain ever lost anything
    least: int = 1  # replicas that every chain needs to take appends
    lost_from: tuple[Glsn, ...] = ()  # the first position that each chain lost; empty: not known
    lives: tuple[tuple[NodeId, int], ...] = ()  # of its nodes, when its replicas were sealed
    decided: Glsn = 0  # all replicas of a chain have the same blocks below

    def life_of(self, node: NodeId) -> int:
        """Return the life that a node had when the epoch began; 0: not known. In a later one its
        replicas may have forgotten blocks."""
        return dict(self.lives).get(node, 0)

    def has_crashed(self, node: NodeId, life: int) -> bool:
        """Return whether a node crashed since the epoch began, given its present life. Its replicas
        may have forgotten blocks until another epoch begins, even if it has stopped and was started
        since."""
        return crashed_between(self.life_of(node), life)

    def lost_end(self, address: Glsn) -> Glsn:
        """Return the position below which the chain of an address lost blocks, 0 if it lost none.
        Some blocks may be left; junk below it stands for a lost block or for nothing."""
        return self.lost[address % len(self.chains)] if self.lost else 0

    def lost_range(self, chain: int) -> range:
        """Return the positions from the first to the last that a chain lost."""
        first = self.lost_from[chain] if self.lost_from else self.first
        return range(first, self.lost[chain] if self.lost else 0)

    def may_be_lost(self, address: Glsn) -> bool:
        """Return whether there may have been a block at an address that its chain lost."""
        return address in self.lost_range(address % len(self.chains))

    def losses_behind(self, address: Glsn) -> Iterator[Glsn]:
        """Yield for each chain the first address behind this one where it may have lost a block."""
        count = len(self.chains)
        for chain in range(len(self.lost)):
            lost = self.lost_range(chain)
            first = max(address + 1, lost.start)
            first += (chain - first) % count
            if first < lost.stop:
                yield first

    def is_lost(self, block: Block) -> bool:
        """Return whether there may have been another block in the place of this one."""
        return block.is_junk and self.may_be_lost(block.first)

    def shortage(self, chain: int) -> str:
        """Say that a chain has fewer replicas than appends need; "" if it has enough."""
        count = len(self.chains[chain])
        if count >= self.least:
            return ""
        replicas = "1 replica" if count == 1 else f"{count} replicas"
        return f"chain {chain} has {replicas} and needs {self.least}"

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
    log_id: LogId,
    nodes: list[list[NodeId]],
    *,
    birth: int,
    sequencer: int,
    first: Glsn = 1,
    least: int = 1,
) -> Projection:
    """Return the first projection of a log, with a chain for each list of nodes. Create its
    replicas and seal them at epoch 1 before it comes into force."""
    if not nodes or not all(nodes):
        raise InvalidArgument("a log needs at least one chain, and each chain a node")
    chains = tuple(
        tuple(Replica(node_id, log_id, index, birth) for node_id in chain)
        for index, chain in enumerate(nodes)
    )
    return Projection(log_id, 1, first, first, chains, sequencer, least=least)


class ReplicaEpochs(NamedTuple):
    """The epochs that a replica of a chain reports."""

    sealed: int  # the epoch that it is sealed at
    written: int  # the newest epoch in which it took a block


def newest_projection(
    projection: Projection, epochs: Mapping[Replica, ReplicaEpochs]
) -> Projection | Unknowable:
    """Return the projection to continue with, given all replicas on all nodes. Leaving replicas may
    have been sealed with the others. So a replica that was in `projection` and is sealed as high as
    any of its chain was in every projection since, except perhaps the last. It is whole if it took
    a block in the last one, or if no replica did. Of others it is unknown whether they were
    filled."""
    newest = max((each.sealed for each in epochs.values()), default=0)
    if newest <= projection.epoch:
        return projection
    chains: list[Chain] = []
    for index, chain in enumerate(projection.chains):
        highest = max((each for r, each in epochs.items() if r.chain == index), default=None)
        whole = tuple(r for r in chain if r in epochs and _is_whole(epochs[r], highest))
        if not whole:
            nodes = sorted({r.node_id for r in epochs if r.chain == index})
            names = ", ".join(map(str, nodes))
            return Unknowable(
                f"all replicas of chain {index} were replaced since, on node {names}: "
                "restore a newer copy of the metadata"
            )
        chains.append(whole)
    return projection._replace(epoch=newest, chains=tuple(chains))


def _is_whole(epochs: ReplicaEpochs, highest: ReplicaEpochs | None) -> bool:
    if highest is None or epochs.sealed < highest.sealed:
        return False
    return epochs.written == epochs.sealed or highest.written < highest.sealed
