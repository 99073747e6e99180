"""One data file: batches in LLSN order, and the sparse index to find them.

The file may be longer than its data, and the data may be followed by stale batches from an earlier
use of the file. So a batch is valid only if its checksums, its stream and its LLSN are right, and
its epoch is not below that of the previous batch. Stale batches have other LLSNs or older epochs.

The loop adds to a data file while readers in other threads use it. Nothing is removed under a
reader except by `cut`, which removes only uncommitted entries.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from loomlog.batch import HEADER_BYTES, Header, read_header
from loomlog.errors import Corrupt, InvalidArgument, Trimmed
from loomlog.limits import APPENDS_IN_FLIGHT_MAX, KIB
from loomlog.storage.files import FileWindow, Read, from_disk
from loomlog.storage.ordered.data_index import DataIndex
from loomlog.storage.ordered.journal import Channel, ChannelFile
from loomlog.types import Llsn, ProducerMark, StreamId

_SEEK_BYTES = 64 * KIB
_CURSORS_MAX = 256  # remembered places where readers will continue
_NEVER_US = -(1 << 63)
_UNKNOWN_US = (1 << 63) - 1  # the time of batches whose headers are lost: never skipped


class StoredBatch(NamedTuple):
    """A stored batch as it was read. The view is writable."""

    header: Header
    view: memoryview


class Broken(NamedTuple):
    """A damaged stored batch."""

    llsn: Llsn  # its first LLSN
    offset: int
    next_llsn: Llsn  # where the next sound batch may begin
    reason: str
    lost: bool = False  # no other replica has a sound copy


class Examined(NamedTuple):
    """The result of examining stored batches, up to the first broken one."""

    next_llsn: Llsn  # all batches from the requested LLSN to here are sound
    size: int  # number of bytes examined
    broken: Broken | None


class Producers:
    """The last batches of each producer in a data file, which serve to recognise retries. They are
    saved in the index, so that a restart need not read the data.

    As many are kept per producer as a client may have in flight, because any of these may be sent
    again. Producer 0 means that there is none."""

    __slots__ = ("_marks",)

    def __init__(self, marks: Iterable[ProducerMark] = ()) -> None:
        self._marks: dict[int, deque[ProducerMark]] = {}
        for mark in marks:
            self._add(mark)

    def note(self, header: Header) -> None:
        if header.producer_id:
            self._add(
                ProducerMark(header.producer_id, header.sequence, header.first_llsn, header.count)
            )

    def cut(self, last_llsn: Llsn) -> None:
        """Forget the batches above `last_llsn`."""
        for marks in self._marks.values():
            while marks and marks[-1].first_llsn > last_llsn:
                marks.pop()

    def _add(self, mark: ProducerMark) -> None:
        marks = self._marks.get(mark.producer_id)
        if marks is None:
            marks = self._marks[mark.producer_id] = deque(maxlen=APPENDS_IN_FLIGHT_MAX)
        marks.append(mark)

    def __iter__(self) -> Iterator[ProducerMark]:
        """Yield the marks of each producer, oldest first."""
        for marks in self._marks.values():
            yield from marks


class DataFile(ChannelFile):
    """A data file. A new one is created and opened by the worker."""

    def __init__(
        self,
        path: str,
        stream_id: StreamId,
        first_llsn: Llsn,
        capacity: int,
        channel: Channel,
        index_interval_bytes: int,
    ) -> None:
        super().__init__(path, channel)
        self.stream_id = stream_id
        self.first_llsn = first_llsn
        self.next_llsn = first_llsn
        self.capacity = capacity
        self.allocated = capacity
        self.end = 0  # bytes that hold batches
        self.last_epoch = 0
        self.latest_us = _NEVER_US  # no timestamp is later
        self.dropped = False  # trimmed; the file may already be reused
        self.producers = Producers()
        self.is_followed = False  # non-zero bytes followed the data when it was scanned
        self._is_end_known = True  # False: the headers of the last batches are lost
        self.producers_from: Llsn = 0  # the headers of some batches below are lost
        self._interval = index_interval_bytes
        self._llsns = array("Q")
        self._offsets = array("Q")
        self._times_us = array("q")  # the latest time of each piece of the index
        self._cursors: dict[Llsn, int] = {}

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(".seg") + ".idx"

    # ---- growing and shrinking --------------------------------------------------------

    def has_room(self, size: int) -> bool:
        return self.end + size <= self.capacity

    def add(self, header: Header) -> int:
        """Add a batch at the end. Return its offset in the file."""
        offset = self.end
        if not self._offsets or offset - self._offsets[-1] >= self._interval:
            self._begin_piece(_NEVER_US)
        latest_us = header.max_timestamp_us
        if latest_us > self._times_us[-1]:
            self._times_us[-1] = latest_us
        if latest_us > self.latest_us:
            self.latest_us = latest_us
        self.producers.note(header)
        self.end = offset + header.size
        self.next_llsn = header.first_llsn + header.count
        self.last_epoch = header.epoch
        return offset

    def skip(self, end: int, next_llsn: Llsn, *, is_end_known: bool) -> None:
        """Add batches whose headers are lost. `is_end_known`: they end exactly at `end`."""
        self._begin_piece(_UNKNOWN_US)
        self.latest_us = _UNKNOWN_US
        self._is_end_known = is_end_known
        self.end, self.next_llsn = end, next_llsn
        self.producers_from = next_llsn
        self._begin_piece(_NEVER_US)

    def _begin_piece(self, latest_us: int) -> None:
        """Begin a piece of the index at the end of the data."""
        self._offsets.append(self.end)  # before `_llsns`, by which readers find it
        self._times_us.append(latest_us)
        self._llsns.append(self.next_llsn)

    def cut(self, end: int, last_llsn: Llsn, last_epoch: int) -> None:
        """Forget the batches above `last_llsn`."""
        self.end, self.next_llsn, self.last_epoch = end, last_llsn + 1, last_epoch
        keep = bisect_right(self._llsns, last_llsn)
        del self._llsns[keep:]
        del self._offsets[keep:]
        del self._times_us[keep:]
        self._cursors = {}
        self.producers.cut(last_llsn)

    def index(self) -> DataIndex:
        return DataIndex(
            self.first_llsn,
            self.next_llsn - 1,
            self.end,
            self.last_epoch,
            self._llsns,
            self._offsets,
            self._times_us,
            list(self.producers),
        )

    def restore(self, index: DataIndex) -> None:
        """Restore the state from the index, without reading the data."""
        self.next_llsn = index.last_llsn + 1
        self.end = index.end
        self.last_epoch = index.last_epoch
        self._llsns, self._offsets = index.llsns, index.offsets
        self._times_us = index.times_us
        self.latest_us = max(index.times_us, default=_NEVER_US)
        self.producers = Producers(map(ProducerMark._make, index.marks))

    # ---- reading --------------------------------------------------------------------------

    def read(
        self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int, read: Read
    ) -> list[StoredBatch]:
        """Return batches, beginning with the one that holds `first_llsn`: at least one, none that
        starts above `last_llsn`, and otherwise no more than `max_bytes`."""
        offset = self._cursors.get(first_llsn)
        if offset is None:
            offset = self._seek(first_llsn, read)
        size = min(max(max_bytes, HEADER_BYTES), self._next_piece(last_llsn)[1] - offset)
        data = memoryview(read(self.file, size, offset))
        try:
            header = read_header(data)
        except Corrupt as error:
            raise self._broken(offset, first_llsn, error) from error
        if header.size > len(data):
            data = memoryview(read(self.file, header.size, offset))
        batches = self._take(data, offset, first_llsn, last_llsn)
        self._remember(batches[-1].header.last_llsn + 1, offset + sum(len(b.view) for b in batches))
        return batches

    def examine(self, llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Examined:
        """Check batches, beginning at or below `llsn`, up to the last that starts at or below
        `last_llsn`. Blocking."""
        start, llsn = self._nearest(llsn)
        offset = start
        window = FileWindow(self.file, from_disk, max_bytes, self.end)
        while offset < self.end and llsn <= last_llsn and offset - start < max_bytes:
            header: Header | None = None
            try:
                header = read_header(window.at(offset, HEADER_BYTES))
                self.expect(header, llsn)
                check_body(header, window.at(offset, header.size))
            except Corrupt as error:
                if self.dropped:
                    raise self._broken(offset, llsn, error) from error
                broken = Broken(llsn, offset, self._next_after(llsn, offset, header), str(error))
                return Examined(llsn, offset - start, broken)
            offset += header.size
            llsn = header.last_llsn + 1
        self._remember(llsn, offset)
        return Examined(llsn, offset - start, None)

    def is_written(self) -> bool:
        """Return whether the last batches can be read back. Blocking."""
        last = self.next_llsn - 1
        start, llsn = self._nearest(last)
        return self.examine(llsn, last, self.end - start + 1).broken is None

    def find_time(self, timestamp_us: int, first_llsn: Llsn, last_llsn: Llsn) -> Header | None:
        """Return the first batch with an entry of that time or later, among those that hold
        `first_llsn` to `last_llsn`. Timestamps may be in any order. Blocking."""
        begin = max(bisect_right(self._llsns, first_llsn) - 1, 0)
        for piece in range(begin, bisect_right(self._llsns, last_llsn)):
            if self._times_us[piece] < timestamp_us:
                continue
            for header in self._headers(piece, last_llsn):
                if header.last_llsn >= first_llsn and header.max_timestamp_us >= timestamp_us:
                    return header
        return None

    def offset_of(self, llsn: Llsn) -> int:
        """Return the offset of the first batch that begins at or above `llsn`. Blocking."""
        piece = bisect_right(self._llsns, llsn) - 1
        if piece < 0:
            return 0
        offset = self._offsets[piece]
        for header in self._headers(piece, llsn - 1):
            if header.first_llsn >= llsn:
                break
            offset += header.size
        return offset

    def _headers(self, piece: int, last_llsn: Llsn) -> Iterator[Header]:
        """Yield the headers of one piece of the index, up to `last_llsn`."""
        offset, llsn = self._offsets[piece], self._llsns[piece]
        _, end = self._next_piece(llsn)
        window = FileWindow(self.file, from_disk, _SEEK_BYTES, end)
        while llsn <= last_llsn and offset < end:
            try:
                header = read_header(window.at(offset, HEADER_BYTES))
                self.expect(header, llsn)
            except Corrupt as error:
                raise self._broken(offset, llsn, error) from error
            yield header
            offset += header.size
            llsn = header.last_llsn + 1

    def _nearest(self, llsn: Llsn) -> tuple[int, Llsn]:
        """Return the nearest known batch start at or below `llsn`, without reading."""
        offset = self._cursors.get(llsn)
        if offset is not None:
            return offset, llsn
        position = bisect_right(self._llsns, llsn) - 1
        return self._offsets[position], self._llsns[position]

    def _next_after(self, llsn: Llsn, offset: int, header: Header | None) -> Llsn:
        """Return the first LLSN after a broken batch where a batch can be found."""
        if header is not None and header.first_llsn == llsn:
            self._remember(header.last_llsn + 1, offset + header.size)
            return header.last_llsn + 1
        return self._next_piece(llsn)[0]

    def check_place(self, broken: Broken, header: Header) -> None:
        """Raise InvalidArgument unless a batch fits in the place of the broken one."""
        next_llsn, next_offset = self._next_piece(broken.llsn)
        entries = next_llsn - header.last_llsn - 1
        room = next_offset - broken.offset - header.size
        is_dense = (entries == 0) == (room == 0) or not self._is_end_known
        fits = min(entries, room) >= 0 and is_dense
        if not fits or header.stream_id != self.stream_id or header.first_llsn != broken.llsn:
            raise InvalidArgument(
                f"{self.path} at {broken.offset}: no place for LLSN {header.first_llsn} to "
                f"{header.last_llsn} of stream {header.stream_id} in {header.size} bytes"
            )

    def find_end(self, last_llsn: Llsn, previous_epoch: int) -> tuple[int, int]:
        """Return where the data ends if `last_llsn` is to be the last entry, and the epoch there.
        Blocking."""
        if last_llsn < self.first_llsn:
            return 0, previous_epoch
        try:
            offset = self._seek(last_llsn, from_disk)
        except Corrupt:
            next_llsn, end = self._next_piece(last_llsn)
            if next_llsn != last_llsn + 1:
                raise
            return end, previous_epoch  # its own header is lost
        header = read_header(self.file.read(HEADER_BYTES, offset))
        if header.last_llsn != last_llsn:
            raise InvalidArgument(
                f"{self.path}: LLSN {last_llsn} is inside the batch {header.first_llsn} to "
                f"{header.last_llsn}; cut between batches"
            )
        return offset + header.size, header.epoch

    def _seek(self, llsn: Llsn, read: Read) -> int:
        """Return the offset of the batch with `llsn`: from the index, then header by header."""
        offset = self._offsets[bisect_right(self._llsns, llsn) - 1]
        window = FileWindow(self.file, read, _SEEK_BYTES, self.end)
        while True:
            try:
                header = read_header(window.at(offset, HEADER_BYTES))
                if header.stream_id != self.stream_id or header.first_llsn > llsn:
                    raise Corrupt(f"LLSN {header.first_llsn} of stream {header.stream_id} is here")
            except Corrupt as error:
                raise self._broken(offset, llsn, error) from error
            if header.last_llsn >= llsn:
                return offset
            offset += header.size

    def _take(
        self, data: memoryview, offset: int, first_llsn: Llsn, last_llsn: Llsn
    ) -> list[StoredBatch]:
        batches: list[StoredBatch] = []
        at, llsn = 0, first_llsn
        # Batches above `last_llsn` may not be written yet: not even their headers are valid.
        while at + HEADER_BYTES <= len(data) and (not batches or llsn <= last_llsn):
            try:
                header = read_header(data, at)
                view = data[at : at + header.size]
                if batches:
                    if len(view) < header.size:
                        break
                    self.expect(header, llsn)
                elif not header.first_llsn <= llsn <= header.last_llsn:
                    raise Corrupt(f"LLSNs {header.first_llsn} to {header.last_llsn} are here")
                self.expect(header, header.first_llsn)
                check_body(header, view)
            except Corrupt as error:
                raise self._broken(offset + at, llsn, error) from error
            batches.append(StoredBatch(header, view))
            at += header.size
            llsn = header.last_llsn + 1
        return batches

    def expect(self, header: Header, llsn: Llsn) -> None:
        """Raise Corrupt unless this is the header of the batch that begins at `llsn`."""
        if header.stream_id != self.stream_id or header.first_llsn != llsn:
            raise Corrupt(f"LLSN {header.first_llsn} of stream {header.stream_id} is here")

    def _next_piece(self, llsn: Llsn) -> tuple[Llsn, int]:
        """Return the first LLSN and the offset of the first index piece above `llsn`, or of the end
        of the data."""
        above = bisect_right(self._llsns, llsn)
        if above < len(self._llsns):
            return self._llsns[above], self._offsets[above]
        return self.next_llsn, self.end

    def _remember(self, llsn: Llsn, offset: int) -> None:
        if len(self._cursors) >= _CURSORS_MAX:
            self._cursors = {}
        if offset < self.end:
            self._cursors[llsn] = offset

    def _broken(self, offset: int, llsn: Llsn, error: Corrupt) -> Corrupt | Trimmed:
        if self.dropped:
            return Trimmed(f"stream {self.stream_id}: LLSN {llsn} was trimmed")
        return Corrupt(f"{self.path} at {offset}, stream {self.stream_id}, LLSN {llsn}: {error}")


def check_body(header: Header, view: memoryview) -> None:
    """Raise Corrupt unless the body of the batch is complete and sound."""
    if len(view) < header.size:
        raise Corrupt(f"cut off after {len(view)} of {header.size} bytes")
    if crc32c(view[HEADER_BYTES:]) != header.body_crc:
        raise Corrupt("the body does not match its checksum")
