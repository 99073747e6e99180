"""One data file: batches in LLSN order, and the sparse index to find them.

The file may be longer than its data, and what follows the data may be stale batches of an earlier
life of the file. So a batch counts only if its checksums, its stream and the expected LLSN fit and
its epoch is not below that of the batch before: stale batches have other LLSNs, or an older epoch.

Where the data stops to count, a scan tells a torn end from damage. It is damage if the file was
closed with this LLSN in it, or a batch that counts follows, and the LLSN is committed. Such a batch
stays in its place as broken. What is not committed must not count as stored if it is not whole.

The loop adds to a data file; readers in other threads look things up meanwhile. Nothing is ever
removed under a reader but by `cut`, which only takes entries that are not committed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from crc32c import crc32c

from loomlog.batch import HEADER_BYTES, MAGIC, Header, read_header
from loomlog.errors import Corrupt, InvalidArgument, Trimmed
from loomlog.limits import ALIGNMENT, APPENDS_IN_FLIGHT_MAX, KIB, MIB
from loomlog.storage.files import File, Read, from_disk
from loomlog.storage.ordered.data_index import DataIndex
from loomlog.storage.ordered.journal import Channel, ChannelFile
from loomlog.types import Llsn, StreamId

_SCAN_BYTES = 4 * MIB
_SEEK_BYTES = 64 * KIB
_CURSORS_MAX = 256  # places where readers will continue
_NEVER_US = -(1 << 63)
_UNKNOWN_US = (1 << 63) - 1  # the times of batches whose headers are lost: look at them


class StoredBatch(NamedTuple):
    """A stored batch as it was read; the view can be written to."""

    header: Header
    view: memoryview


class Broken(NamedTuple):
    """A stored batch that does not check out."""

    llsn: Llsn  # its first
    offset: int
    next_llsn: Llsn  # where a sound batch may follow
    reason: str
    lost: bool = False  # no other replica has it whole either


class Examined(NamedTuple):
    """The result of examining stored batches, up to the first broken one."""

    next_llsn: Llsn  # everything below is sound, from where it was asked
    size: int  # bytes looked at
    broken: Broken | None


class ProducerMark(NamedTuple):
    """A stored batch: what it was numbered by its producer and where it stands."""

    producer_id: int
    sequence: int
    first_llsn: Llsn
    count: int  # type: ignore[assignment]  # the batch header's word


class Producers:
    """The last batches of each producer in a data file, by which a retry is recognised. Saved in
    its index, so that a restart knows them without reading the data.

    As many per producer as a client may have in flight: any of them may be sent again. Producer 0
    is nobody."""

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
    """A data file. It is opened when the roll is carried out."""

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
        self.latest_us = _NEVER_US  # the latest timestamp; what was cut may have had it
        self.dropped = False  # trimmed; the file may already be written again
        self.producers = Producers()
        self._is_followed = False  # by bytes that are not zeros, when it was scanned
        self._is_end_known = True  # False: the headers of the last batches are lost
        self.producers_from: Llsn = 0  # the headers of some batches before this one are lost
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
        """Take in a batch at the end; where it goes in the file."""
        offset = self.end
        if not self._offsets or offset - self._offsets[-1] >= self._interval:
            self._begin_piece(_NEVER_US)
        self._times_us[-1] = max(self._times_us[-1], header.max_timestamp_us)
        self.latest_us = max(self.latest_us, header.max_timestamp_us)
        self.producers.note(header)
        self.end = offset + header.size
        self.next_llsn = header.last_llsn + 1
        self.last_epoch = header.epoch
        return offset

    def _begin_piece(self, latest_us: int) -> None:
        """Begin a piece of the index at the end of the data."""
        self._offsets.append(self.end)  # first: a reader takes what `_llsns` shows
        self._times_us.append(latest_us)
        self._llsns.append(self.next_llsn)

    def cut(self, end: int, last_llsn: Llsn, last_epoch: int) -> None:
        """Forget what is above `last_llsn`."""
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
        """Know what the index file says; the data is not read."""
        self.next_llsn = index.last_llsn + 1
        self.end = index.end
        self.last_epoch = index.last_epoch
        self._llsns, self._offsets = index.llsns, index.offsets
        self._times_us = index.times_us
        self.latest_us = max(index.times_us, default=_NEVER_US)
        self.producers = Producers(map(ProducerMark._make, index.marks))

    # ---- reading --------------------------------------------------------------------------

    def scan(
        self,
        previous_epoch: int,
        stop_llsn: Llsn | None = None,
        committed_llsn: Llsn = 0,
        *,
        is_last: bool = False,
        closed: DataIndex | None = None,
    ) -> list[Broken]:
        """Take in every batch that counts, from the start up to `stop_llsn`; return the broken ones
        in the middle. Nothing is in the middle above `committed_llsn`. `is_last`: the next file
        does not follow on this one. `closed`: what it had when it was closed. Blocking."""
        self.last_epoch = previous_epoch
        broken: list[Broken] = []
        window = _FileWindow(self.file, from_disk, _SCAN_BYTES, self.file.size())
        while self.next_llsn != stop_llsn:
            header: Header | None = None
            try:
                header = read_header(window.at(self.end, HEADER_BYTES))
                self._check_order(header)
                _check_body(header, window.at(self.end, header.size))
            except Corrupt as error:
                following = None if is_last else stop_llsn
                found = self._step_over(header, committed_llsn, following, closed, str(error))
                if found is None:
                    break
                broken.append(found)
            else:
                self.add(header)
        rest = min(max(self.file.size() - self.end, 0), _SEEK_BYTES)
        self._is_followed = any(window.at(self.end, rest))
        return broken

    def _check_order(self, header: Header) -> None:
        self._expect(header, self.next_llsn)
        if header.epoch < self.last_epoch:
            raise Corrupt("an older epoch than the batch before")

    def _step_over(
        self,
        header: Header | None,
        committed_llsn: Llsn,
        stop_llsn: Llsn | None,
        closed: DataIndex | None,
        reason: str,
    ) -> Broken | None:
        """Take in what is broken at the end of the data, if that is in the middle of the file, if
        the data continues in the next one, which begins with `stop_llsn`, or if it was whole when
        the file was `closed`."""
        llsn, offset = self.next_llsn, self.end
        if llsn > committed_llsn:
            return None
        if closed is not None and not (closed.last_llsn <= committed_llsn and self._is_in(closed)):
            closed = None
        if header is not None:
            try:
                self._check_order(header)
            except Corrupt:
                header = None
        following = self._find_sound(
            offset + (header.size if header else ALIGNMENT), llsn, committed_llsn + 1
        )
        if following is not None:
            next_offset, next_llsn = following[0], following[1].first_llsn
        elif closed is not None:
            next_offset, next_llsn = closed.end, closed.last_llsn + 1
        elif self._is_followed_by(stop_llsn, committed_llsn):
            assert stop_llsn is not None
            next_offset, next_llsn = self.file.size(), stop_llsn
        else:
            return None
        if header is not None and header.last_llsn < next_llsn:
            self.add(header)
        else:
            self._begin_piece(_UNKNOWN_US)
            self.latest_us = _UNKNOWN_US
            self._is_end_known = following is not None or closed is not None
            self.end, self.next_llsn = next_offset, next_llsn
            self.producers_from = self.next_llsn
            self._begin_piece(_NEVER_US)
        return Broken(llsn, offset, self.next_llsn, reason)

    def _is_in(self, closed: DataIndex) -> bool:
        """Return whether there was a batch at the end of the data when the file was closed, and its
        bytes are not simply gone."""
        rest = closed.end - self.end
        is_in = rest > 0 and self.next_llsn <= closed.last_llsn
        return is_in and any(self.file.read(min(rest, _SEEK_BYTES), self.end))

    def unfinished_end(self) -> int:
        """Return where the bytes behind the data end that may be an unfinished write, or damaged:
        where stale batches begin, or the file ends. Blocking."""
        if not self._is_followed:
            return self.end
        stale = (at for at, header in self._headers_from(self.end) if self._is_stale(header))
        return next(stale, self.file.size())

    def _is_stale(self, header: Header) -> bool:
        """Return whether a batch behind the data is of an earlier life of the file."""
        return header.first_llsn < self.next_llsn or header.epoch < self.last_epoch

    def _is_followed_by(self, next_llsn: Llsn | None, committed_llsn: Llsn) -> bool:
        """Return whether all up to `next_llsn` was stored here, though what is left is broken."""
        if next_llsn is None or next_llsn > committed_llsn + 1:
            return False
        return any(self.file.read(HEADER_BYTES, self.end))  # else it was never written

    def _find_sound(self, offset: int, llsn: Llsn, last_llsn: Llsn) -> tuple[int, Header] | None:
        """Return the first sound batch of this life of the file at or behind `offset` that begins
        above `llsn`, up to `last_llsn`."""
        window = _FileWindow(self.file, from_disk, _SCAN_BYTES, self.file.size())
        for at, header in self._headers_from(offset):
            if llsn < header.first_llsn <= last_llsn and header.epoch >= self.last_epoch:
                with suppress(Corrupt):
                    _check_body(header, window.at(at, header.size))
                    return at, header
        return None

    def _headers_from(self, offset: int) -> Iterator[tuple[int, Header]]:
        """Yield the sound headers of this stream at or behind `offset`, and where they are."""
        size = self.file.size()
        window = _FileWindow(self.file, from_disk, _SEEK_BYTES, size)
        for start in range(offset, size, _SCAN_BYTES):  # a batch begins at a multiple of ALIGNMENT
            block = self.file.read(min(_SCAN_BYTES, size - start), start)
            at = block.find(MAGIC)
            while at >= 0:
                if at % ALIGNMENT == 0:
                    with suppress(Corrupt):
                        header = read_header(window.at(start + at, HEADER_BYTES))
                        self._expect(header, header.first_llsn)
                        yield start + at, header
                at = block.find(MAGIC, at + 1)

    def read(
        self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int, read: Read
    ) -> list[StoredBatch]:
        """Return whole batches from the one that holds `first_llsn`; at least one, none that starts
        above `last_llsn`, else no more than `max_bytes`."""
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
        """Check whole batches from one that begins at or below `llsn`; none that starts above
        `last_llsn`. Blocking."""
        start, llsn = self._nearest(llsn)
        offset = start
        window = _FileWindow(self.file, from_disk, max_bytes, self.end)
        while offset < self.end and llsn <= last_llsn and offset - start < max_bytes:
            header: Header | None = None
            try:
                header = read_header(window.at(offset, HEADER_BYTES))
                self._expect(header, llsn)
                _check_body(header, window.at(offset, header.size))
            except Corrupt as error:
                if self.dropped:
                    raise self._broken(offset, llsn, error) from error
                broken = Broken(llsn, offset, self._behind(llsn, offset, header), str(error))
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
        `first_llsn` to `last_llsn`. Exact for any order of timestamps. Blocking."""
        begin = max(bisect_right(self._llsns, first_llsn) - 1, 0)
        for piece in range(begin, bisect_right(self._llsns, last_llsn)):
            if self._times_us[piece] < timestamp_us:
                continue
            for header in self._headers(piece, last_llsn):
                if header.last_llsn >= first_llsn and header.max_timestamp_us >= timestamp_us:
                    return header
        return None

    def _headers(self, piece: int, last_llsn: Llsn) -> Iterator[Header]:
        """Yield the headers of one piece of the index, up to `last_llsn`."""
        offset, llsn = self._offsets[piece], self._llsns[piece]
        _, end = self._next_piece(llsn)
        window = _FileWindow(self.file, from_disk, _SEEK_BYTES, end)
        while llsn <= last_llsn and offset < end:
            try:
                header = read_header(window.at(offset, HEADER_BYTES))
                self._expect(header, llsn)
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

    def _behind(self, llsn: Llsn, offset: int, header: Header | None) -> Llsn:
        """Return the first LLSN that can be found behind a broken batch."""
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
        """Return where the data ends if `last_llsn` is the last entry, and its epoch. Blocking."""
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
        """Return the start of the batch with `llsn`, from the index, then header by header."""
        offset = self._offsets[bisect_right(self._llsns, llsn) - 1]
        window = _FileWindow(self.file, read, _SEEK_BYTES, self.end)
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
        # What follows `last_llsn` may still be on its way to the disk: not even its header counts.
        while at + HEADER_BYTES <= len(data) and (not batches or llsn <= last_llsn):
            try:
                header = read_header(data, at)
                view = data[at : at + header.size]
                if batches:
                    if len(view) < header.size:
                        break
                    self._expect(header, llsn)
                elif not header.first_llsn <= llsn <= header.last_llsn:
                    raise Corrupt(f"LLSNs {header.first_llsn} to {header.last_llsn} are here")
                self._expect(header, header.first_llsn)
                _check_body(header, view)
            except Corrupt as error:
                raise self._broken(offset + at, llsn, error) from error
            batches.append(StoredBatch(header, view))
            at += header.size
            llsn = header.last_llsn + 1
        return batches

    def _expect(self, header: Header, llsn: Llsn) -> None:
        if header.stream_id != self.stream_id or header.first_llsn != llsn:
            raise Corrupt(f"LLSN {header.first_llsn} of stream {header.stream_id} is here")

    def _next_piece(self, llsn: Llsn) -> tuple[Llsn, int]:
        """Return the first LLSN and the offset of the first piece of the index above `llsn`, or
        where the data ends."""
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


class _FileWindow:
    """A view on a file that moves forward, read block by block."""

    def __init__(self, file: File, read: Read, block_bytes: int, limit: int) -> None:
        self._file = file
        self._read = read
        self._block_bytes = block_bytes
        self._limit = limit
        self._block = memoryview(b"")
        self._start = 0

    def at(self, offset: int, size: int) -> memoryview:
        """Return the bytes there; fewer at the end of the file."""
        if offset < self._start or offset + size > self._start + len(self._block):
            want = min(max(size, self._block_bytes), max(self._limit - offset, 0))
            self._block = memoryview(self._read(self._file, want, offset))
            self._start = offset
        begin = offset - self._start
        return self._block[begin : begin + size]


def _check_body(header: Header, view: memoryview) -> None:
    if len(view) < header.size:
        raise Corrupt(f"cut off after {len(view)} of {header.size} bytes")
    if crc32c(view[HEADER_BYTES:]) != header.body_crc:
        raise Corrupt("the body does not match its checksum")
