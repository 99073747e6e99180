"""An append that a client sent, until it is answered."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loomlog import batch
from loomlog.core.copyset.lsn import Lsn
from loomlog.errors import LoomError
from loomlog.net.connection import Connection, Frame
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec


@dataclass(eq=False, slots=True)
class Append:
    """It is its own token for the sequencer."""

    codec: Codec
    connection: Connection
    request_id: int
    header: batch.Header
    batch: bytearray | memoryview
    previous: Lsn = 0  # that an earlier attempt was given
    repeated: bool = False  # an earlier attempt may have been taken

    @classmethod
    def of(cls, codec: Codec, connection: Connection, frame: Frame, payload: memoryview) -> Append:
        """Raises Corrupt."""
        header, order = batch.check(payload), frame.copyset_append
        return cls(*(codec, connection, frame.id, header, payload), order.previous, order.repeated)

    def place(self, stream: StreamId, epoch: int, lsn: Lsn) -> None:
        """Give the batch its place in the log."""
        batch.assign_llsn(self.batch, stream, epoch, lsn)
        batch.assign_position(self.batch, lsn)

    def anew(self) -> Append:
        """To be appended elsewhere. Parts of the old one may still be on their way to nodes."""
        return replace(self, batch=bytearray(self.batch), previous=0, repeated=False)

    def succeeded(self, lsn: Lsn) -> None:
        answer = pb.Appended(first_glsn=lsn, first_llsn=lsn)
        self.connection.send(pb.Frame(id=self.request_id, reply=True, appended=answer))

    def failed(self, error: LoomError) -> None:
        frame = self.codec.failure_frame(error)
        frame.id, frame.reply = self.request_id, True
        self.connection.send(frame)
