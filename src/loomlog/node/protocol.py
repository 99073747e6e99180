"""The interface of a replication protocol on a storage node.

A node runs one `NodeProtocol` of each kind in registry.py, and treats all of them alike. Each keeps
its own data on the node's disks, answers requests about it, and contributes to the messages that
the node sends to the metadata repository.
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
    requests: Service  # answers clients and peers; tasks that it spawns end with it
    random: Random


class NodeProtocol:
    """One protocol on one node. By default it stores nothing and answers nothing."""

    # ---- requests

    def routes(self) -> dict[str, Route]:
        """Return the handlers of requests from clients and other nodes, by kind of message."""
        return {}

    def orders(self) -> dict[str, Route]:
        """Return the handlers of requests that only the metadata repository may send, by kind of
        message."""
        return {}

    def request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        """Handle a `protocol_message`, which protocols without messages of their own use."""
        name = frame.protocol_message.protocol
        raise InvalidArgument(f"protocol {name!r} has messages of its own: use those")

    def loglet_of(self, stream: StreamId) -> LogId | None:
        """Return the loglet of a stream on this node; None if the stream is not here."""
        return None

    def connection_closed(self, connection: Connection) -> None:
        """Called when the connection of a client or another node is closed."""

    # ---- the metadata repository

    def register(self, message: pb.Register) -> None:
        """Add everything that is stored here to the registration."""

    def registered(self, answer: pb.Registered) -> None:
        """Called when the metadata repository has registered this node."""

    def report(self, message: pb.GetReportResponse) -> None:
        """Add to a report or heartbeat."""

    def conditions(self) -> list[Condition]:
        """Return the conditions that operators should know."""
        return []

    def restrictions(self, message: pb.NodeConditions) -> None:
        """Add what this node cannot do at the moment."""

    async def list_holdings(self, message: pb.Holdings) -> None:
        """Add everything that is stored here. Used when metadata is older than the nodes."""

    def stored(self) -> Iterable[pb.StoredReplica]:
        """Return the place of each replica on the disks."""
        return ()

    def sizes(self) -> dict[tuple[LogId, int], int]:
        """Return the approximate size in bytes of each part (chain or shard) of a loglet, except
        for streams, whose reports have it."""
        return {}

    @property
    def stored_bytes(self) -> int:
        """Approximately how many bytes are stored here, except for streams, whose reports have
        it."""
        return 0

    async def scrub(self, notes: ScrubNotes) -> None:
        """Check everything that is stored here, or only what `notes` wants, once, and repair
        damage."""

    # ---- life cycle

    def volume_changed(self, volume: Volume) -> None:
        """Called when a volume failed, lost directories, or works again."""

    def begin_stop(self) -> None:
        """Called first when the node stops, while all connections still exist."""

    async def finish(self) -> None:
        """Called when clients are disconnected, but the metadata repository is still reachable."""

    async def stop(self) -> None:
        """Called when all peers are disconnected. The disks are closed afterwards."""


MakeProtocol: TypeAlias = Callable[[NodeContext], NodeProtocol]
