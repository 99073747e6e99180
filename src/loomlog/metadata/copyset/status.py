"""The status of copyset loglets: streams, replicas, conditions, and progress of rebuilding."""

from __future__ import annotations

from collections.abc import Mapping

from loomlog.core.conditions import Condition
from loomlog.core.copyset.conditions import LogView, conditions
from loomlog.core.copyset.log_state import holders
from loomlog.core.copyset.nodeset import index_of, node_of, shard_name
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.upkeep import condition
from loomlog.core.segments import Segment
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.copyset.epoch_store import EpochStore, begun_at
from loomlog.metadata.copyset.rebuilder import Rebuilder
from loomlog.metadata.copyset.records import CopysetRecord, nodes_of
from loomlog.metadata.copyset.recoveries import Recoveries
from loomlog.metadata.metrics import stream_sample, streams_of
from loomlog.metrics import Metric, Sample
from loomlog.types import NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb


class CopysetStatus:
    """Describes loglets, with the progress of recovery and rebuilding. Changes nothing."""

    def __init__(self, epochs: EpochStore, recoveries: Recoveries, rebuilder: Rebuilder) -> None:
        self._epochs, self._nodes = epochs, epochs.nodes
        self._recoveries = recoveries
        self._rebuilder = rebuilder

    def stream(self, record: CopysetRecord, segment: Segment) -> pb.LogStream:
        record = begun_at(record, segment.start)
        state = record.state
        is_known = self._epochs.is_tail_known(segment, self._nodes.reachable)
        return pb.LogStream(
            log_stream_id=record.stream_id,
            state=pb.STREAM_SEALED if state.closed else pb.RUNNING,
            seal_epoch=state.epoch,
            replicas=self._epochs.catalog.addressed(nodes_of(state)),
            last=self._epochs.known_tail(segment) if is_known else None,
            condition=self.condition(record),
            loglet_id=record.loglet,
            protocol=segment.settings.protocol,
            copyset=self._epochs.to_wire(record),
        )

    def condition(self, record: CopysetRecord) -> str:
        state, nodes = record.state, self._nodes
        return condition(
            state,
            nodes.alive_of(state),
            nodes.losses(record),
            self._recoveries.reason(record),
            self._recoveries.trouble(record.loglet),
            nodes.refusing(state),
            nodes.failing(state),
            record.lossy,
        )

    def conditions(
        self, log: LogRecord, record: CopysetRecord, segment: Segment
    ) -> list[Condition]:
        state, nodes = record.state, self._nodes
        losses = nodes.losses(record)
        view = LogView(
            log.name,
            record.stream_id,
            state,
            self._epochs.known_tail(segment),
            self._epochs.is_tail_known(segment, nodes.reachable),
            alive=list(filter(nodes.can_ask, nodes.alive_of(state))),
            lost=losses,
            refusing=nodes.refusing(state),
            failing=nodes.failing(state),
            reason=self._recoveries.reason(record),
            trouble=self._recoveries.trouble(record.loglet),
            lossy=record.lossy,
            sizes=nodes.sizes(record),
            restored=self._restored(losses),
        )
        return conditions(view)

    def _restored(self, losses: Mapping[ShardId, Epoch]) -> list[ShardId]:
        lossy = [shard for shard, epoch in losses.items() if epoch]
        return self._rebuilder.restored(lossy) if lossy else []

    def replicas(self, record: CopysetRecord) -> list[pb.ReplicaDescription]:
        state, refusing = record.state, self._nodes.refusing(record.state)
        newest = state.history[-1].shards
        restored = self._restored(self._nodes.losses(record))
        described = []
        for shard in sorted({*newest, *holders(state)}, key=lambda s: (node_of(s), s)):
            role = "nodeset" if shard in newest else "older copies"
            is_sequencer = node_of(shard) == state.sequencer and not state.closed
            lost = 0 if shard in restored else self._nodes.lost_through(shard, record.loglet)
            words = "takes no copies" if shard in refusing else "takes copies"
            described.append(
                pb.ReplicaDescription(
                    storage_node_id=node_of(shard),
                    part=index_of(shard),
                    role=f"{role}, sequencer" if is_sequencer else role,
                    state=f"lost copies up to epoch {lost}" if lost else words,
                    epoch=state.epoch,
                )
            )
        return described

    def rebuilds(self) -> list[pb.RebuildStatus]:
        return [
            pb.RebuildStatus(
                shard=shard_name(shard),
                storage_node_id=node_of(shard),
                status=progress.status,
                records=progress.records,
                size_bytes=progress.size_bytes,
                part_done=progress.part_done,
                waiting=progress.waiting,
                left_s=progress.left_s,
            )
            for shard, progress in self._rebuilder.progress().items()
        ]

    def node_conditions(self, node: NodeId) -> list[Condition]:
        rebuilt = self._rebuilder.progress().items()
        return [progress.condition(node) for shard, progress in rebuilt if node_of(shard) == node]


def metrics(status: pb.Status) -> list[Metric]:
    shown = [(log, s) for log, s in streams_of(status) if s.HasField("copyset")]
    unrecovered = [stream_sample(_unrecovered(s.copyset), log, s) for log, s in shown]
    missed = [stream_sample(_missed(s.copyset), log, s) for log, s in shown]
    rebuilds = [({"shard": each.shard}, each) for each in status.rebuilds]
    return [
        Metric(
            "copyset_epochs_unrecovered",
            "gauge",
            "Epochs that are over and not recovered.",
            unrecovered,
        ),
        Metric("copyset_nodes_missed", "gauge", "Nodes of a nodeset that are away.", missed),
        Metric(
            "rebuild_records",
            "gauge",
            "Records restored so far of a lost shard.",
            [Sample(r.records, of) for of, r in rebuilds],
        ),
        Metric(
            "rebuild_bytes",
            "gauge",
            "Bytes restored so far of a lost shard.",
            [Sample(r.size_bytes, of) for of, r in rebuilds],
        ),
        Metric(
            "rebuild_part_done",
            "gauge",
            "Part of a lost shard that is restored, from 0 to 1.",
            [Sample(r.part_done, of) for of, r in rebuilds],
        ),
        Metric(
            "rebuild_left_seconds",
            "gauge",
            "Time until a lost shard is restored, about, if that is known.",
            [Sample(r.left_s, of) for of, r in rebuilds if r.HasField("left_s")],
        ),
    ]


def _unrecovered(state: pb.CopysetState) -> int:
    """Return the number of epochs that have ended but are not clean."""
    return max(0, state.epoch - 1 - state.last_clean)


def _missed(state: pb.CopysetState) -> int:
    """Return the number of nodes in the newest nodeset that are not alive; 0 once closed."""
    alive = {node.storage_node_id for node in state.nodes if node.alive}
    return 0 if state.closed else len(set(map(node_of, state.history[-1].nodeset)) - alive)
