"""What the rest of the metadata repository asks of a protocol. Words only."""

from __future__ import annotations

from typing import Protocol

from loomlog.core.segments import Segment, Successor
from loomlog.metadata.records import LogRecord
from loomlog.types import Glsn, LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb


class Keeper(Protocol):
    """What one protocol does for its segments. Everything may be asked again."""

    async def make(self, log: LogRecord, successor: Successor) -> None:
        """Have its loglet ready, empty; any LoomError: it cannot be made."""

    def chain_changed(self, log: LogRecord) -> None:
        """The log has other segments, or a successor that is ready: its segment is to be sealed."""

    async def why_not_sealed(self, segment: Segment) -> str:
        """Why it could not be sealed now; empty: nothing is known that hinders it."""

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        """As core.loglet.Loglet.seal."""

    async def begin(self, log: LogRecord, segment: Segment) -> None:
        """Let it take appends, from its start on."""

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        """A loglet that never began."""


class LoneKeeper(Keeper, Protocol):
    """A protocol that does without commit rounds, and keeps records of its own. Its segments show
    one stream each, whose LLSNs are the positions."""

    def known_tail(self, segment: Segment) -> Glsn:
        """The last position that is known."""

    async def find_tail(self, segment: Segment) -> Glsn:
        """At or above all that was acknowledged before this was asked, whoever has to be asked."""

    async def trim(self, log: LogRecord) -> None:
        """As far as the log is trimmed, on the nodes that can be reached; the others later."""

    def deleted(self, log: LogRecord) -> None:
        """The log is gone: so is all that it had here, sooner or later."""

    def streams(self, log: LogRecord) -> list[pb.LogStream]: ...

    def has_stream(self, stream_id: StreamId) -> bool: ...

    def version_of(self, log: LogRecord) -> int: ...

    def placement(self) -> list[tuple[NodeId, ...]]:
        """On which nodes there are replicas that belong together, first the busiest."""

    def replicas_on(self, node: NodeId) -> list[tuple[NodeId, ...]]:
        """For each replica on a node, those that belong together."""

    def kept_on(self, node: NodeId) -> list[str]:
        """Names of the logs of which it has something that nobody copies elsewhere."""

    def can_leave(self, node: NodeId) -> bool:
        """There are spare nodes for all that it has."""

    async def clean_up(self, node: NodeId) -> int:
        """Delete what it has that nobody knows of: so many replicas."""

    def node_joined(self, node: NodeId) -> None:
        """It registered."""

    def node_changed(self, node: NodeId, *, alive: bool) -> None:
        """It fell silent, speaks again, or an operator wants something else of it."""
