"""Reading an archive: its rows from any position on. Blocking; the client calls it in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from crc32c import crc32c

from loomlog.archive import range_file
from loomlog.archive.location import Location
from loomlog.archive.manifest import Manifest, RangeFile, decode, decode_page, holding
from loomlog.archive.record import ArchiveInfo
from loomlog.errors import Corrupt
from loomlog.types import Glsn

_PAGES_KEPT_MAX: Final = 4


class Archive:
    """One state of an archive: later ones only add to it. Loads what it needs when it is asked."""

    def __init__(self, info: ArchiveInfo) -> None:
        self.info = info
        self._location: Location | None = None
        self._manifest: Manifest | None = None
        self._pages: dict[str, list[RangeFile]] = {}

    def __repr__(self) -> str:
        return f"<Archive {self.info.first} to {self.info.through} at {self.info.location}>"

    @property
    def location(self) -> Location:
        if self._location is None:
            self._location = Location(self.info.location)
        return self._location

    def manifest(self) -> Manifest:
        if self._manifest is None:
            if not self.info.manifest:
                return Manifest()
            name = self.info.manifest
            data = self._checked(name, self.info.manifest_crc32c)
            self._manifest = decode(data, self.location.describe(name))
        return self._manifest

    def files(self, first: Glsn = 1, last: Glsn | None = None) -> Iterator[RangeFile]:
        """The files that have some of these positions, in order."""
        last = self.info.through if last is None else min(last, self.info.through)
        position = max(first, self.info.first)
        while position <= last:
            file = self._file(position)
            yield file
            position = file.last + 1

    def batches(self, first: Glsn, last: Glsn) -> Iterator[Any]:
        """The rows from `first` to `last`, as far as it has them, as Arrow batches."""
        for file in self.files(first, last):
            yield from range_file.read(self.location, file, first, last)

    def _file(self, position: Glsn) -> RangeFile:
        manifest = self.manifest()
        found = holding(manifest.files, position)
        if found is None:
            page = holding(manifest.pages, position)
            found = None if page is None else holding(self._page(page.name, page.crc32c), position)
        if found is None:
            raise Corrupt(
                f"the archive at {self.info.location} reaches from {self.info.first} to "
                f"{self.info.through} and its manifest has no file for {position}"
            )
        return found

    def _page(self, name: str, crc: int) -> list[RangeFile]:
        page = self._pages.get(name)
        if page is None:
            page = decode_page(self._checked(name, crc), self.location.describe(name))
            while len(self._pages) >= _PAGES_KEPT_MAX:
                self._pages.pop(next(iter(self._pages)))
            self._pages[name] = page
        return page

    def _checked(self, name: str, crc: int) -> bytes:
        data = self.location.read(name)
        if crc32c(data) != crc:
            raise Corrupt(f"the archive file {self.location.describe(name)} is damaged")
        return data
