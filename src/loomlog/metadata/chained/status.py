"""The status of `chained` segments: their streams, replicas and conditions."""

from __future__ import annotations

from loomlog.core.chained.chain import Chain, Replica
from loomlog.core.chained.conditions import ChainsView, conditions
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.upkeep import condition, unreadable, why_appends_wait
from loomlog.core.conditions import Condition
from loomlog.core.segments import Segment
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.chained.upkeep import Upkeep
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import projection_to_wire


class ChainedStatus:
    """Describes the chains of one term."""

    def __init__(
        self, catalog: Catalog, sequencers: Sequencers, nodes: ChainNodes, upkeep: Upkeep
    ) -> None:
        self._catalog = catalog
        self._sequencers = sequencers
        self._nodes = nodes
        self._upkeep = upkeep

    def stream(
        self, record: ChainedRecord, segment: Segment, tail: Glsn, *, is_known: bool
    ) -> pb.LogStream:
        """`tail` is a lower bound; with `is_known`, it is exact."""
        projection = record.projection
        if not record.begun:  # not yet: it has no entries
            projection = projection._replace(first=segment.start, start=segment.start)
        addresses = {node.node_id: node.address for node in self._catalog.nodes.values()}
        nodes = dict.fromkeys(replica.node_id for replica in projection.replicas)
        return pb.LogStream(
            log_stream_id=record.stream_id,
            state=self._state(record),
            seal_epoch=projection.epoch,
            replicas=self._catalog.addressed(nodes),
            last=tail if is_known else None,
            condition=self._condition(record, segment),
            joining_node=record.joining[0].node_id if record.joining else 0,
            copied_entries=tail * min(self._filled(record).values(), default=0) // 100,
            loglet_id=record.loglet,
            protocol=segment.settings.protocol,
            projection=projection_to_wire(projection, addresses),
        )

    def _state(self, record: ChainedRecord) -> pb.StreamState:
        if record.projection.closed:
            return pb.STREAM_SEALED
        return pb.RUNNING if record.loglet in self._sequencers else pb.SEALING

    def _condition(self, record: ChainedRecord, segment: Segment) -> str:
        action, trouble = self._upkeep.decide(record), self._upkeep.trouble(record.loglet)
        wanted, filled = segment.settings.replicas, self._filled(record)
        log = self._catalog.log_of(record)
        trimmed = 0 if log is None else log.trimmed
        refusing = self._nodes.refusing()
        waiting = why_appends_wait(record, self._nodes)
        if not waiting and (full := self._upkeep.full(record)):
            waiting = f"takes no appends: {self._nodes.why_full(full)}"
        standing, projection = self._upkeep.standing(record), record.projection
        runs = standing is None or not unreadable(standing, self._nodes)
        return condition(
            projection, wanted, waiting, action, filled, trouble, trimmed, refusing, runs=runs
        )

    def replicas(self, record: ChainedRecord) -> list[pb.ReplicaDescription]:
        standing = self._upkeep.standing(record)
        if standing is None:
            return []
        filled = self._filled(record)
        described = []
        for replica in (*record.projection.replicas, *record.joining):
            chain = record.projection.chains[replica.chain]
            place = "joins" if replica in record.joining else _place(chain, replica)
            state = "unfit" if replica in standing.unfit else "whole"
            if replica in filled:
                state = f"{filled[replica]} % copied"
            described.append(
                pb.ReplicaDescription(
                    storage_node_id=replica.node_id,
                    role=f"chain {replica.chain}: {place}",
                    state=state,
                    epoch=record.projection.epoch,
                    part=replica.chain,
                )
            )
        return described

    def conditions(
        self, log: LogRecord, record: ChainedRecord, segment: Segment, last: Glsn | None
    ) -> list[Condition]:
        """`last` is the segment's last position, if it is known."""
        standing = self._upkeep.standing(record) if record.begun else None
        if standing is None:
            return []
        trimmed = max(log.trimmed, segment.start - 1)
        view = ChainsView(
            log.name,
            standing,
            self._nodes,
            self._upkeep.unverified,
            positions=None if last is None else max(last - trimmed, 0),
            sizes=[self._nodes.size_of(chain) for chain in record.projection.chains],
            trimmed=log.trimmed,
            takes_appends=self._state(record) != pb.SEALING,
            action=self._upkeep.decide(record),
            filled=self._filled(record),
            trouble=self._upkeep.trouble(record.loglet),
            full=self._nodes.why_full(self._upkeep.full(record)),
            not_compared=self._upkeep.comparer.trouble.get(record.loglet, ""),
        )
        return conditions(view)

    def _filled(self, record: ChainedRecord) -> dict[Replica, int]:
        """Return the percentage that each newcomer has copied."""
        newcomers = self._upkeep.newcomers
        return {replica: newcomers.percent(record, replica) for replica in record.joining}


def _place(chain: Chain, replica: Replica) -> str:
    if replica == chain[0]:
        return "head" if len(chain) > 1 else "head and tail"
    return "tail" if replica == chain[-1] else "middle"
