"""Move a replica to another volume of its node. All functions block.

    lsid=7           on the old volume, in use until everything is copied
    lsid=7.moving    on the new volume, until everything is copied
    lsid=7.moved     on the old volume afterwards, until it is removed

The old directory is renamed first, and then the new one. So after a crash, a start finds either the
old directory or a complete new one (`finish_moves`), and never two with the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from loomlog.storage.files import Files
from loomlog.storage.ordered.replica_paths import REMOVED

MOVING: Final = ".moving"  # suffix of an incomplete copy
MOVED: Final = ".moved"  # suffix of the old directory when the copy is complete
PART_BYTES: Final = 4 << 20
_DIRECTORIES: Final = ("data", "commit")


def copy_file(files: Files, source: str, target: str) -> None:
    """Copy a file. The copy survives a power loss once its directory is synced."""
    files.make_directory(target.rpartition("/")[0])
    old = files.open(source)
    try:
        new = files.open(target, create=True)
        try:
            new.truncate(0)
            size, offset = old.size(), 0
            while offset < size:
                data = old.read(min(PART_BYTES, size - offset), offset)
                if not data:
                    break
                new.write([data], offset)
                offset += len(data)
            new.sync()
        finally:
            new.close()
    finally:
        old.close()


def copy_early(files: Files, source: str, path: str, names: Sequence[str]) -> set[str]:
    """Copy files that no longer change, and return the names of those that were copied: a trim may
    have removed some."""
    copied = set()
    for name in names:
        with suppress(FileNotFoundError):
            copy_file(files, f"{source}/{name}", f"{path}{MOVING}/{name}")
            copied.add(name)
    return copied


def move(files: Files, source: str, path: str, early: Collection[str]) -> None:
    """Copy the remaining files, and replace the old directory by the copy. Nothing may be written
    meanwhile."""
    moving = f"{path}{MOVING}"
    for directory in _DIRECTORIES:
        files.make_directory(f"{moving}/{directory}")
        there = [f"{directory}/{name}" for name in files.list(f"{source}/{directory}")]
        for name in files.list(f"{moving}/{directory}"):
            if f"{directory}/{name}" not in there:
                files.remove(f"{moving}/{directory}/{name}")
        for name in there:
            if name not in early:
                copy_file(files, f"{source}/{name}", f"{moving}/{name}")
        files.sync_directory(f"{moving}/{directory}")
    copy_file(files, f"{source}/meta", f"{moving}/meta")
    files.sync_directory(moving)
    files.sync_directory(_parent(path))
    _rename(files, source, source + MOVED)
    _rename(files, moving, path)


def take_back(files: Files, source: str, path: str) -> None:
    """Undo a move that failed at any step."""
    if files.exists(source + MOVED):
        if files.exists(path):
            _rename(files, path, path + REMOVED)
        _rename(files, source + MOVED, source)
    drop_copy(files, path)
    if files.exists(path + REMOVED):
        files.remove_tree(path + REMOVED)


def drop_copy(files: Files, path: str) -> None:
    """Remove an incomplete copy."""
    if files.exists(path + MOVING):
        files.remove_tree(path + MOVING)


def remove_moved(files: Files, source: str) -> None:
    """Remove the old directory after a move."""
    _rename(files, source + MOVED, source + REMOVED)
    files.remove_tree(source + REMOVED)


def finish_moves(files: Files, paths: Sequence[str]) -> None:
    """Finish or undo moves that a crash interrupted. `paths` are the node's directories on its
    volumes. If the volume with the copy is missing, the old directory is used."""
    found = [f"{path}/{name}" for path in paths for name in files.list(path)]
    replicas = [each for each in found if _name(each).startswith("lsid=")]
    for old in [each for each in replicas if each.endswith(MOVED)]:
        source = old.removesuffix(MOVED)
        names = (_name(source), _name(source) + MOVING)
        copies = [each for each in replicas if _name(each) in names]
        for copy in copies:
            if copy.endswith(MOVING):
                _rename(files, copy, copy.removesuffix(MOVING))
        if copies:
            remove_moved(files, source)
        else:
            _rename(files, old, source)
    for copy in [each for each in replicas if each.endswith(MOVING) and files.exists(each)]:
        files.remove_tree(copy)


def _rename(files: Files, source: str, target: str) -> None:
    files.rename(source, target)
    files.sync_directory(_parent(source))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
