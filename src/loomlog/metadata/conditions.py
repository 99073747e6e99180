"""The conditions of the whole cluster in one list: of its metadata, its nodes and its logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from loomlog.core.conditions import Condition, Kind, in_order
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.nodes.clocks import Clocks
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.node_operator import NodeOperator
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.rollback.gate import Gate
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


class ClusterConditions:
    """Asks everybody who may know that something is not as it should be. Changes nothing."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: ConnectedNodes,
        keepers: Keepers,
        operator: NodeOperator,
        clocks: Clocks,
        of_process: Callable[[], Iterable[Condition]],
        gate: Gate,
    ) -> None:
        """`of_process` returns what is wrong with this metadata repository itself."""
        self._catalog = catalog
        self._nodes = nodes
        self._keepers = keepers
        self._operator = operator
        self._clocks = clocks
        self._of_process = of_process
        self._gate = gate

    def all(self, members: Sequence[pb.MetadataMember]) -> list[Condition]:
        """Return all conditions, the most urgent first."""
        nodes = [each for node in sorted(self._catalog.nodes) for each in self._of_node(node)]
        found = [*self._of_metadata(members), *self._clocks.conditions(), *nodes, *self._of_logs()]
        return in_order(found)

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
        replacement = self._operator.replacement_condition(node)
        if replacement is not None:
            yield replacement
        elif not self._nodes.reachable(node):
            yield self._absence(node)
        if (drain := self._operator.drain_condition(node)) is not None:
            yield drain
        for keeper in self._keepers.values():
            yield from keeper.node_conditions(node)
        connected = self._nodes.get(node)
        if connected is not None and connected.connection is not None:
            yield from connected.conditions

    def _absence(self, node: NodeId) -> Condition:
        if reason := "" if self._nodes.connected(node) else self._nodes.turned_away(node):
            text = f"is there, but may not take part: {reason}"
            return Condition(Kind.NODE_HELD_BACK, text, node=node)
        helps = f"start its vsn; if its disks are lost: `loom node replace {node}`"
        return Condition(Kind.NODE_AWAY, "is away", helps, node=node)

    def _of_logs(self) -> Iterator[Condition]:
        if self._gate.condition:  # what is known of logs may be old
            return
        for name in sorted(self._catalog.logs):
            log = self._catalog.logs[name]
            if not log.unfinished:
                for keeper in self._keepers.values():
                    yield from keeper.conditions(log)
