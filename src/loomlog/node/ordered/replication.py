"""Connections from this node, as a primary, to its backups: one per peer, FIFO, pipelined.

Backups send no acknowledgements: the commit serves as one. When a connection is lost or a backup
refuses, the streams replicated over it seal themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loomlog.errors import LoomError, Timeout
from loomlog.types import Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Links

OnFailure = Callable[[StreamId, str], None]
OnPause = Callable[[StreamId, Connection, str], None]


class Backups:
    """All peers that this node replicates to."""

    def __init__(self, codec: Codec, on_failure: OnFailure, on_pause: OnPause) -> None:
        """`on_pause` is called when a backup is nearly full, and with "" when it has room again."""
        self._on_failure = on_failure
        self._on_pause = on_pause
        self._links = Links(codec, self)
        self._streams: dict[str, set[StreamId]] = {}  # the streams replicated to each address

    async def open(
        self, stream_id: StreamId, epoch: int, next_llsn: Llsn, backups: Sequence[pb.Replica]
    ) -> list[Connection]:
        """Return connections to all backups, after they have agreed to accept the stream's entries
        from `next_llsn` on."""
        connections = []
        for backup in backups:
            address = backup.address
            connection = await self._links.connect(address, ("node", backup.storage_node_id))
            question = pb.OpenReplication(
                log_stream_id=stream_id, seal_epoch=epoch, next_llsn=next_llsn
            )
            try:
                await connection.request(pb.Frame(open_replication=question))
            except Timeout as error:
                connection.abort(error)  # it may be dead: the next attempt makes a new one
                raise
            self._streams.setdefault(address, set()).add(stream_id)
            connections.append(connection)
        return connections

    def close(self) -> None:
        self._links.close()

    # ---- Handler

    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        match kind:
            case "replication_refused":
                refused = frame.replication_refused
                self._on_failure(refused.log_stream_id, refused.reason)
            case "replication_paused":
                paused = frame.replication_paused
                self._on_pause(paused.log_stream_id, connection, paused.reason)

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        address = self._links.forget(connection)
        if address is not None:
            for stream_id in sorted(self._streams.pop(address, ())):
                self._on_failure(stream_id, str(error))
