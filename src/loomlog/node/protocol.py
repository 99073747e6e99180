"""The interface of a replication protocol on a storage node.

A node runs one `NodeProtocol` of each kind in the table of registry.py, and treats them all alike.
Each of them keeps its own data on the node's disks, answers requests about it, and adds what it has
to the messages that the node sends to the metadata repository.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from loomlog.core.conditions import Condition
from loomlog.errors import InvalidArgument
from loomlog.node.disks import Disks
from loomlog.node.metadata_link import MetadataLink
from loomlog.node.scrubber import ScrubNotes
from loomlog.node.volume import Volume
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Route, Service


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The parts of a node that its protocols share."""

    node_id: NodeId
    codec: Codec
    disks: Disks
    link: MetadataLink
    requests: Service  # answers clients and peers; work that it spawns ends with it
    random: Random


class NodeProtocol:
    """One protocol on one node. By default it stores nothing and answers nothing."""

    # ---- requests

    def routes(self) -> dict[str, Route]:
        """Return what clients and other nodes may ask, by kind of message."""
        return {}

    def orders(self) -> dict[str, Route]:
        """Return what only the metadata repository may ask, by kind of message."""
        return {}

    def request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        """Handle a `protocol_message`: for protocols without messages of their own."""
        name = frame.protocol_message.protocol
        raise InvalidArgument(f"protocol {name!r} has messages of its own: use those")

    def loglet_of(self, stream: StreamId) -> LogId | None:
        """Return the loglet of a stream that requests to this node name; None if it has none."""
        return None

    def connection_closed(self, connection: Connection) -> None:
        """Called when a client or another node is gone."""

    # ---- the metadata repository

    def register(self, message: pb.Register) -> None:
        """Add all that is stored here to the registration."""

    def registered(self, answer: pb.Registered) -> None:
        """Called when the metadata repository has taken this node in."""

    def report(self, message: pb.GetReportResponse) -> None:
        """Add what heartbeats report."""

    def conditions(self) -> list[Condition]:
        """Return what operators should know."""
        return []

    def restrictions(self, message: pb.NodeConditions) -> None:
        """Add what this node cannot do for now."""

    async def list_holdings(self, message: pb.Holdings) -> None:
        """Add all that is stored here: asked when metadata is older than the nodes."""

    def stored(self) -> Iterable[pb.StoredReplica]:
        """Return where on the disks each replica is."""
        return ()

    def sizes(self) -> dict[tuple[LogId, int], int]:
        """Return about how many bytes are stored of each part (a chain, or a shard) of a loglet,
        apart from those in reports of streams."""
        return {}

    @property
    def stored_bytes(self) -> int:
        """About how many bytes are stored here, apart from those in reports of streams."""
        return 0

    async def scrub(self, notes: ScrubNotes) -> None:
        """Read and check all that is stored here, or what the notes want, once, and repair what is
        damaged."""

    # ---- life

    def volume_changed(self, volume: Volume) -> None:
        """Called when a volume failed, lost directories, or works again."""

    def begin_stop(self) -> None:
        """Called first when the node stops, while it is still connected to everybody."""

    async def finish(self) -> None:
        """Called when clients are gone, but the metadata repository can still be reached."""

    async def stop(self) -> None:
        """Called when no peer is connected any more. The disks are closed afterwards."""


MakeProtocol: TypeAlias = Callable[[NodeContext], NodeProtocol]
