"""Blocks, chains of replicas, and the projection that maps one to the other. Pure.

A block occupies the positions [first, first + count). Its first position is its address. An address
is written once: later writers find the block that is there. Two blocks never share a position.

A projection is replaced as a whole, by a compare-and-swap on its epoch. All its replicas are sealed
at its epoch before it comes into force. From then on they accept no writes of older epochs, and
have none at or above `start`, where its sequencer begins.

The number of chains never changes, because it determines the chain of an address. Chains keep their
order: a leaving replica is removed, a joining one is added at the end. A chain that lost all its
replicas begins again with a new one, and the projection records below which position blocks were
lost.
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
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used

    @property
    def end(self) -> Glsn:
        """One past the last position."""
        return self.first + self.count

    @property
    def last(self) -> Glsn:
        return self.first + self.count - 1


class Block(NamedTuple):
    """A batch with its positions and its producer. Junk has neither batch nor producer."""

    first: Glsn
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    producer_id: int = 0
    sequence: int = 0
    batch: Buffer = b""
    # Addresses of earlier blocks on its chain that its writer reports as acknowledged. They are
    # stored with this block, but not returned to readers.
    acknowledged: tuple[Glsn, ...] = ()

    @property
    def end(self) -> Glsn:
        """One past the last position."""
        return self.first + self.count

    @property
    def last(self) -> Glsn:
        return self.first + self.count - 1

    @property
    def is_sane(self) -> bool:
        """True if the positions of the block are valid."""
        first, count = self.first, self.count
        fits = first > 0 and first + count - 1 <= POSITION_MAX
        return fits and 0 < count <= REFERENCE_RECORDS_MAX

    @property
    def is_junk(self) -> bool:
        return not self.batch

    @property
    def latest_us(self) -> int:
        """The timestamp of the youngest entry. Junk counts as older than anything, an unreadable
        batch as younger than anything, so that it is kept."""
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
        """Return whether both blocks are the same append, by the producer's sequence number."""
        return self[:4] == other[:4] and self.is_junk == other.is_junk


def block_of(batch: Buffer) -> Block:
    """Return the block of a batch whose header contains its positions."""
    header = read_header(batch)
    return Block(header.first_position, header.count, header.producer_id, header.sequence, batch)


def placed(
    unplaced: Block, stream: StreamId, epoch: int, first: Glsn, acknowledged: tuple[Glsn, ...] = ()
) -> Block:
    """Return the block placed at `first`. The header of its batch, a bytearray, is changed."""
    _, count, producer_id, sequence, batch, _ = unplaced
    assert isinstance(batch, bytearray)
    assign_place(batch, stream, epoch, first)
    return Block(first, count, producer_id, sequence, batch, acknowledged)


def junk(first: Glsn, count: int) -> Block:
    """Return a block that fills positions which were never written."""
    return Block(first, count)


def crashed_between(then: int, now: int) -> bool:
    """Return whether a node is known to have crashed between two of its lives; 0: not known."""
    return 0 < then != now > 0


class Replica(NamedTuple):
    """The blocks of a chain on one node. A node that left and comes back gets a replica with a new
    `birth`, because its old one may have blocks that no other replica has."""

    node_id: NodeId
    log_id: LogId
    chain: int
    birth: int  # random: tells replicas of one chain on one node apart


Chain: TypeAlias = tuple[Replica, ...]  # head first


class Unheard(NamedTuple):
    """A replica that was left out of an epoch, although all the others of its chain that answered
    had crashed and may have forgotten blocks."""

    replica: Replica
    epoch: int  # the epoch that it was left out of
    end: Glsn  # where that epoch starts: its blocks are below
    decided: Glsn = POSITION_MAX  # the others had all its blocks below this position


class Projection(NamedTuple):
    """The chains of a loglet in one epoch."""

    log_id: LogId
    epoch: int
    first: Glsn  # the first position of the segment
    start: Glsn  # the first position of this epoch
    chains: tuple[Chain, ...]
    sequencer: int  # id of the party that made this projection and hands out its positions
    closed: bool = False  # for good: nothing is ever at or above `start`
    lost: tuple[Glsn, ...] = ()  # by chain, see `lost_end`; empty: no chain ever lost anything
    least: int = 1  # the number of replicas that a chain needs for appends
    lost_from: tuple[Glsn, ...] = ()  # by chain: the first position that was lost; empty: not known
    lives: tuple[tuple[NodeId, int], ...] = ()  # of the nodes, when their replicas were sealed
    decided: Glsn = 0  # all replicas of a chain have the same blocks below this position

    def life_of(self, node: NodeId) -> int:
        """Return the life that a node had when the epoch began; 0: not known. If it is in a later
        one, its replicas may have forgotten blocks."""
        return dict(self.lives).get(node, 0)

    def has_crashed(self, node: NodeId, life: int) -> bool:
        """Return whether a node crashed since the epoch began, given its present life.

        Its replicas may then lack blocks until the next epoch begins, even if the node was stopped
        and started regularly since."""
        return crashed_between(self.life_of(node), life)

    def lost_end(self, address: Glsn) -> Glsn:
        """Return the position below which the chain of an address lost blocks; 0: it lost none.

        Some blocks below it may be left. Junk below it stands either for a lost block or for a
        hole."""
        return self.lost[address % len(self.chains)] if self.lost else 0

    def lost_range(self, chain: int) -> range:
        """Return the range from the first to the last position that a chain lost."""
        first = self.lost_from[chain] if self.lost_from else self.first
        return range(first, self.lost[chain] if self.lost else 0)

    def may_be_lost(self, address: Glsn) -> bool:
        """Return whether the chain of an address may have lost a block there."""
        return address in self.lost_range(address % len(self.chains))

    def losses_behind(self, address: Glsn) -> Iterator[Glsn]:
        """Yield for each chain the first address above this one where it may have lost a block."""
        count = len(self.chains)
        for chain in range(len(self.lost)):
            lost = self.lost_range(chain)
            first = max(address + 1, lost.start)
            first += (chain - first) % count
            if first < lost.stop:
                yield first

    def is_lost(self, block: Block) -> bool:
        """Return whether this is junk in the place of a block that may have been lost."""
        return block.is_junk and self.may_be_lost(block.first)

    def shortage(self, chain: int) -> str:
        """Return a text if a chain has fewer replicas than appends need; "" if it has enough."""
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
    """Return the first projection of a log, with a chain for each list of nodes. The caller has to
    create its replicas and seal them at epoch 1 before it comes into force."""
    if not nodes or not all(nodes):
        raise InvalidArgument("a log needs at least one chain, and each chain a node")
    chains = tuple(
        tuple(Replica(node_id, log_id, index, birth) for node_id in chain)
        for index, chain in enumerate(nodes)
    )
    return Projection(log_id, 1, first, first, chains, sequencer, least=least)


class ReplicaEpochs(NamedTuple):
    """The epochs that a replica of a chain reports."""

    sealed: int  # the epoch at which it is sealed
    written: int  # the newest epoch in which it stored a block


def newest_projection(
    projection: Projection, epochs: Mapping[Replica, ReplicaEpochs]
) -> Projection | Unknowable:
    """Return the projection to continue with after a rollback, given all replicas on all nodes.

    A replica that was in `projection` and is sealed at the highest epoch of its chain was in every
    projection since, except perhaps the last: replicas that leave may have been sealed with the
    others. It is whole if it stored a block in the last one, or if no replica did. Of replicas that
    were not in `projection`, it is unknown whether they were filled."""
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
