"""Scans a data file when it is opened: which batches are valid, and which are damaged.

Where the valid data ends, the scan distinguishes a torn write from damage. It is damage if the LLSN
is committed, and the file was closed with it, or a valid batch follows. A damaged batch keeps its
place and is recorded as broken. Uncommitted batches must not count as stored unless they are sound.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from loomlog.batch import HEADER_BYTES, MAGIC, Header, read_header
from loomlog.errors import Corrupt
from loomlog.limits import ALIGNMENT, KIB, MIB
from loomlog.storage.files import FileWindow, from_disk
from loomlog.storage.ordered.data_file import Broken, DataFile, check_body
from loomlog.storage.ordered.data_index import DataIndex
from loomlog.types import Llsn

_SCAN_BYTES: Final = 4 * MIB
_SEEK_BYTES: Final = 64 * KIB


class DataScan:
    """A scan of one data file. Blocking."""

    def __init__(
        self, file: DataFile, committed_llsn: Llsn, closed: DataIndex | None = None
    ) -> None:
        """`closed` describes the file when it was closed. Above `committed_llsn`, the first invalid
        batch ends the data."""
        self._file = file
        self._committed_llsn = committed_llsn
        self._closed = closed

    def run(self, previous_epoch: int, stop_llsn: Llsn | None, *, is_last: bool) -> list[Broken]:
        """Add all valid batches, from the start up to `stop_llsn`, to the data file. Return the
        broken ones among them. `is_last`: the next file does not continue this one."""
        file = self._file
        file.last_epoch = previous_epoch
        broken: list[Broken] = []
        window = FileWindow(file.file, from_disk, _SCAN_BYTES, file.file.size())
        while file.next_llsn != stop_llsn:
            header: Header | None = None
            try:
                header = read_header(window.at(file.end, HEADER_BYTES))
                self._check_order(header)
                check_body(header, window.at(file.end, header.size))
            except Corrupt as error:
                following = None if is_last else stop_llsn
                skipped = self._step_over(header, following, str(error))
                if skipped is None:
                    break
                broken.append(skipped)
            else:
                file.add(header)
        rest = min(max(file.file.size() - file.end, 0), _SEEK_BYTES)
        file.is_followed = any(window.at(file.end, rest))
        return broken

    def _check_order(self, header: Header) -> None:
        self._file.expect(header, self._file.next_llsn)
        if header.epoch < self._file.last_epoch:
            raise Corrupt("an older epoch than the batch before")

    def _step_over(
        self, header: Header | None, stop_llsn: Llsn | None, reason: str
    ) -> Broken | None:
        """Add a broken batch at the end of the data and return it; None if the data ends here.

        It does not end here if a sound batch follows, if the data continues in the next file, which
        begins with `stop_llsn`, or if more was stored when the file was closed."""
        file, closed = self._file, self._closed
        llsn, offset = file.next_llsn, file.end
        if llsn > self._committed_llsn:
            return None
        if closed is not None and not self._is_in(closed):
            closed = None
        if header is not None:
            try:
                self._check_order(header)
            except Corrupt:
                header = None
        following = self._find_sound(offset + (header.size if header else ALIGNMENT), llsn)
        if following is not None:
            next_offset, next_llsn = following[0], following[1].first_llsn
        elif closed is not None:
            next_offset, next_llsn = closed.end, closed.last_llsn + 1
        elif self._is_followed_by(stop_llsn):
            assert stop_llsn is not None
            next_offset, next_llsn = file.file.size(), stop_llsn
        else:
            return None
        if header is not None and header.last_llsn < next_llsn:
            file.add(header)
        else:
            is_end_known = following is not None or closed is not None
            file.skip(next_offset, next_llsn, is_end_known=is_end_known)
        return Broken(llsn, offset, file.next_llsn, reason)

    def _is_in(self, closed: DataIndex) -> bool:
        """Return whether a committed batch was at the end of the data when the file was closed, and
        something is still there."""
        file, rest = self._file, closed.end - self._file.end
        if closed.last_llsn > self._committed_llsn or rest <= 0:
            return False
        is_in = file.next_llsn <= closed.last_llsn
        return is_in and any(file.file.read(min(rest, _SEEK_BYTES), file.end))

    def _is_followed_by(self, next_llsn: Llsn | None) -> bool:
        """Return whether everything up to `next_llsn` was stored here, even if it is broken now."""
        if next_llsn is None or next_llsn > self._committed_llsn + 1:
            return False
        return any(self._file.file.read(HEADER_BYTES, self._file.end))  # zeros: never written

    def _find_sound(self, offset: int, llsn: Llsn) -> tuple[int, Header] | None:
        """Return the first sound, not stale batch at or after `offset` that begins above `llsn` and
        at most directly after the committed entries, and its offset."""
        file, last_llsn = self._file, self._committed_llsn + 1
        window = FileWindow(file.file, from_disk, _SCAN_BYTES, file.file.size())
        for at, header in _headers_from(file, offset):
            if llsn < header.first_llsn <= last_llsn and header.epoch >= file.last_epoch:
                with suppress(Corrupt):
                    check_body(header, window.at(at, header.size))
                    return at, header
        return None


def unfinished_end(file: DataFile) -> int:
    """Return the end of the bytes after the data that may be an unfinished write or damage: where
    stale batches begin, or the end of the file. Blocking; after a scan."""
    if not file.is_followed:
        return file.end

    def is_stale(header: Header) -> bool:  # from an earlier use of the file
        return header.first_llsn < file.next_llsn or header.epoch < file.last_epoch

    stale = (at for at, header in _headers_from(file, file.end) if is_stale(header))
    return next(stale, file.file.size())


def _headers_from(file: DataFile, offset: int) -> Iterator[tuple[int, Header]]:
    """Yield the sound headers of this stream at or after `offset`, and their offsets."""
    size = file.file.size()
    window = FileWindow(file.file, from_disk, _SEEK_BYTES, size)
    for start in range(offset, size, _SCAN_BYTES):  # a batch begins at a multiple of ALIGNMENT
        block = file.file.read(min(_SCAN_BYTES, size - start), start)
        at = block.find(MAGIC)
        while at >= 0:
            if at % ALIGNMENT == 0:
                with suppress(Corrupt):
                    header = read_header(window.at(start + at, HEADER_BYTES))
                    file.expect(header, header.first_llsn)
                    yield start + at, header
            at = block.find(MAGIC, at + 1)
