"""The manifest of an archive: the list of its files.

It stays small, because older entries move to pages, which are separate files that are read on
demand.

Invariants: the ranges are in order, without gaps or overlaps; a manifest or a page never changes
once it is written.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Final, TypeVar

from loomlog.errors import Corrupt, VersionMismatch
from loomlog.types import Glsn

VERSION: Final = 1
_TEXTS: Final = frozenset({"name", "checksum", "location", "manifest", "run"})  # fields
FILES_PER_PAGE: Final = 1000  # a page is some 200 KB


@dataclass(frozen=True, slots=True)
class RangeFile:
    """A Parquet file with all rows of a range of positions."""

    name: str
    first: Glsn
    last: Glsn
    rows: int  # fewer than positions if the log has gaps there
    size_bytes: int
    crc32c: int  # of the file
    footer_crc32c: int  # of the Parquet footer
    checksum: str  # of its rows, see range_file.py


@dataclass(frozen=True, slots=True)
class Page:
    """A file with older entries of a manifest."""

    name: str
    first: Glsn
    last: Glsn
    files: int
    size_bytes: int  # of all its Parquet files
    crc32c: int


Ranged = TypeVar("Ranged", RangeFile, Page)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Pages, then files, which together cover every position from the first to the last."""

    pages: tuple[Page, ...] = ()
    files: tuple[RangeFile, ...] = ()

    @property
    def ranges(self) -> list[Page | RangeFile]:
        return [*self.pages, *self.files]

    @property
    def file_count(self) -> int:
        return sum(page.files for page in self.pages) + len(self.files)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.ranges)

    def encode(self) -> bytes:
        return _encode({"pages": _fields(self.pages), "files": _fields(self.files)})


def decode(data: bytes, name: str) -> Manifest:
    """Decode a manifest; a Corrupt error names the file."""
    try:
        content = _decode(data)
        pages = tuple(Page(**page) for page in content["pages"])
        manifest = Manifest(pages, tuple(RangeFile(**file) for file in content["files"]))
        require_types(*manifest.ranges)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Corrupt(f"{name} is not the manifest of an archive") from None
    _require_dense(manifest.ranges, name)
    return manifest


def encode_page(files: Iterable[RangeFile]) -> bytes:
    return _encode({"files": _fields(files)})


def decode_page(data: bytes, name: str) -> list[RangeFile]:
    try:
        files = [RangeFile(**file) for file in _decode(data)["files"]]
        require_types(*files)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Corrupt(f"{name} is not a page of an archive's manifest") from None
    _require_dense(files, name)
    return files


def require_types(*items: Any) -> None:
    """Raise TypeError unless the fields of decoded items have the right types."""
    for item in items:
        for field in fields(item):
            if type(getattr(item, field.name)) is not (str if field.name in _TEXTS else int):
                raise TypeError(field.name)


def holding(ranges: Sequence[Ranged], position: Glsn) -> Ranged | None:
    """Return the range that contains a position, or None."""
    index = bisect_left(ranges, position, key=lambda each: each.last)
    return ranges[index] if index < len(ranges) and ranges[index].first <= position else None


def _fields(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [asdict(item) for item in items]


def _encode(content: dict[str, Any]) -> bytes:
    """Return JSON with one item per line, readable for people."""
    parts = [f'"version": {VERSION}']
    for kind, items in content.items():
        lines = ",\n".join(json.dumps(item) for item in items)
        parts.append(f'"{kind}": [\n{lines}\n]' if lines else f'"{kind}": []')
    return ("{" + ",\n".join(parts) + "}\n").encode()


def _decode(data: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(data)
    if (version := content["version"]) != VERSION:
        raise VersionMismatch(
            f"the archive is of version {version}, this program knows {VERSION}: update it"
        )
    return content


def _require_dense(ranges: Sequence[RangeFile | Page], name: str) -> None:
    for before, after in pairwise(ranges):
        if after.first != before.last + 1:
            raise Corrupt(f"{name}: after position {before.last} comes {after.first}")
