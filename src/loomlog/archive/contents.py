"""The contents of an archive: reads rows, writes manifests, and removes files that belong to none.

All functions block; the client calls them in a thread.

A manifest takes effect when the log's register names it; `Saved` has the values for the register.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from loomlog.archive import manifest, range_file
from loomlog.archive.location import Location
from loomlog.archive.manifest import Manifest, Page, RangeFile, decode, decode_page, holding
from loomlog.archive.record import ArchiveInfo
from loomlog.errors import Corrupt, DataLoss, VersionMismatch
from loomlog.types import Glsn

_PAGES_KEPT_MAX: Final = 4


class Archive:
    """One state of an archive, loaded on demand. Later states only add to it."""

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
        """Yield the files that contain any of these positions, in order."""
        last = self.info.through if last is None else min(last, self.info.through)
        position = max(first, self.info.first)
        while position <= last:
            file = self.file(position)
            yield file
            position = file.last + 1

    def batches(self, first: Glsn, last: Glsn) -> Iterator[Any]:
        """Yield the archived rows from `first` to `last`, as Arrow batches."""
        for file in self.files(first, last):
            yield from range_file.read(self.location, file, first, last)

    def file(self, position: Glsn) -> RangeFile:
        """Return the file that contains a position of the archive."""
        manifest = self.manifest()
        file = holding(manifest.files, position)
        if file is None:
            page = holding(manifest.pages, position)
            file = None if page is None else holding(self._page(page.name, page.crc32c), position)
        if file is None:
            raise Corrupt(
                f"the archive at {self.info.location} reaches from {self.info.first} to "
                f"{self.info.through} and its manifest has no file for {position}"
            )
        return file

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


_MANIFEST: Final = re.compile(r"manifest-(\d+)\.[0-9a-f]+\.json")
_OURS: Final = re.compile(r"(positions|page|manifest)-\d.*\.(parquet|json)(\.partial)?")


class Saved(NamedTuple):
    """A manifest that was written: its file name, its checksum and its content."""

    name: str
    crc32c: int
    manifest: Manifest


def extend(archive: Archive, files: Iterable[RangeFile]) -> Saved:
    """Write a manifest with additional files at its end."""
    current = archive.manifest()
    extended = replace(current, files=(*current.files, *files))
    while len(extended.files) > manifest.FILES_PER_PAGE:
        page = _save_page(archive, extended.files[: manifest.FILES_PER_PAGE])
        rest = extended.files[manifest.FILES_PER_PAGE :]
        extended = Manifest((*extended.pages, page), rest)
    return _save(archive, extended)


def exchange(archive: Archive, files: Mapping[str, RangeFile]) -> Saved:
    """Write a manifest in which these files replace others for the same ranges; the keys are the
    names of the replaced files."""
    current = archive.manifest()
    pages = []
    for page in current.pages:
        before = list(archive.files(page.first, page.last))
        after = [files.get(file.name, file) for file in before]
        pages.append(page if after == before else _save_page(archive, after))
    listed = tuple(files.get(file.name, file) for file in current.files)
    return _save(archive, Manifest(tuple(pages), listed))


def find_newer(info: ArchiveInfo) -> ArchiveInfo:
    """Return the archive as its newest complete manifest describes it. That is another than the one
    in the register if a run was killed, or if the register is as in an older copy of the
    metadata."""
    location = Location(info.location)
    names = frozenset(location.names())
    found = [(int(match[1]), name) for name in names if (match := _MANIFEST.fullmatch(name))]
    least = info.through + (info.manifest in names)
    for through, name in sorted(found, reverse=True):
        if through < least:
            break
        newer = _described(info, location, name)
        if newer is not None and newer.through == through and _is_complete(newer, names):
            return newer
    return info


def _described(info: ArchiveInfo, location: Location, name: str) -> ArchiveInfo | None:
    """Return the archive as a manifest describes it; None if it is not a manifest of this one."""
    data = location.read(name)
    try:
        found = decode(data, name)
    except (Corrupt, VersionMismatch):
        return None
    ranges = found.ranges
    if not ranges or ranges[0].first != info.first:
        return None
    return replace(
        info,
        through=ranges[-1].last,
        files=found.file_count,
        size_bytes=found.size_bytes,
        manifest=name,
        manifest_crc32c=crc32c(data),
    )


def _is_complete(info: ArchiveInfo, names: frozenset[str]) -> bool:
    try:
        return all(file.name in names for file in Archive(info).files())
    except (Corrupt, DataLoss, VersionMismatch):  # a page is damaged or missing
        return False


def clean(archive: Archive) -> list[str]:
    """Delete the files that interrupted runs left behind, and return their names."""
    named = {archive.info.manifest, *(page.name for page in archive.manifest().pages)}
    named |= {file.name for file in archive.files()}
    left = [n for n in archive.location.names() if n not in named and _OURS.fullmatch(n)]
    for name in left:
        archive.location.delete(name)
    return left


def _save(archive: Archive, content: Manifest) -> Saved:
    through = content.ranges[-1].last if content.ranges else 0
    name = f"manifest-{through}.{secrets.token_hex(6)}.json"
    data = content.encode()
    archive.location.write(name, data)
    return Saved(name, crc32c(data), content)


def _save_page(archive: Archive, files: Iterable[RangeFile]) -> Page:
    files = list(files)
    first, last = files[0].first, files[-1].last
    name = f"page-{first}-{last}.{secrets.token_hex(6)}.json"
    data = manifest.encode_page(files)
    archive.location.write(name, data)
    size_bytes = sum(file.size_bytes for file in files)
    return Page(name, first, last, len(files), size_bytes, crc32c(data))
