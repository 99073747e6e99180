"""Writes new manifests of an archive and removes files that no manifest names.

A manifest takes effect when the log's register names it; `Saved` is what the register has to say.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from crc32c import crc32c

from loomlog.archive import manifest
from loomlog.archive.manifest import Manifest, Page, RangeFile
from loomlog.archive.reader import Archive

_OURS: Final = re.compile(r"(positions|page|manifest)-\d.*\.(parquet|json)(\.partial)?")


class Saved(NamedTuple):
    """A written manifest."""

    name: str
    crc32c: int
    manifest: Manifest


def extend(archive: Archive, files: Iterable[RangeFile]) -> Saved:
    """Write a manifest with more files at its end."""
    made = archive.manifest()
    made = replace(made, files=(*made.files, *files))
    while len(made.files) > manifest.FILES_PER_PAGE:
        page = _save_page(archive, made.files[: manifest.FILES_PER_PAGE])
        rest = made.files[manifest.FILES_PER_PAGE :]
        made = Manifest((*made.pages, page), rest)
    return _save(archive, made)


def exchange(archive: Archive, files: Mapping[str, RangeFile]) -> Saved:
    """Write a manifest with other files for the same ranges, keyed by the files they replace."""
    made = archive.manifest()
    pages = []
    for page in made.pages:
        before = list(archive.files(page.first, page.last))
        after = [files.get(file.name, file) for file in before]
        pages.append(page if after == before else _save_page(archive, after))
    listed = tuple(files.get(file.name, file) for file in made.files)
    return _save(archive, Manifest(tuple(pages), listed))


def clean(archive: Archive) -> list[str]:
    """Delete files that interrupted runs left behind, and return their names."""
    named = {archive.info.manifest, *(page.name for page in archive.manifest().pages)}
    named |= {file.name for file in archive.files()}
    left = [n for n in archive.location.names() if n not in named and _OURS.fullmatch(n)]
    for name in left:
        archive.location.delete(name)
    return left


def _save(archive: Archive, made: Manifest) -> Saved:
    through = made.ranges[-1].last if made.ranges else 0
    name = f"manifest-{through}.{secrets.token_hex(6)}.json"
    data = made.encode()
    archive.location.write(name, data)
    return Saved(name, crc32c(data), made)


def _save_page(archive: Archive, files: Iterable[RangeFile]) -> Page:
    files = list(files)
    first, last = files[0].first, files[-1].last
    name = f"page-{first}-{last}.{secrets.token_hex(6)}.json"
    data = manifest.encode_page(files)
    archive.location.write(name, data)
    size_bytes = sum(file.size_bytes for file in files)
    return Page(name, first, last, len(files), size_bytes, crc32c(data))
