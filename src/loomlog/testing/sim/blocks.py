"""The bytes of one simulated file: those that readers see, and those that survive a power loss.

The file is sparse: pages that were never written cost nothing. It keeps the pages of the last sync
and every later change in order; `crash` restores these pages and then keeps, loses or tears each
change at random, as a page cache and a disk with sectors may.

After a failed sync (`fail_sync`) the pages that it should have written count as clean, as on Linux:
readers see them, and no later sync writes them, unless they are changed again.
"""

from __future__ import annotations

from random import Random

from loomlog.types import Buffer

PAGE_BYTES = 4096
SECTOR_BYTES = 512

_ZERO_PAGE = bytes(PAGE_BYTES)


class FileBlocks:
    """The content of a file."""

    def __init__(self) -> None:
        self.size = 0
        self._pages: dict[int, bytearray] = {}
        self._synced_size = 0
        self._synced_pages: dict[int, bytes | None] = {}  # the old content of pages changed since
        self._dropped: set[int] = set()  # pages that a failed sync left behind
        self._changes: list[tuple[int, bytes] | int] = []  # a write at an offset, or a new size

    def read(self, size: int, offset: int) -> bytearray:
        end = min(offset + size, self.size)
        out = bytearray(max(0, end - offset))
        position = offset
        while position < end:
            number, start = divmod(position, PAGE_BYTES)
            length = min(PAGE_BYTES - start, end - position)
            page = self._pages.get(number)
            if page is not None:
                at = position - offset
                out[at : at + length] = page[start : start + length]
            position += length
        return out

    def write(self, data: Buffer, offset: int) -> None:
        copy = bytes(data)
        self._changes.append((offset, copy))
        self._put(copy, offset, remember=True)

    def resize(self, size: int) -> None:
        self._changes.append(size)
        self._cut(size, remember=True)

    def sync(self) -> None:
        self._synced_pages = {n: self._synced_pages[n] for n in self._dropped}
        self._synced_size = self.size
        self._changes.clear()

    def fail_sync(self) -> None:
        self._dropped.update(self._synced_pages)

    def crash(self, random: Random) -> None:
        """Lose power: every change since the last sync is kept, lost or torn."""
        changes = self._changes.copy()
        for number, page in self._synced_pages.items():
            if page is None:
                self._pages.pop(number, None)
            else:
                self._pages[number] = bytearray(page)
        self.size = self._synced_size
        for change in changes:
            self._maybe_redo(change, random)
        self._dropped.clear()
        self.sync()

    def _maybe_redo(self, change: tuple[int, bytes] | int, random: Random) -> None:
        fate = random.choice(("kept", "lost", "torn"))
        if isinstance(change, int):
            if fate == "kept":
                self._cut(change, remember=False)
        elif fate == "kept":
            self._put(change[1], change[0], remember=False)
        elif fate == "torn":
            self._tear(change[0], change[1], random)

    def _tear(self, offset: int, data: bytes, random: Random) -> None:
        kind = random.choice(("sectors", "bytes", "holes", "size only"))
        if kind == "sectors":
            end = (offset + random.randint(0, len(data))) // SECTOR_BYTES * SECTOR_BYTES
            self._put(data[: max(0, end - offset)], offset, remember=False)
        elif kind == "bytes":
            self._put(data[: random.randint(0, len(data))], offset, remember=False)
        elif kind == "holes":
            self._put_some_sectors(offset, data, random)
        else:
            self.size = max(self.size, offset + len(data))

    def _put_some_sectors(self, offset: int, data: bytes, random: Random) -> None:
        position = 0
        while position < len(data):
            length = SECTOR_BYTES - (offset + position) % SECTOR_BYTES
            if random.random() < 0.5:
                self._put(data[position : position + length], offset + position, remember=False)
            position += length

    def _put(self, data: bytes, offset: int, *, remember: bool) -> None:
        position, end = offset, offset + len(data)
        while position < end:
            number, start = divmod(position, PAGE_BYTES)
            length = min(PAGE_BYTES - start, end - position)
            at = position - offset
            self._page(number, remember)[start : start + length] = data[at : at + length]
            position += length
        if data:
            self.size = max(self.size, end)

    def _cut(self, size: int, *, remember: bool) -> None:
        """Set the size. Bytes beyond the end read as zeros if the file grows again."""
        if size < self.size:
            last, start = divmod(size, PAGE_BYTES)
            for number in [number for number in self._pages if number > last]:
                self._remember(number, remember)
                del self._pages[number]
            if last in self._pages:
                self._page(last, remember)[start:] = bytes(PAGE_BYTES - start)
        self.size = size

    def _page(self, number: int, remember: bool) -> bytearray:
        self._remember(number, remember)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = bytearray(_ZERO_PAGE)
        return page

    def _remember(self, number: int, remember: bool) -> None:
        self._dropped.discard(number)
        if remember and number not in self._synced_pages:
            page = self._pages.get(number)
            self._synced_pages[number] = None if page is None else bytes(page)
