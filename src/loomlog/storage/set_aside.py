"""Set damaged data aside, and replace a damaged store by a salvaged one.

    <path>              the store
    <path>.salvaged     its replacement, complete (salvage.py)
    <path>.damaged      the damaged store, unchanged

A file `salvaged` in the store means that rows may be missing, perhaps all of them, and that the
metadata repository may not know it yet. It is created with the store, and removed once the metadata
repository knows.

Damaged stores, replicas of streams, and their files are kept under names that end with `.damaged`
and perhaps a number. Nothing reads them, and only an operator deletes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from loomlog.storage.files import Files, free_name

MARK: Final = "salvaged"
_NAME: Final = re.compile(r".+\.damaged(-?\d+)?")
_STREAM: Final = "lsid="
_DEPTH_MAX: Final = 2  # of files in the directory of a stream


def find(files: Files, path: str) -> list[str]:
    """Return the stores and replicas that were set aside in the directory of a node. Blocking."""
    return [f"{path}/{name}" for name in sorted(files.list(path)) if _NAME.fullmatch(name)]


def find_all(files: Files, path: str) -> list[str]:
    """Return everything that was set aside in the directory of a node. Blocking."""
    streams = [name for name in files.list(path) if name.startswith(_STREAM)]
    found = [*find(files, path)]
    for name in streams:
        if not _NAME.fullmatch(name):
            found += _find_files(files, f"{path}/{name}", _DEPTH_MAX)
    return sorted(found)


def _find_files(files: Files, path: str, depth: int) -> Iterator[str]:
    try:
        names = files.list(path)
    except NotADirectoryError:
        return
    for name in names:
        if _NAME.fullmatch(name):
            yield f"{path}/{name}"
        elif depth > 1:
            yield from _find_files(files, f"{path}/{name}", depth - 1)


def replace_store(files: Files, path: str, complete: str) -> str:
    """Replace a store by a complete one. Return the new path of the damaged one. Blocking."""
    files.rename(complete, salvaged := salvaged_path(path))
    aside = free_name(files, f"{path}.damaged")
    files.rename(path, aside)
    files.rename(salvaged, path)
    files.sync_directory(path.rpartition("/")[0])
    return aside


def salvaged_path(path: str) -> str:
    return f"{path}.salvaged"


def finish(files: Files, path: str) -> None:
    """Finish replacing a store, if the process ended in the middle of it. Blocking."""
    if not files.exists(path) and files.exists(salvaged_path(path)):
        files.rename(salvaged_path(path), path)
        files.sync_directory(path.rpartition("/")[0])


def is_unreported(files: Files, path: str) -> bool:
    """Return whether a store was salvaged and the metadata repository may not know it. Blocking."""
    return files.exists(f"{path}/{MARK}")


def note_unreported(files: Files, path: str) -> None:
    """Called when a store takes the place of one that is gone. Blocking."""
    files.open(f"{path}/{MARK}", create=True).close()
    files.sync_directory(path)


def note_reported(files: Files, path: str) -> None:
    """Called when the metadata repository knows that the store was salvaged. Blocking."""
    with suppress(FileNotFoundError):
        files.remove(f"{path}/{MARK}")
        files.sync_directory(path)
