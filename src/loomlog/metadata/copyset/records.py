"""The records of copyset loglets: stored, kept in memory, and drafted after a rollback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from loomlog.core.copyset.log_state import last_written, newest_state
from loomlog.core.copyset.messages import Acknowledged, EpochEnd, Life, LogState, Taker
from loomlog.core.copyset.nodeset import EpochMetadata, Member, index_of, node_of, shard_of
from loomlog.core.copyset.nodeset_choice import NodesetAim
from loomlog.core.copyset.presumption import Presumption
from loomlog.core.copyset.record import Epoch
from loomlog.metadata.catalog.loglet_records import LogletRecords
from loomlog.metadata.catalog.records import LogRecord, Losses, NodeRecord
from loomlog.metadata.copyset import rebuild_log
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.rollback.draft import Draft, LogletDraft
from loomlog.protocol_names import COPYSET
from loomlog.types import LogId, NodeId, ShardId, StreamId
from loomlog.wire import loomlog_pb2 as pb

PREFIX: Final = "copyset/"  # of the keys of records
EVENTS_ABOVE: Final = 1_000_000  # events of rebuilding after the copy of the metadata was made


@dataclass(frozen=True, slots=True)
class CopysetRecord:
    """A loglet of protocol `copyset`. It outlives its segment until no node has data of it."""

    loglet: LogId
    log_id: LogId
    stream_id: StreamId  # of the one stream that its segment shows
    state: LogState  # without an epoch until the segment begins
    begun: bool = False
    holders: tuple[ShardId, ...] = ()  # were once in a nodeset, and may have data of it
    lossy: tuple[Epoch, ...] = ()  # those with entries that may be lost with all their copies
    aim: NodesetAim = field(default_factory=NodesetAim)

    def __post_init__(self) -> None:
        """Convert the plain values of a stored record."""
        object.__setattr__(self, "state", _log_state(self.state))
        object.__setattr__(self, "aim", NodesetAim(*self.aim))

    def is_on(self, node: NodeId) -> bool:
        """Return whether a shard of a node may have data of it."""
        return any(node_of(shard) == node for shard in self.holders)


def _log_state(state: LogState | dict[str, Any]) -> LogState:
    if isinstance(state, LogState):
        return state
    history = [
        EpochMetadata(
            since,
            tuple(Member(*member) for member in nodeset),
            replication,
            tuple(tuple(shards) for copysets in short for shards in copysets),
        )
        for since, nodeset, replication, *short in state.get("history", ())
    ]
    ends = tuple(
        EpochEnd(
            **{
                **end,
                "found": tuple(map(tuple, end.get("found", ()))),
                "crashed": tuple(end.get("crashed", ())),
                "absent": tuple(end.get("absent", ())),
                "lost": tuple(map(tuple, end.get("lost", ()))),
            }
        )
        for end in state.get("ends", ())
    )
    told = tuple(Acknowledged(*fields) for fields in state.get("told", ()))
    takers = tuple(Taker(*fields) for fields in state.get("takers", ()))
    lives = tuple(Life(*fields) for fields in state.get("lives", ()))
    witnesses = tuple(Life(*fields) for fields in state.get("witnesses", ()))
    return LogState(
        **{
            **state,
            "history": tuple(history),
            "ends": ends,
            "told": told,
            "takers": takers,
            "lives": lives,
            "witnesses": witnesses,
            "presumed": tuple(Presumption(*fields) for fields in state.get("presumed", ())),
        }
    )


def losses_name(shard: ShardId) -> str:
    """Return the name of the losses of a shard in the record of its node."""
    index = index_of(shard)
    return f"{COPYSET}/{index}" if index else COPYSET


def nodes_of(state: LogState) -> tuple[NodeId, ...]:
    """Return the nodes of the newest nodeset, each once."""
    return tuple(dict.fromkeys(map(node_of, state.history[-1].shards)))


class CopysetCatalog(LogletRecords[CopysetRecord]):
    """The copyset loglets."""

    prefix: ClassVar[str] = PREFIX
    kind = CopysetRecord

    def sets_of(self, record: CopysetRecord) -> list[tuple[NodeId, ...]]:
        return [] if record.state.closed else [nodes_of(record.state)]

    def newest_on(self, node: NodeId) -> dict[ShardId, dict[LogId, Epoch]]:
        """Return the last epoch of each loglet for which shards of a node may have copies."""
        found: dict[ShardId, dict[LogId, Epoch]] = {}
        for record in self:
            for shard in record.holders:
                if node_of(shard) == node:
                    found.setdefault(shard, {})[record.loglet] = last_written(record.state)
        return found

    def with_loss(
        self, node: NodeRecord, shard: ShardId, through: Mapping[LogId, Epoch]
    ) -> NodeRecord:
        """Note a loss of a shard, with a number of its own."""
        loss = [(0, self.catalog.new_stamp()), *through.items()]
        return node.with_losses(losses_name(shard), loss)


def loss_of(losses: Losses) -> int | None:
    """Return the number of a loss; None if there is none."""
    return None if not losses else losses[0][1] if losses[0][0] == 0 else 0


class CopysetDraft(LogletDraft[CopysetRecord]):
    """The epochs of copyset loglets after a rollback, from the copies that nodes hold."""

    protocol: ClassVar[str] = COPYSET

    def __init__(self) -> None:
        self.epochs: dict[LogId, int] = {}  # the highest of each loglet
        self._shards: set[ShardId] = set()  # of the nodes that came
        super().__init__(PREFIX, CopysetRecord, self.epochs)

    def add(self, caller: Caller, holdings: pb.Holdings) -> None:
        self._shards |= {shard_of(caller.node_id, i) for i in caller.registration.shards}
        for copies in holdings.copysets:
            known = self.epochs.get(copies.loglet_id, 0)
            self.epochs[copies.loglet_id] = max(known, copies.epoch)
            self.add_trim(copies.loglet_id, copies.trimmed)

    def has_run(self, record: CopysetRecord) -> bool:
        return record.begun and record.state.epoch >= record.state.history[0].since

    def bring(self, draft: Draft, logs: Mapping[LogId, LogRecord]) -> None:
        self._forget_rebuilding(draft)
        known = draft.decoded("node/", NodeRecord)
        shards = self._shards | {shard_of(node.node_id, i) for node in known for i in node.shards}
        for key, record in self.remaining(draft):
            epoch = self.epochs.get(record.loglet, 0)
            if record.begun and epoch > record.state.epoch and record.loglet not in draft.dropped:
                state = newest_state(record.state, epoch, shards)
                holders = tuple(sorted({*record.holders, *shards}))
                draft.changes[key] = replace(record, state=state, holders=holders)

    def _forget_rebuilding(self, draft: Draft) -> None:
        """Treat all shards as intact unless a loss is known, because it is unknown what was rebuilt
        since the copy was made. Versions keep growing, so that late messages are refused."""
        keys = draft.keys(rebuild_log.PREFIX)
        if keys:
            draft.changes.update(dict.fromkeys(keys))
            number = rebuild_log.newest_event(keys) + EVENTS_ABOVE
            draft.changes[rebuild_log.SNAPSHOT] = rebuild_log.SnapshotRecord((number, number, ()))

    def note_losses(self, draft: Draft, node: NodeRecord) -> NodeRecord:
        """Treat all copies that the node may have had as lost, up to the newest epoch."""
        lost: dict[ShardId, list[tuple[LogId, Epoch]]] = {}
        for record in self.records(draft):
            epoch = max(record.state.epoch, self.epochs.get(record.loglet, 0))
            for shard in record.holders:
                if node_of(shard) == node.node_id:
                    lost.setdefault(shard, []).append((record.loglet, epoch))
        for shard, losses in lost.items():
            node = node.with_losses(losses_name(shard), losses)
        return node
