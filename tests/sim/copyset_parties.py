"""Who takes part in a simulated copyset log: nodes, the epoch store, hosts of sequencers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.epoch_metadata import EpochMetadata, Member
from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.messages import (
    Activate,
    Delivered,
    EpochStoreRequest,
    GetEnd,
    GetState,
    LogState,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Read,
    Refused,
    Seal,
    SealedAt,
    SetClean,
    Store,
    Trouble,
)
from loomlog.core.copyset.recovery import Recovery
from loomlog.core.copyset.sequencer import Sequencer
from loomlog.testing.copyset_node import CopysetNode, MemoryRecords
from loomlog.types import NodeId

LOG = 1
FAR: Lsn = 1 << 62


class Node:
    """A storage node. All that it answered is on its disk."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.up = True
        self.process = 0  # the number of its process
        self.authority = Authority.FULL
        self.gone = False  # for ever
        self.trouble: Trouble | None = None
        self.purging = False
        self.released: Lsn = 0  # the highest it was told of
        self._disk = CopysetNode(node_id)

    @property
    def records(self) -> MemoryRecords:
        return self._disk.records(LOG)

    def answer(self, request: NodeRequest) -> NodeAnswer:
        if self.trouble is not None and isinstance(request, Store):
            return Refused(self.trouble)
        answer = self._disk.answer(request)
        if self.authority is Authority.FULL:
            return answer
        match request, answer:
            case _, SealedAt() | Delivered():
                return replace(answer, underreplicated=True)
            case GetEnd(), NotHere():
                return Refused(Trouble.DISABLED, "it may have known")
        return answer

    def crash(self) -> None:
        self.up = False
        self.purging = False

    def restart(self, random: Random, process: int) -> None:
        self.up = True
        self.process = process
        if random.random() < 0.5:
            self.released = 0
            self.records.standing = self.records.standing._replace(released=0)

    def lose_disk(self, newest: int) -> None:
        """It seals itself, because it does not know any more what it was sealed at."""
        self.authority = Authority.UNDERREPLICATED
        self._disk = CopysetNode(self.node_id)
        self.released = 0
        self._disk.answer(Seal(LOG, newest - 1, 0))

    def peek(self, first: Lsn) -> Delivered:
        answer = self._disk.answer(Read(LOG, first, FAR, 1 << 30, everything=True))
        assert isinstance(answer, Delivered)
        return answer


class EpochStore:
    def __init__(self, nodeset: tuple[Member, ...], replication: int, random: Random) -> None:
        self._random = random
        self._members = nodeset
        metadata = EpochMetadata(1, nodeset, replication)
        self.state = LogState(0, 0, (metadata,), 0, 0)
        self.cleaned: list[int] = []  # epochs, as they were set clean

    def answer(self, request: EpochStoreRequest, gone: Collection[NodeId]) -> LogState:
        state = self.state
        match request:
            case Activate(_, node, expected) if expected == state.epoch and not state.closed:
                self.state = replace(
                    state, epoch=state.epoch + 1, sequencer=node, history=self._history(gone)
                )
            case SetClean(_, by, epoch, tail) if by == state.epoch and epoch > state.last_clean:
                self.state = replace(state, last_clean=epoch, tail=tail)
                self.cleaned.append(epoch)
            case GetState() | Activate() | SetClean():
                pass
        return self.state

    def _history(self, gone: Collection[NodeId]) -> tuple[EpochMetadata, ...]:
        """Now and then another nodeset."""
        history = self.state.history
        newest = history[-1]
        here = [member for member in self._members if member.node_id not in gone]
        if not self.state.epoch or self._random.random() < 0.7 or len(here) < newest.replication:
            return history
        count = self._random.randint(newest.replication, len(here))
        nodeset = tuple(sorted(self._random.sample(here, count)))
        return (*history, EpochMetadata(self.state.epoch + 1, nodeset, newest.replication))


@dataclass(eq=False)
class Host:
    """A process that has a sequencer, and recovers the epochs before it."""

    process: int
    sequencer: Sequencer
    recovery: Recovery
    recovering: bool = False
    recovered: bool = False
