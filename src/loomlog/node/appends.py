"""Appends to a replica: those that are not answered yet, and recent batches, to recognise repeats.

The last APPENDS_IN_FLIGHT_MAX batches of each producer are remembered, in the order in which they
were stored. That suffices because a client has at most that many in flight on a stream, and sends
nothing new there while the outcome of one of them is unknown.

Every stored batch must be noted, whether it came from a client, a primary or a copy: after the
answer "not here" a client appends its records elsewhere.

If there are more than PRODUCER_MARKS_MAX batches in total, the producers that have been silent for
longest are forgotten. So a batch is remembered at least until that many others were stored.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from loomlog.errors import AppendUnknown, LoomError, Unavailable
from loomlog.limits import APPENDS_IN_FLIGHT_MAX, PRODUCER_MARKS_MAX
from loomlog.types import CommitContext, Glsn, Llsn, ProducerMark
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection


class WaitingAppend(NamedTuple):
    """An append that is answered when it is committed."""

    first_llsn: Llsn
    last_llsn: Llsn
    connection: Connection
    request_id: int
    size: int


def appended(request_id: int, first_glsn: Glsn, first_llsn: Llsn) -> pb.Frame:
    """Return the answer to an append."""
    frame = pb.Frame()
    frame.id, frame.reply = request_id, True
    answer = frame.appended  # filled in place, because assigning a message would copy it
    answer.first_glsn, answer.first_llsn = first_glsn, first_llsn
    return frame


class WaitingAppends:
    """Appends that a primary has accepted and not answered yet, in order of their LLSNs."""

    def __init__(self) -> None:
        self._appends: deque[WaitingAppend] = deque()
        self.bytes = 0

    def add(self, append: WaitingAppend) -> None:
        self._appends.append(append)
        self.bytes += append.size

    def redirect(self, first_llsn: Llsn, connection: Connection, request_id: int) -> bool:
        """Let another request wait for an append in place of the original one. Return False if the
        append is not waiting."""
        for number, append in enumerate(self._appends):
            if append.first_llsn == first_llsn:
                append.connection.end_request(append.request_id)
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
            first = append.first_llsn
            append.connection.send(appended(append.request_id, first + distance, first))

    def refuse(self, after_llsn: Llsn, error: LoomError) -> None:
        """Refuse the appends past an LLSN; the others keep waiting."""
        while self._appends and self._appends[-1].last_llsn > after_llsn:
            append = self._appends.pop()
            self.bytes -= append.size
            append.connection.refuse(append.request_id, error)

    def doubt(self) -> None:
        """Answer all appends without a position: other batches may have got their LLSNs, so the
        clients have to find out the outcome."""
        for append in self._appends:
            append.connection.send(appended(append.request_id, 0, 0))
        self.clear()

    def clear(self) -> None:
        self._appends.clear()
        self.bytes = 0


class _Window:
    """The last batches of one producer."""

    __slots__ = ("dropped", "highest", "marks")

    def __init__(self) -> None:
        self.marks: deque[tuple[int, Llsn]] = deque()  # sequence, first LLSN; in order of storing
        self.highest = 0
        self.dropped = 0  # the highest forgotten sequence number: up to it nothing is certain


class ProducerTable:
    """The producers of one replica, in order of their last append."""

    def __init__(
        self,
        marks: Iterable[ProducerMark] = (),
        known_from: Llsn = 1,
        *,
        marks_max: int = PRODUCER_MARKS_MAX,
    ) -> None:
        """`marks` are those of the batches on disk; batches below `known_from` are trimmed or
        lost."""
        self._windows: OrderedDict[int, _Window] = OrderedDict()
        self._count = 0
        self._marks_max = marks_max
        self._known_from = known_from
        for mark in sorted(marks, key=lambda mark: mark.first_llsn):
            self.note(mark.producer_id, mark.sequence, mark.first_llsn)
        for window in self._windows.values():
            if len(window.marks) == APPENDS_IN_FLIGHT_MAX:  # the disk keeps no more than these
                window.dropped = min(sequence for sequence, _ in window.marks) - 1

    def note(self, producer_id: int, sequence: int, first_llsn: Llsn) -> None:
        """Note a stored batch. Producer 0 means that there is none."""
        if not producer_id:
            return
        window = self._windows.get(producer_id)
        if window is None:
            window = self._windows[producer_id] = _Window()
        else:
            self._windows.move_to_end(producer_id)
        marks = window.marks
        marks.append((sequence, first_llsn))
        if sequence > window.highest:
            window.highest = sequence
        if len(marks) > APPENDS_IN_FLIGHT_MAX:
            dropped, _ = marks.popleft()
            if dropped > window.dropped:
                window.dropped = dropped
            return
        self._count += 1
        while self._count > self._marks_max and len(self._windows) > 1:
            self._count -= len(self._windows.popitem(last=False)[1].marks)

    def find(self, producer_id: int, sequence: int) -> Llsn:
        """Return the first LLSN of a batch; 0 if it is not here. Raise AppendUnknown if it is too
        old to tell."""
        window = self._windows.get(producer_id)
        if window is None or sequence > window.highest:
            return 0
        for noted, first_llsn in window.marks:
            if noted == sequence:
                return first_llsn
        if sequence <= window.dropped:
            raise AppendUnknown(
                f"batch {sequence} of producer {producer_id} is too old to tell whether it was "
                f"appended: this stream knows its last {APPENDS_IN_FLIGHT_MAX} only"
            )
        return 0

    def find_certain(self, producer_id: int, sequence: int) -> Llsn:
        """Like `find`, but raise Unavailable if the batch may have been trimmed before the table
        was read from disk. A lower sequence number of the producer proves that it was not."""
        first_llsn = self.find(producer_id, sequence)
        if first_llsn or self._known_from == 1:
            return first_llsn
        window = self._windows.get(producer_id)
        if window is None or not (window.dropped or any(s < sequence for s, _ in window.marks)):
            raise Unavailable(
                f"batch {sequence} of producer {producer_id} is not here, but entries below LLSN "
                f"{self._known_from} were trimmed before this replica came, or are damaged: ask "
                "another"
            )
        return 0

    def cut(self, last_llsn: Llsn) -> None:
        """Forget the batches above `last_llsn`, which were dropped."""
        emptied = []
        for producer_id, window in self._windows.items():
            marks = window.marks
            if marks and marks[-1][1] <= last_llsn:
                continue  # later windows may still have some: a cut does not reorder them
            while marks and marks[-1][1] > last_llsn:
                marks.pop()
                self._count -= 1
            window.highest = max((window.dropped, *(sequence for sequence, _ in marks)))
            if not window.highest:
                emptied.append(producer_id)
        for producer_id in emptied:
            del self._windows[producer_id]
