"""The space for appends to a replica: on its own volume and, on a primary, on those of its backups.

When a volume is nearly full, new appends are refused. Appends that have begun are still accepted,
and use the volume's reserve.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from loomlog.errors import Busy
from loomlog.node.volume import Volume
from loomlog.types import NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection


class StreamSpace:
    """Decides whether appends to one replica are accepted."""

    def __init__(
        self, stream_id: StreamId, node_id: NodeId, volume: Volume, on_full: Callable[[], None]
    ) -> None:
        """`on_full` is called when the first append is refused."""
        self._stream_id = stream_id
        self._node_id = node_id
        self._on_full = on_full
        self._has_refused = False  # an append was refused
        self._primary: Connection | None = None  # the connection of its primary, on a backup
        self.volume = volume
        self.full_backups: dict[Connection, str] = {}  # and the reasons to refuse appends

    @property
    def lacking(self) -> str:
        """The reason to refuse appends; "" if there is room."""
        if self.volume.nearly_full:
            return f"node {self._node_id}: {self.volume.condition}"
        return next(iter(self.full_backups.values()), "")

    @property
    def refuses(self) -> str:
        """The reason why appends are refused; "" if none was refused, or there is room again."""
        self._has_refused = self._has_refused and bool(self.lacking)
        return self.lacking if self._has_refused else ""

    def refuse(self) -> None:
        """Raise Busy."""
        if not self._has_refused:
            self._has_refused = True
            self._on_full()
        raise Busy(f"stream {self._stream_id} takes no appends: {self.lacking}")

    # ---- on a backup

    def serve_primary(self, connection: Connection) -> None:
        """Notify this primary from now on when there is no room for appends."""
        self._primary = connection
        if self.volume.nearly_full:
            self.volume_changed()

    def volume_changed(self) -> None:
        """Called when the volume becomes nearly full, or has room again."""
        if self._primary is not None and not self._primary.closed:
            reason = self.lacking if self.volume.nearly_full else ""
            paused = pb.ReplicationPaused(log_stream_id=self._stream_id, reason=reason)
            self._primary.send(pb.Frame(replication_paused=paused))

    # ---- on a primary

    def backup_paused(self, connection: Connection, reason: str) -> None:
        """Called when a backup becomes nearly full, or has room again (reason "")."""
        self.full_backups.pop(connection, None)
        if reason:
            self.full_backups[connection] = reason

    def keep_backups(self, connections: Collection[Connection]) -> None:
        """Forget all backups but these."""
        for connection in set(self.full_backups).difference(connections):
            del self.full_backups[connection]
