"""Appends that a primary has taken and not answered yet, in the order of their LLSNs."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from loomlog.errors import LoomError
from loomlog.types import CommitContext, Llsn
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection


class WaitingAppend(NamedTuple):
    first_llsn: Llsn
    last_llsn: Llsn
    connection: Connection
    request_id: int
    size: int


class WaitingAppends:
    """The waiting appends of one replica."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._appends: deque[WaitingAppend] = deque()
        self.bytes = 0

    def add(self, append: WaitingAppend) -> None:
        self._appends.append(append)
        self.bytes += append.size

    def redirect(self, first_llsn: Llsn, connection: Connection, request_id: int) -> bool:
        """Send the answer of an append to another request; return False if it does not wait."""
        for number, append in enumerate(self._appends):
            if append.first_llsn == first_llsn:
                self._appends[number] = append._replace(
                    connection=connection, request_id=request_id
                )
                return True
        return False

    def answer(self, commit: CommitContext) -> None:
        """Answer the appends that the commit covers."""
        appends, last = self._appends, commit.last_llsn
        distance = commit.glsn - commit.llsn
        while appends and appends[0].last_llsn <= last:
            append = appends.popleft()
            self.bytes -= append.size
            answer = pb.Appended(
                first_glsn=append.first_llsn + distance, first_llsn=append.first_llsn
            )
            append.connection.send(pb.Frame(id=append.request_id, reply=True, appended=answer))

    def refuse(self, after_llsn: Llsn, error: LoomError) -> None:
        """Refuse the appends past an LLSN; the others go on waiting."""
        while self._appends and self._appends[-1].last_llsn > after_llsn:
            append = self._appends.pop()
            self.bytes -= append.size
            frame = self._codec.failure_frame(error)
            frame.id, frame.reply = append.request_id, True
            append.connection.send(frame)

    def doubt(self) -> None:
        """Answer all without a position: their LLSNs may have been given to others since, and the
        clients find out the outcome."""
        for append in self._appends:
            answer = pb.Frame(id=append.request_id, reply=True, appended=pb.Appended())
            append.connection.send(answer)
        self.clear()

    def clear(self) -> None:
        self._appends.clear()
        self.bytes = 0
