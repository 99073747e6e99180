"""Counts the copies of acknowledged entries on the disks of a simulated cluster.

If the status of the cluster shows no condition, every acknowledged entry has to have all its copies
at that moment. What the metadata repository cannot know yet is excused: that a node stopped a
moment ago.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from memory_tables import MemoryLogs, MemoryTable
from sim_cluster import SimCluster

from loomlog.core.conditions import Condition, Kind
from loomlog.metadata.nodes.connected_nodes import RECONNECT_GRACE_S, ConnectedNode
from loomlog.metadata.term import Term
from loomlog.testing.sim.blocks import FileBlocks
from loomlog.testing.sim.disk import SimDisk
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


class CopiesJudge:
    """Looks at a log of `replicas` copies whenever it is asked to."""

    def __init__(self, servers: SimCluster, replicas: int) -> None:
        self._servers = servers
        self._replicas = replicas
        self.acknowledged: list[bytes] = []  # entries, none of which is part of another
        self.healthy = 0  # how often there was no condition, and entries were counted
        self.verdict = ""
        self._stopped: dict[str, tuple[float, ConnectedNode | None]] = {}

    def node_stops(self, name: str) -> None:
        """Called just before a node is stopped."""
        term = self._term
        known = term.nodes.get(_node_id(name)) if term is not None else None
        self._stopped[name] = self._servers.sim.world.now, known

    def look(self) -> list[Condition] | None:
        """Return the conditions, after comparing them with the disks; None: nobody leads. Simulated
        clocks are wrong on purpose, which does not matter here."""
        term = self._term
        if term is None:
            return None
        view, of = term.view, term.view.conditions.of_log
        found = view.conditions.all((), [each for log in view.logs() for each in of(log)])
        conditions = [each for each in found if each.kind is not Kind.CLOCK_SKEW]
        if not conditions and not any(self._is_unnoticed(term, name) for name in self._stopped):
            self._count([term.view.log(log) for log in term.view.logs()])
        return conditions

    @property
    def _term(self) -> Term | None:
        leader = self._servers.leader
        return None if leader is None else self._servers.repositories[leader].term

    def _is_unnoticed(self, term: Term, name: str) -> bool:
        """Return whether a node stopped so recently that it need not be known."""
        stopped_s, then = self._stopped[name]
        detection_s = self._servers.shape.failure_detection_s + RECONNECT_GRACE_S
        is_recent = self._servers.sim.world.now < stopped_s + 2 * detection_s
        return is_recent and then is not None and term.nodes.get(_node_id(name)) is then

    def _count(self, logs: list[pb.Log]) -> None:
        self.healthy += bool(self.acknowledged)
        held = {
            name: b"\n".join(_contents(self._servers.sim.host(name).disk, _node_id(name), logs))
            for name in self._servers.node_names
        }
        for entry in self.acknowledged:
            holders = [name for name, content in held.items() if entry in content]
            if len(holders) < self._replicas and not self.verdict:
                self.verdict = (
                    f"no condition, but {entry!r} was acknowledged and has only copies on "
                    f"{holders}, not {self._replicas}"
                )


def _node_id(name: str) -> NodeId:
    return int(name.removeprefix("vsn-"))


def _contents(disk: SimDisk, node: NodeId, logs: list[pb.Log]) -> Iterator[bytes]:
    """Return all that a disk has of streams and loglets that are its own."""
    streams = {
        f"/lsid={stream.log_stream_id}/data/"
        for log in logs
        for stream in log.streams
        if any(replica.storage_node_id == node for replica in stream.replicas)
    }
    chains = {
        (stream.loglet_id, index, replica.birth)
        for log in logs
        for stream in log.streams
        for index, chain in enumerate(stream.projection.chains)
        for replica in chain.replicas
        if replica.storage_node_id == node
    }
    for path in disk.below("/"):
        found = disk.find(path)
        if isinstance(found, FileBlocks):
            if any(stream in path for stream in streams):
                yield bytes(found.read(found.size, 0))
        elif isinstance(found, MemoryTable):
            kept = found._replicas if found._durable is None else found._durable
            yield pickle.dumps([kept[replica] for replica in kept if replica[1:] in chains])
        elif isinstance(found, MemoryLogs):
            yield pickle.dumps(found._logs if found._durable is None else found._durable)
