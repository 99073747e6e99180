"""The files of a replica that restarts empty: renamed at once, removed in the background."""

from __future__ import annotations

from typing import Final

from loomlog.storage.files import Files

_WIPED: Final = "wiped"


def set_aside(files: Files, path: str) -> None:
    """Move what does not count any more out of the way. Blocking."""
    wiped = f"{path}/{_WIPED}"
    files.make_directory(wiped)
    for name in ("data", "commit"):
        if files.exists(f"{path}/{name}"):
            if files.exists(f"{wiped}/{name}"):
                files.remove_tree(f"{wiped}/{name}")
            files.rename(f"{path}/{name}", f"{wiped}/{name}")
    files.sync_directory(path)


def remove(files: Files, path: str) -> None:
    """Remove what was set aside, if anything. Blocking."""
    wiped = f"{path}/{_WIPED}"
    if files.exists(wiped):
        files.remove_tree(wiped)
