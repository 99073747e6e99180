"""Damaged data that was set aside, and how a salvaged store takes the place of a damaged one.

    <path>              the store
    <path>.salvaged     what takes its place, complete (salvage.py)
    <path>.damaged      the store as it was found: nothing is ever written there

A file `salvaged` in the store says that rows may be missing, and that the metadata repository may
not know it: the file comes with the store, and goes when it does.

Whatever is damaged keeps its bytes under a name that ends with `.damaged`, and perhaps a number:
stores, replicas of streams, files of theirs. Nothing reads it, and only an operator deletes it.
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
    """Return what was set aside in the directory of a node, except single files. Blocking."""
    return [f"{path}/{name}" for name in sorted(files.list(path)) if _NAME.fullmatch(name)]


def find_all(files: Files, path: str) -> list[str]:
    """Return what was set aside in the directory of a node. Blocking."""
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
    """Replace a store by a complete one, and return where it is now. Blocking."""
    files.rename(complete, salvaged := salvaged_path(path))
    aside = free_name(files, f"{path}.damaged")
    files.rename(path, aside)
    files.rename(salvaged, path)
    files.sync_directory(path.rpartition("/")[0])
    return aside


def salvaged_path(path: str) -> str:
    return f"{path}.salvaged"


def finish(files: Files, path: str) -> None:
    """Put a salvaged store in place if the process ended just before that. Blocking."""
    if not files.exists(path) and files.exists(salvaged_path(path)):
        files.rename(salvaged_path(path), path)
        files.sync_directory(path.rpartition("/")[0])


def is_unreported(files: Files, path: str) -> bool:
    """Return whether a store was salvaged and the metadata repository may not know. Blocking."""
    return files.exists(f"{path}/{MARK}")


def note_reported(files: Files, path: str) -> None:
    """Note that the metadata repository knows. Blocking."""
    with suppress(FileNotFoundError):
        files.remove(f"{path}/{MARK}")
        files.sync_directory(path)
