"""An append that a client sent, until it is answered."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loomlog import batch
from loomlog.core.copyset.record import Epoch, Lsn
from loomlog.errors import LoomError
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame


@dataclass(eq=False, slots=True)
class Append:
    """One append. The sequencer gets it as the opaque token of the batch."""

    codec: Codec
    connection: Connection
    request_id: int
    header: batch.Header
    batch: bytearray | memoryview
    repeated: bool = False  # an earlier attempt may have been taken
    epoch: Epoch = 0  # that it may be placed in; if repeated, the first one; 0: any

    @classmethod
    def of(cls, codec: Codec, connection: Connection, frame: Frame, payload: memoryview) -> Append:
        """Return the append in a frame; raises Corrupt."""
        header, order = batch.check(payload), frame.copyset_append
        return cls(codec, connection, frame.id, header, payload, order.repeated, order.epoch)

    def fits(self, epoch: Epoch) -> bool:
        """Return whether the append may be taken in this epoch. The client may have repeated it:
        then a sequencer that knows all earlier epochs takes it, and an earlier one must not."""
        later = self.repeated and self.epoch < epoch
        return later or self.epoch in (0, epoch)

    def place(self, stream: StreamId, epoch: int, lsn: Lsn) -> None:
        """Give the batch its place in the log."""
        batch.assign_llsn(self.batch, stream, epoch, lsn)
        batch.assign_position(self.batch, lsn)

    def anew(self, epoch: Epoch) -> Append:
        """Return the append for this epoch, when it is in none before. It gets a copy of the batch:
        parts of the old one may still be on their way."""
        return replace(self, batch=bytearray(self.batch), repeated=False, epoch=epoch)

    def succeeded(self, lsn: Lsn) -> None:
        answer = pb.Appended(first_glsn=lsn, first_llsn=lsn)
        self.connection.send(pb.Frame(id=self.request_id, reply=True, appended=answer))

    def not_taken(self, epoch: Epoch) -> None:
        """Answer that it is nowhere: the client may send it again for this epoch."""
        answer = pb.CopysetTail(epoch=epoch)
        self.connection.send(pb.Frame(id=self.request_id, reply=True, copyset_tail=answer))

    def failed(self, error: LoomError) -> None:
        frame = self.codec.failure_frame(error)
        frame.id, frame.reply = self.request_id, True
        self.connection.send(frame)
