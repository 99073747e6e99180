"""The conditions of the whole cluster in one list: of its metadata, its nodes and its logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from loomlog.core.conditions import Condition, Kind, in_order
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.nodes.clocks import Clocks
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.node_operator import NodeOperator
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.rollback.gate import Gate
from loomlog.staging_logs import staging_name
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


class ClusterConditions:
    """Collects conditions from all parts of a metadata repository. Changes nothing."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: ConnectedNodes,
        keepers: Keepers,
        operator: NodeOperator,
        clocks: Clocks,
        of_retention: Callable[[LogRecord], Iterable[Condition]],
        of_process: Callable[[], Iterable[Condition]],
        gate: Gate,
    ) -> None:
        """`of_retention` returns why a log keeps old entries, `of_process` the conditions of this
        metadata repository itself."""
        self._catalog = catalog
        self._nodes = nodes
        self._keepers = keepers
        self._operator = operator
        self._clocks = clocks
        self._of_retention = of_retention
        self._of_process = of_process
        self._gate = gate

    def all(
        self, members: Sequence[pb.MetadataMember], of_logs: Iterable[Condition]
    ) -> list[Condition]:
        """Return all conditions, including the given ones of logs, the most urgent first."""
        is_old = bool(self._gate.condition)  # what is known of logs
        return in_order([*self.of_cluster(members), *(() if is_old else of_logs)])

    def of_cluster(self, members: Sequence[pb.MetadataMember]) -> list[Condition]:
        """Return the conditions that do not concern a log."""
        nodes = [each for node in sorted(self._catalog.nodes) for each in self._of_node(node)]
        return [*self._of_metadata(members), *self._clocks.conditions(), *nodes]

    def of_log(self, log: LogRecord) -> list[Condition]:
        found = [each for keeper in self._keepers.values() for each in keeper.conditions(log)]
        found = [_with_remedy(each) for each in found]
        of_retention = [*self._of_retention(log)]
        if of_retention and not self._clocks.why_unknown():  # which is a separate condition
            found += of_retention
        found += self._of_staged(log)
        return found

    def _of_staged(self, log: LogRecord) -> Iterator[Condition]:
        """Yield the losses of a log that are caused by losses of its staging log."""
        staging = self._catalog.logs.get(staging_name(log.name))
        if staging is None or staging.unfinished:
            return
        for keeper in self._keepers.values():
            for each in keeper.conditions(staging):
                if each.kind is Kind.DATA_LOST:
                    text = f"published rows may be lost with log {staging.name!r}: {each.sentence}"
                    yield _with_remedy(Condition(Kind.DATA_LOST, text, log=log.name))

    def _of_metadata(self, members: Sequence[pb.MetadataMember]) -> Iterator[Condition]:
        gate = self._gate
        if reason := gate.condition:
            is_back = gate.rolled_back is not None
            yield Condition(Kind.METADATA_ROLLED_BACK if is_back else Kind.METADATA_WAITS, reason)
        if gate.doubt:
            yield Condition(Kind.NODE_REFUSED, gate.doubt)
        yield from self._of_process()
        for member in members:
            if not member.reachable and not member.leaving:
                yield Condition(
                    Kind.METADATA_MEMBER_AWAY,
                    f"metadata repository {member.member_id} at {member.address} is away",
                    "start its vmr",
                )
        is_retained = any(log.retention_s for log in self._catalog.logs.values())
        waits = self._clocks.why_unknown() if is_retained and not gate.condition else ""
        if waits:
            yield Condition(Kind.RETENTION_WAITS, waits)

    def _of_node(self, node: NodeId) -> Iterator[Condition]:
        if twin := self._nodes.twin(node):
            address = self._catalog.nodes[node].address
            yield Condition(
                Kind.NODE_TWICE,
                f"runs twice: at {address}, and the process at {twin} was refused, which has a "
                "copy of its data or the same volume",
                "stop that one and keep it stopped; to use it instead, stop the other one first",
                node=node,
            )
        replacement = self._operator.replacement_condition(node)
        if replacement is not None:
            yield replacement
        elif not self._nodes.reachable(node):
            yield self._absence(node)
        yield from self._operator.drain_conditions(node)
        for keeper in self._keepers.values():
            yield from keeper.node_conditions(node)
        if self._gate.was_caught_up and (forgotten := self._forgotten(node)):
            yield Condition(
                Kind.DATA_LEFT_OVER,
                f"has {forgotten} of logs that the restored metadata does not know: their entries "
                "cannot be read, nor transactions and publications that depend on them",
                "restore a newer copy of the metadata; to delete them for good: "
                f"`loom node cleanup {node}`",
                node=node,
            )
        connected = self._nodes.get(node)
        if connected is not None:
            is_there = connected.connection is not None
            # A node's reports are void while it is away, but its certificate may be the reason.
            lasting = (Kind.CERTIFICATE_EXPIRES,)
            yield from (each for each in connected.conditions if is_there or each.kind in lasting)

    def _forgotten(self, node: NodeId) -> str:
        return ", ".join(name for each in self._keepers.values() for name in each.forgotten(node))

    def _absence(self, node: NodeId) -> Condition:
        if reason := "" if self._nodes.connected(node) else self._nodes.turned_away(node):
            text = f"is there, but may not take part: {reason}"
            return Condition(Kind.NODE_HELD_BACK, text, node=node)
        record = self._catalog.nodes.get(node)
        if record is not None and record.removing:
            helps = "it is forgotten when its replicas are elsewhere"
            return Condition(Kind.NODE_AWAY, "is away and being removed", helps, node=node)
        has_replicas = any(keeper.replicas_on(node) for keeper in self._keepers.values())
        if record is not None and record.is_given_up:
            text, force = "is away, and an operator gave up its data", " --force" * has_replicas
            helps = f"start its vsn if its data is there; else `loom node remove {node}{force}`"
            return Condition(Kind.NODE_AWAY, text, helps, node=node)
        if has_replicas:
            helps = f"start its vsn; if its disks are lost: `loom node replace {node}`"
        else:
            helps = (
                f"start its vsn; or, since all that it had is elsewhere: `loom node remove {node}`"
            )
        return Condition(Kind.NODE_AWAY, "is away", helps, node=node)


def _with_remedy(condition: Condition) -> Condition:
    """Say how a loss ends that nothing can undo."""
    if condition.kind is not Kind.DATA_LOST or condition.help:
        return condition
    trim = f"`loom log trim {condition.log} POSITION`"
    return replace(condition, help=f"readers get DataLoss until a trim has passed it: {trim}")
