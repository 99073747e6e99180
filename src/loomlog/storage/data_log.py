"""The entries of one replica: a chain of segments, dense in LLSN, of which the last one grows.

    data/<first LLSN, 20 digits>.seg    batches; allocated to its full size from the start
    data/<first LLSN, 20 digits>.idx    written when the segment is full (segment_index.py)
    spare/…                             files that become segments (spares.py)

Bookkeeping happens on the loop, at once; the files follow through the journal, in order. So
offsets are given before the file is there, and a roll costs the loop nothing.

Opening reads the index files and scans the last segment only. Then it cuts off what follows the
data there, so that nothing that was not recovered can come back later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from loomlog.batch import Header, check, read_header
from loomlog.config import StorageSettings
from loomlog.errors import Corrupt, InvalidArgument, NotYetWritten, Trimmed
from loomlog.storage import segment_index
from loomlog.storage.files import Files, Finished, Step
from loomlog.storage.journal import Channel, Journal
from loomlog.storage.producers import ProducerMark, Producers
from loomlog.storage.reading import Read
from loomlog.storage.segments import Batch, Broken, Examined, Segment
from loomlog.storage.spares import Spares
from loomlog.types import Llsn, StreamId, SyncMode

_first_llsn = attrgetter("first_llsn")


class DataLog:
    """The data files of one replica."""

    def __init__(
        self,
        files: Files,
        path: str,
        stream_id: StreamId,
        channel: Channel,
        journal: Journal,
        settings: StorageSettings,
        base_llsn: Llsn = 1,
    ) -> None:
        """Open what is there; `base_llsn` comes next if that is nothing. Blocking."""
        self._files = files
        self._path = f"{path}/data"
        self._stream_id = stream_id
        self._channel = channel
        self._journal = journal
        self._settings = settings
        self._durable = settings.sync is not SyncMode.NONE
        self._truncating = False
        self._prepared = False
        self.damaged = False  # a segment is missing or broken in the middle
        files.make_directory(self._path)
        self._spares = Spares(
            files,
            f"{path}/spare",
            settings.segment_bytes,
            settings.spare_segments_max,
            durable=self._durable,
        )
        self._segments: list[Segment] = []  # replaced, not changed, where readers may look
        self.next_llsn: Llsn = base_llsn
        self._open_segments()

    @property
    def first_llsn(self) -> Llsn:
        """The first LLSN that is stored, or would be."""
        return self._segments[0].first_llsn if self._segments else self.next_llsn

    @property
    def last_llsn(self) -> Llsn:
        return self.next_llsn - 1

    @property
    def stored_bytes(self) -> int:
        return sum(segment.end for segment in self._segments)

    def producers(self) -> dict[int, list[ProducerMark]]:
        """The last batches of every producer, oldest first."""
        marks: dict[int, list[ProducerMark]] = {}
        for mark in Producers(m for segment in self._segments for m in segment.producers):
            marks.setdefault(mark.producer_id, []).append(mark)
        return marks

    # ---- writing ------------------------------------------------------------------------

    def append(
        self, batches: Sequence[memoryview], first_llsn: Llsn, last_llsn: Llsn, done: Finished
    ) -> None:
        """Store batches that go on where the log ends."""
        headers = self._checked(batches, first_llsn, last_llsn)
        buffers: list[memoryview] = []
        segment, offset = self._with_room(headers[0]), 0
        for header, batch in zip(headers, batches, strict=True):
            if not segment.has_room(header.size):
                # An error of this part fails the channel, and with it the part that answers.
                self._journal.write(segment, offset, buffers, _ignore)
                segment, buffers = self._with_room(header), []
            at = segment.add(header)
            offset = offset if buffers else at
            buffers.append(batch)
        self.next_llsn = headers[-1].last_llsn + 1
        self._journal.write(segment, offset, buffers, done)
        self._prepare()

    def _checked(
        self, batches: Sequence[memoryview], first_llsn: Llsn, last_llsn: Llsn
    ) -> list[Header]:
        if self._truncating:
            raise InvalidArgument(f"stream {self._stream_id} is being cut; append when it is done")
        headers = [read_header(batch) for batch in batches]
        llsn = self.next_llsn
        for header, batch in zip(headers, batches, strict=True):
            if header.first_llsn != llsn or header.stream_id != self._stream_id:
                raise InvalidArgument(
                    f"stream {self._stream_id}: batch with LLSN {header.first_llsn} of stream "
                    f"{header.stream_id}, but LLSN {llsn} comes next"
                )
            if header.size != len(batch):
                raise InvalidArgument(f"batch of {header.size} bytes in {len(batch)} bytes")
            llsn = header.last_llsn + 1
        if not headers or first_llsn != self.next_llsn or last_llsn != llsn - 1:
            raise InvalidArgument(
                f"stream {self._stream_id}: LLSN {first_llsn} to {last_llsn} announced, but "
                f"{self.next_llsn} to {llsn - 1} found"
            )
        return headers

    def _with_room(self, header: Header) -> Segment:
        last = self._segments[-1] if self._segments else None
        if last is not None and last.has_room(header.size):
            return last
        if last is not None and not last.end:  # cut to nothing; a second one would have its name
            last.capacity = header.size
            self._journal.call(self._channel, [partial(_grow, last)], _ignore)
            return last
        segment = self._segment(header.first_llsn, max(self._settings.segment_bytes, header.size))
        self._journal.call(self._channel, [partial(self._roll, last, segment)], _ignore)
        self._segments.append(segment)
        self._prepared = False
        return segment

    def _segment(self, first_llsn: Llsn, capacity: int) -> Segment:
        return Segment(
            f"{self._path}/{first_llsn:020d}.seg",
            self._stream_id,
            first_llsn,
            capacity,
            self._channel,
            self._settings.index_interval_bytes,
        )

    def _roll(self, last: Segment | None, segment: Segment) -> None:
        """Off the loop: finish the full segment, bring in the file of the next."""
        if last is not None:
            if self._settings.sync is SyncMode.INTERVAL:
                last.file.sync()  # an index must not outlive its data
            self._write_index(last)
        if segment.capacity == self._settings.segment_bytes:
            segment.opened = self._spares.take(segment.path)
        else:
            segment.opened = self._files.open(segment.path, create=True)
            segment.opened.allocate(segment.capacity)
            segment.opened.sync()
            self._sync_directory()

    def _write_index(self, segment: Segment) -> None:
        file = self._files.open(segment.index_path, create=True)
        data = segment_index.encode(segment.index())
        file.truncate(len(data))
        file.write([data], 0)
        if self._durable:
            file.sync()
        file.close()

    def _sync_directory(self) -> None:
        if self._durable:
            self._files.sync_directory(self._path)

    def _prepare(self) -> None:
        """Make the next file while there is still room in this one."""
        active = self._segments[-1]
        if not self._prepared and active.end * 2 > active.capacity:
            self._prepared = True
            self._journal.call(self._channel, [self._try_prepare], _ignore)

    def _try_prepare(self) -> None:
        try:
            self._spares.prepare()
        except OSError:
            pass  # a full disk fails the roll, if it is still full then

    # ---- reading ------------------------------------------------------------------------

    def read(self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int, read: Read) -> list[Batch]:
        """As Segment.read; an answer ends with its segment."""
        return self._holder(first_llsn).read(first_llsn, last_llsn, max_bytes, read)

    def find_time(self, timestamp_us: int, first_llsn: Llsn, last_llsn: Llsn) -> Header | None:
        """As Segment.find_time. Blocking."""
        for segment in self._segments:
            if segment.latest_us >= timestamp_us and segment.next_llsn > first_llsn:
                header = segment.find_time(timestamp_us, first_llsn, last_llsn)
                if header is not None:
                    return header
        return None

    def examine(self, llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Examined:
        """As Segment.examine; ends with its segment. Blocking."""
        return self._holder(llsn).examine(llsn, last_llsn, max_bytes)

    def overwrite(self, broken: Broken, batch: memoryview, done: Finished) -> None:
        """Put a sound copy in the place of a broken batch. A crash in the middle leaves it
        broken."""
        segment = self._holder(broken.llsn)
        segment.check_place(broken, check(batch))

        def write() -> None:
            if not segment.dropped:  # else its file may be another segment's by now
                segment.file.write([batch], broken.offset)
                segment.file.sync()

        self._journal.call(self._channel, [write], done)

    def _holder(self, llsn: Llsn) -> Segment:
        segments = self._segments
        position = bisect_right(segments, llsn, key=_first_llsn) - 1
        if llsn >= self.next_llsn:
            raise NotYetWritten(f"stream {self._stream_id}: no LLSN {llsn} yet")
        if position < 0:
            raise Trimmed(f"stream {self._stream_id}: LLSN {llsn} was trimmed")
        return segments[position]

    # ---- cutting ------------------------------------------------------------------------

    def truncate(self, last_llsn: Llsn, done: Finished) -> None:
        """Drop what is stored above `last_llsn`. No append may be made until `done`."""
        if last_llsn >= self.last_llsn:
            self._journal.call(self._channel, [], done)
            return
        if last_llsn + 1 < self.first_llsn:
            raise InvalidArgument(
                f"stream {self._stream_id}: cannot cut at LLSN {last_llsn}, the data starts at "
                f"{self.first_llsn}"
            )
        self._truncating = True
        kept = [s for s in self._segments if s.first_llsn <= last_llsn + 1]
        doomed = self._segments[len(kept) :]
        found: list[tuple[int, int]] = []
        steps: list[Step] = [partial(self._remove, segment) for segment in reversed(doomed)]
        steps += [self._sync_directory, partial(self._cut, kept, last_llsn, found)]
        self._journal.call(
            self._channel, steps, partial(self._truncated, kept, doomed, last_llsn, found, done)
        )

    def _truncated(
        self,
        kept: list[Segment],
        doomed: list[Segment],
        last_llsn: Llsn,
        found: list[tuple[int, int]],
        done: Finished,
        error: BaseException | None,
    ) -> None:
        self._truncating = False
        if error is None:
            ((end, epoch),) = found
            kept[-1].cut(end, last_llsn, epoch)
            # A trim may have dropped others meanwhile.
            self._segments = [s for s in self._segments if s not in doomed]
            self.next_llsn = last_llsn + 1
            self._prepared = False
            for segment in doomed:
                self._journal.forget(segment)
        done(error)

    def _remove(self, segment: Segment) -> None:
        for path in (segment.index_path, segment.path):
            if self._files.exists(path):
                self._files.remove(path)

    def _cut(self, kept: list[Segment], last_llsn: Llsn, found: list[tuple[int, int]]) -> None:
        active = kept[-1]
        previous_epoch = kept[-2].last_epoch if len(kept) > 1 else 0
        end, epoch = active.find_end(last_llsn, previous_epoch)
        if self._files.exists(active.index_path):
            self._files.remove(active.index_path)
            self._sync_directory()
        _wipe(active, end)
        found.append((end, epoch))

    def drop_below(self, llsn: Llsn) -> list[Step]:
        """Forget the segments that end below `llsn`; the steps that make away with the files."""
        count = 0
        while count + 1 < len(self._segments) and self._segments[count + 1].first_llsn <= llsn:
            count += 1
        dropped, self._segments = self._segments[:count], self._segments[count:]
        for segment in dropped:
            segment.dropped = True
            self._journal.forget(segment)
        return [partial(self._recycle, segment) for segment in dropped]

    def _recycle(self, segment: Segment) -> None:
        if self._files.exists(segment.index_path):
            self._files.remove(segment.index_path)
        self._spares.give(segment.path, segment.file)

    def restart(self, next_llsn: Llsn) -> None:
        """Drop everything and go on at `next_llsn`. Blocking; only while the store is opened."""
        for segment in self._segments:
            self._remove(segment)
        self._sync_directory()
        self._segments = []
        self.next_llsn = next_llsn

    def abandon(self) -> None:
        """Others stand in its place. Files are closed when the last reader lets go of them."""
        for segment in self._segments:
            self._journal.forget(segment)

    def close(self) -> None:
        """Close the files. Blocking; nothing may be under way."""
        for segment in self._segments:
            if segment.opened is not None:
                segment.opened.close()
        self._spares.close()

    # ---- opening ------------------------------------------------------------------------

    def _open_segments(self) -> None:
        firsts = [int(n[:-4]) for n in self._files.list(self._path) if n.endswith(".seg")]
        for position, first_llsn in enumerate(firsts):
            following = firsts[position + 1] if position + 1 < len(firsts) else None
            if self._segments and first_llsn != self.next_llsn:
                self._set_aside(firsts[position:])
                break
            self._open_segment(first_llsn, following)
        if self._segments:
            active = self._segments[-1]
            if self._files.exists(active.index_path):
                self._files.remove(active.index_path)
            _wipe(active, active.end)

    def _open_segment(self, first_llsn: Llsn, following: Llsn | None) -> None:
        segment = self._segment(first_llsn, self._settings.segment_bytes)
        segment.opened = self._files.open(segment.path)
        segment.capacity = max(segment.capacity, segment.file.size())
        previous_epoch = self._segments[-1].last_epoch if self._segments else 0
        if following is None or not self._restore(segment, following):
            segment.scan(previous_epoch, following)
            if following is not None and segment.next_llsn == following:
                self._write_index(segment)
        self._segments.append(segment)
        self.next_llsn = segment.next_llsn

    def _restore(self, segment: Segment, following: Llsn) -> bool:
        """Take the index file's word, if there is one that fits."""
        try:
            file = self._files.open(segment.index_path)
            index = segment_index.decode(file.read(file.size(), 0))
        except (FileNotFoundError, Corrupt):
            return False
        file.close()
        if index.first_llsn != segment.first_llsn or index.last_llsn + 1 != following:
            return False
        segment.restore(index)
        return True

    def _set_aside(self, firsts: Sequence[Llsn]) -> None:
        """Entries in front of these are lost; they cannot be served, and a person may want them."""
        self.damaged = True
        for first_llsn in firsts:
            path = f"{self._path}/{first_llsn:020d}.seg"
            self._files.rename(path, f"{path}.damaged")
        self._files.sync_directory(self._path)


def _wipe(segment: Segment, end: int) -> None:
    """Let zeros follow the data."""
    segment.file.truncate(end)
    segment.file.allocate(segment.capacity)
    segment.file.sync()


def _grow(segment: Segment) -> None:
    segment.file.allocate(segment.capacity)
    segment.file.sync()


def _ignore(error: BaseException | None) -> None:
    """The channel keeps the error; whoever is answered next gets it."""
