"""The entries of one replica: a sequence of data files, dense in LLSN; the last one grows.

    data/<first LLSN, 20 digits>.seg    batches; the first file is allocated step by step
                                        (journal.py), the others at their full size
    data/<first LLSN, 20 digits>.idx    written when the data file is full, or for the last one when
                                        the log is closed (data_index.py)
    spare/…                             files that become data files (spares.py)

Bookkeeping happens immediately, on the loop; the files follow through the journal, in order. So
offsets are assigned before a file exists, and starting a new file does not delay the loop.

Opening reads the index files and scans only the last data file. Then the bytes after its data are
cut off, so that nothing that was not recovered can reappear. They may be an unfinished write, or
damage that looks like one, and are copied to a file `….damaged` first. Data that was complete when
the log was closed, and committed entries that are followed by sound batches, are never cut off:
they keep their places, and the damaged batches among them are in `broken`.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter

from loomlog.batch import Header, check, read_header
from loomlog.config import StorageSettings
from loomlog.errors import Corrupt, InvalidArgument, NotYetWritten, Trimmed
from loomlog.storage.files import Files, Finished, Read, Step, keep_copy
from loomlog.storage.ordered import data_index
from loomlog.storage.ordered.data_file import (
    Broken,
    DataFile,
    Examined,
    Producers,
    StoredBatch,
)
from loomlog.storage.ordered.data_index import DataIndex
from loomlog.storage.ordered.data_scan import DataScan, unfinished_end
from loomlog.storage.ordered.journal import Channel, Journal, allocation
from loomlog.storage.ordered.spares import Spares
from loomlog.types import Llsn, ProducerMark, StreamId, SyncMode

logger = logging.getLogger(__name__)

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
        committed_llsn: Llsn = 0,
    ) -> None:
        """Open the data files. If there are none, the log begins at `base_llsn`. According to the
        commits, everything up to `committed_llsn` was stored once. Blocking."""
        self._files = files
        self._path = f"{path}/data"
        self._stream_id = stream_id
        self._channel = channel
        self._journal = journal
        self._settings = settings
        self._durable = settings.sync is not SyncMode.NONE
        self._truncating = False
        self._prepared = False
        self.damaged = False  # a data file is missing or broken in the middle
        self.kept = ""  # the copy of the bytes that were cut off when it was opened
        self._marked: tuple[Llsn, int] | None = None  # next LLSN and end in the last file's index
        files.make_directory(self._path)
        self._spares = Spares(
            files,
            f"{path}/spare",
            settings.data_file_bytes,
            settings.spare_files_max,
            durable=self._durable,
        )
        self._committed_llsn = committed_llsn
        self.broken: dict[Llsn, Broken] = {}  # batches known to be broken, by their first LLSN
        self._data_files: list[DataFile] = []  # files are only appended, else the list is replaced
        self.next_llsn: Llsn = base_llsn
        self._open_data_files()

    @property
    def first_llsn(self) -> Llsn:
        """The first stored LLSN; `next_llsn` if nothing is stored."""
        return self._data_files[0].first_llsn if self._data_files else self.next_llsn

    @property
    def last_llsn(self) -> Llsn:
        return self.next_llsn - 1

    @property
    def stored_bytes(self) -> int:
        return sum(data_file.end for data_file in self._data_files)

    @property
    def lost_llsns(self) -> range:
        """The committed LLSNs at the end whose bytes were damaged when the log was opened, and that
        have not been stored again."""
        return range(self.next_llsn, self._committed_llsn + 1) if self.kept else range(0)

    @property
    def paths(self) -> list[str]:
        """Return the paths of the current files."""
        return [data_file.path for data_file in self._data_files if data_file.opened is not None]

    @property
    def finished_files(self) -> list[str]:
        """The names of files that no longer change, unless entries in them are cut off."""
        finished = [each for each in self._data_files[:-1] if each.opened is not None]
        names = [path for each in finished for path in (each.path, each.index_path)]
        return [f"data/{path.rpartition('/')[2]}" for path in names]

    @property
    def producers_from(self) -> Llsn:
        """The first LLSN from which `producers` is complete: earlier batches are trimmed, or their
        headers are lost."""
        return max([self.first_llsn, *(file.producers_from for file in self._data_files)])

    def producers(self) -> dict[int, list[ProducerMark]]:
        """Return the last batches of every producer, oldest first."""
        marks: dict[int, list[ProducerMark]] = {}
        for mark in Producers(m for data_file in self._data_files for m in data_file.producers):
            marks.setdefault(mark.producer_id, []).append(mark)
        return marks

    # ---- writing ------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[memoryview],
        first_llsn: Llsn,
        last_llsn: Llsn,
        done: Finished,
        headers: Sequence[Header] | None = None,
    ) -> None:
        """Store batches that continue where the log ends. `headers` are theirs, if the caller has
        read them already."""
        if headers is None:
            headers = [read_header(batch) for batch in batches]
        self._check(headers, batches, first_llsn, last_llsn)
        buffers: list[memoryview] = []
        data_file, offset = self._with_room(headers[0]), 0
        for header, batch in zip(headers, batches, strict=True):
            if not data_file.has_room(header.size):
                # If this part fails, so does the channel, and with it the part that calls `done`.
                self._journal.write(data_file, offset, buffers)
                data_file, buffers = self._with_room(header), []
            at = data_file.add(header)
            offset = offset if buffers else at
            buffers.append(batch)
        self.next_llsn = last_llsn + 1
        self._journal.write(data_file, offset, buffers, done)
        self._prepare()

    def _check(
        self,
        headers: Sequence[Header],
        batches: Sequence[memoryview],
        first_llsn: Llsn,
        last_llsn: Llsn,
    ) -> None:
        if self._truncating:
            raise InvalidArgument(f"stream {self._stream_id} is being cut; append when it is done")
        llsn = self.next_llsn
        for header, batch in zip(headers, batches, strict=True):
            if header.first_llsn != llsn or header.stream_id != self._stream_id:
                raise InvalidArgument(
                    f"stream {self._stream_id}: batch with LLSN {header.first_llsn} of stream "
                    f"{header.stream_id}, but LLSN {llsn} comes next"
                )
            if header.size != len(batch):
                raise InvalidArgument(f"batch of {header.size} bytes in {len(batch)} bytes")
            llsn += header.count
        if not headers or first_llsn != self.next_llsn or last_llsn != llsn - 1:
            raise InvalidArgument(
                f"stream {self._stream_id}: LLSN {first_llsn} to {last_llsn} announced, but "
                f"{self.next_llsn} to {llsn - 1} found"
            )

    def _with_room(self, header: Header) -> DataFile:
        last = self._data_files[-1] if self._data_files else None
        if last is not None and last.has_room(header.size):
            return last
        if last is not None and not last.end:  # empty after a cut; a new one would have its name
            last.capacity = last.allocated = header.size
            self._journal.call(self._channel, [partial(_allocate, last)])
            return last
        data_file = self._data_file(
            header.first_llsn, max(self._settings.data_file_bytes, header.size)
        )
        if last is None:
            data_file.allocated = allocation(header.size, data_file.capacity)
        self._journal.call(self._channel, [partial(self._roll, last, data_file)])
        self._data_files.append(data_file)
        self._prepared = False
        return data_file

    def _data_file(self, first_llsn: Llsn, capacity: int) -> DataFile:
        return DataFile(
            f"{self._path}/{first_llsn:020d}.seg",
            self._stream_id,
            first_llsn,
            capacity,
            self._channel,
            self._settings.index_interval_bytes,
        )

    def _roll(self, last: DataFile | None, data_file: DataFile) -> None:
        """Finish the full data file and open the next one, off the loop."""
        if last is not None:
            if self._settings.sync is SyncMode.INTERVAL:
                last.file.sync()  # an index must not outlive its data
            if not any(last.first_llsn <= llsn < last.next_llsn for llsn in [*self.broken]):
                self._write_index(last)
            elif self._files.exists(last.index_path):  # so that the next start finds them again
                self._files.remove(last.index_path)
                self._sync_directory()
        if data_file.allocated == self._settings.data_file_bytes:
            data_file.opened = self._spares.take(data_file.path)
        else:
            data_file.opened = self._files.open(data_file.path, create=True)
            _allocate(data_file)
            self._sync_directory()

    def _write_index(self, data_file: DataFile, *, is_mark: bool = False) -> None:
        file = self._files.open(data_file.index_path, create=True)
        data = data_index.encode(data_file.index())
        file.truncate(len(data))
        file.write([data], 0)
        if self._durable and not is_mark:
            file.sync()
        file.close()

    def _sync_directory(self) -> None:
        if self._durable:
            self._files.sync_directory(self._path)

    def _prepare(self) -> None:
        """Allocate space before it is needed: in this file, or in a new one."""
        active = self._data_files[-1]
        self._journal.grow(active, active.end, active.capacity)
        if not self._prepared and active.end * 2 > active.capacity:
            self._prepared = True
            self._journal.call(self._channel, [self._try_prepare])

    def _try_prepare(self) -> None:
        try:
            self._spares.prepare()
        except OSError:
            pass  # a full disk fails the roll, if it is still full then

    # ---- reading ------------------------------------------------------------------------

    def read(
        self, first_llsn: Llsn, last_llsn: Llsn, max_bytes: int, read: Read
    ) -> list[StoredBatch]:
        """Like DataFile.read. Returns batches of one data file only."""
        return self._holder(first_llsn).read(first_llsn, last_llsn, max_bytes, read)

    def find_time(self, timestamp_us: int, first_llsn: Llsn, last_llsn: Llsn) -> Header | None:
        """Like DataFile.find_time. Blocking."""
        for data_file in self._data_files:
            if data_file.latest_us >= timestamp_us and data_file.next_llsn > first_llsn:
                header = data_file.find_time(timestamp_us, first_llsn, last_llsn)
                if header is not None:
                    return header
        return None

    def size(self, first_llsn: Llsn, end_llsn: Llsn) -> int:
        """Return the total size of the batches that begin in [first_llsn, end_llsn). Blocking."""
        return sum(
            data_file.offset_of(min(end_llsn, data_file.next_llsn))
            - data_file.offset_of(max(first_llsn, data_file.first_llsn))
            for data_file in self._data_files
            if data_file.first_llsn < end_llsn and first_llsn < data_file.next_llsn
        )

    def examine(self, llsn: Llsn, last_llsn: Llsn, max_bytes: int) -> Examined:
        """Like DataFile.examine. Examines one data file only. Blocking."""
        return self._holder(llsn).examine(llsn, last_llsn, max_bytes)

    def overwrite(self, broken: Broken, batch: memoryview, done: Finished) -> None:
        """Overwrite a broken batch with a sound copy. After a crash in the middle, it is still
        broken."""
        data_file = self._holder(broken.llsn)
        data_file.check_place(broken, check(batch))

        def write() -> None:
            if not data_file.dropped:  # otherwise its file may be reused already
                data_file.file.write([batch], broken.offset)
                data_file.file.sync()

        self._journal.call(self._channel, [write], done)

    def _holder(self, llsn: Llsn) -> DataFile:
        data_files = self._data_files
        position = bisect_right(data_files, llsn, key=_first_llsn) - 1
        if llsn >= self.next_llsn:
            raise NotYetWritten(f"stream {self._stream_id}: no LLSN {llsn} yet")
        if position < 0:
            raise Trimmed(f"stream {self._stream_id}: LLSN {llsn} was trimmed")
        return data_files[position]

    # ---- cutting ------------------------------------------------------------------------

    def truncate(self, last_llsn: Llsn, done: Finished) -> None:
        """Delete everything above `last_llsn`. The caller must not append until `done`."""
        if last_llsn >= self.last_llsn:
            self._journal.call(self._channel, [], done)
            return
        if last_llsn + 1 < self.first_llsn:
            raise InvalidArgument(
                f"stream {self._stream_id}: cannot cut at LLSN {last_llsn}, the data starts at "
                f"{self.first_llsn}"
            )
        self._truncating = True
        kept = [s for s in self._data_files if s.first_llsn <= last_llsn + 1]
        doomed = self._data_files[len(kept) :]
        ends: list[tuple[int, int]] = []

        def truncated(error: BaseException | None) -> None:
            self._truncating = False
            if error is None:
                ((end, epoch),) = ends
                kept[-1].cut(end, last_llsn, epoch)
                # A trim may have dropped other files meanwhile.
                self._data_files = [s for s in self._data_files if s not in doomed]
                self.broken = {llsn: b for llsn, b in self.broken.items() if llsn <= last_llsn}
                self.next_llsn = last_llsn + 1
                self._prepared = False
                for data_file in doomed:
                    self._journal.forget(data_file)
            done(error)

        steps: list[Step] = [partial(self._remove, data_file) for data_file in reversed(doomed)]
        steps += [self._sync_directory, lambda: ends.append(self._cut(kept, last_llsn))]
        self._journal.call(self._channel, steps, truncated)

    def _remove(self, data_file: DataFile) -> None:
        for path in (data_file.index_path, data_file.path):
            if self._files.exists(path):
                self._files.remove(path)

    def _cut(self, kept: list[DataFile], last_llsn: Llsn) -> tuple[int, int]:
        """Wipe everything above `last_llsn`. Return the new end of the data, and the last epoch."""
        active = kept[-1]
        previous_epoch = kept[-2].last_epoch if len(kept) > 1 else 0
        end, epoch = active.find_end(last_llsn, previous_epoch)
        self._marked = None
        if self._files.exists(active.index_path):
            self._files.remove(active.index_path)
            self._sync_directory()
        _wipe(active, end)
        return end, epoch

    def drop_below(self, llsn: Llsn) -> list[Step]:
        """Forget the data files that end below `llsn`. Return the steps that remove them."""
        count = 0
        while count + 1 < len(self._data_files) and self._data_files[count + 1].first_llsn <= llsn:
            count += 1
        dropped, self._data_files = self._data_files[:count], self._data_files[count:]
        for data_file in dropped:
            data_file.dropped = True
            self._journal.forget(data_file)
        return [partial(self._recycle, data_file) for data_file in dropped]

    def _recycle(self, data_file: DataFile) -> None:
        if self._files.exists(data_file.index_path):
            self._files.remove(data_file.index_path)
        self._spares.give(data_file.path, data_file.file)

    def restart(self, next_llsn: Llsn) -> None:
        """Delete everything and continue at `next_llsn`. Blocking; only while the store is being
        opened."""
        for data_file in self._data_files:
            self._remove(data_file)
        self._sync_directory()
        self._data_files = []
        self.next_llsn, self._marked = next_llsn, None

    def abandon(self) -> None:
        """Forget the files, which were replaced. They are closed with their last reader."""
        for data_file in self._data_files:
            self._journal.forget(data_file)

    def close(self) -> None:
        """Close the files. Blocking; nothing may be in progress."""
        if self._journal.is_closed and self._channel.error is None:
            with suppress(OSError, Corrupt):
                self._mark_end()
        for data_file in self._data_files:
            if data_file.opened is not None:
                data_file.opened.close()
        self._spares.close()

    def _mark_end(self) -> None:
        """Write an index of the last file. If the next start finds less than that, it is damage,
        not an unfinished write. The index is not synced: losing it only loses this information."""
        active = self._data_files[-1] if self._data_files else None
        if active is None or active.opened is None or self._marked == (self.next_llsn, active.end):
            return
        if active.end and active.is_written():
            self._write_index(active, is_mark=True)

    # ---- opening ------------------------------------------------------------------------

    def _open_data_files(self) -> None:
        firsts = [int(n[:-4]) for n in self._files.list(self._path) if n.endswith(".seg")]
        for position, first_llsn in enumerate(firsts):
            following = firsts[position + 1] if position + 1 < len(firsts) else None
            if self._data_files and first_llsn != self.next_llsn:
                self._set_aside(firsts[position:])
                break
            self._open_data_file(first_llsn, following)
        if self._data_files:
            active = self._data_files[-1]
            end = unfinished_end(active)
            self.kept = keep_copy(self._files, active.path, active.file, active.end, end)
            if self.kept:
                stored = max(self._committed_llsn, self._marked[0] - 1 if self._marked else 0)
                what = "an unfinished write, or damage"
                if active.next_llsn <= stored:
                    what = f"LLSN {active.next_llsn} to {stored} are damaged"
                logger.warning("%s at %d: %s, kept in %s", active.path, active.end, what, self.kept)
            _wipe(active, active.end)

    def _open_data_file(self, first_llsn: Llsn, following: Llsn | None) -> None:
        data_file = self._data_file(first_llsn, self._settings.data_file_bytes)
        data_file.opened = self._files.open(data_file.path)
        data_file.capacity = max(data_file.capacity, data_file.file.size())
        data_file.allocated = data_file.file.size()
        previous_epoch = self._data_files[-1].last_epoch if self._data_files else 0
        index = self._read_index(data_file)
        if index is not None and index.last_llsn + 1 == following:
            data_file.restore(index)
        else:
            # A sound index that ends before `following` means that a whole file is missing.
            closed = index if following is None else None
            scan = DataScan(data_file, self._committed_llsn, closed)
            broken = scan.run(previous_epoch, following, is_last=index is not None)
            if following is None and index is not None:
                self._marked = index.last_llsn + 1, index.end
            self.broken |= {each.llsn: each for each in broken}
            if following is not None and data_file.next_llsn == following and not broken:
                self._write_index(data_file)
        self._data_files.append(data_file)
        self.next_llsn = data_file.next_llsn

    def _read_index(self, data_file: DataFile) -> DataIndex | None:
        """Return the index of a data file, if there is a sound one."""
        try:
            file = self._files.open(data_file.index_path)
            index = data_index.decode(file.read(file.size(), 0))
        except (FileNotFoundError, Corrupt):
            return None
        file.close()
        return index if index.first_llsn == data_file.first_llsn else None

    def _set_aside(self, firsts: Sequence[Llsn]) -> None:
        """Rename files that cannot be used because entries before them are lost. An operator may
        want them."""
        self.damaged = True
        for first_llsn in firsts:
            path = f"{self._path}/{first_llsn:020d}.seg"
            self._files.rename(path, f"{path}.damaged")
        self._files.sync_directory(self._path)


def _wipe(data_file: DataFile, end: int) -> None:
    """Replace everything after the data by zeros."""
    data_file.file.truncate(end)
    data_file.allocated = allocation(end, data_file.capacity)
    _allocate(data_file)


def _allocate(data_file: DataFile) -> None:
    data_file.file.allocate(data_file.allocated)
    data_file.file.sync()
