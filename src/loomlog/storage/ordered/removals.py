"""Removes files of a replica in the background, or sets them aside while it restarts empty."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

from loomlog.storage.files import Files, Finished, Step, free_name
from loomlog.storage.ordered.journal import Channel, Journal

_WITH_ENTRIES: Final = ("data", "commit")
_WIPED: Final = "wiped"  # directory for files that were set aside, until they are removed


class Removals:
    """Removes unneeded files of one replica in the background.

    Each job removes one file, because that is slow and appends should not wait for all of them. It
    keeps the given order, oldest first, so that a crash leaves no hole."""

    def __init__(self, journal: Journal, channel: Channel) -> None:
        self._journal = journal
        self.channel = channel  # the replica's present channel
        self._waiting: deque[tuple[list[Step], Finished | None]] = deque()
        self._under_way = False

    def add(self, steps: Iterable[Step], done: Finished | None = None) -> None:
        """Add removals. `done` is called when they and all earlier ones are finished."""
        self._waiting.extend(([step], None) for step in steps)
        if done is not None:
            self._waiting.append(([], done))
        self._next()

    def _next(self) -> None:
        if self._waiting and not self._under_way:
            self._under_way = True
            steps, done = self._waiting.popleft()
            self._journal.call(self.channel, steps, partial(self._removed, done))

    def _removed(self, done: Finished | None, error: BaseException | None) -> None:
        self._under_way = False
        self._next()
        if done is not None:
            done(error)


def set_aside(files: Files, path: str) -> None:
    """Move the files of a replica that restarts empty out of the way. Blocking."""
    wiped = f"{path}/{_WIPED}"
    files.make_directory(wiped)
    for name in _WITH_ENTRIES:
        if files.exists(f"{path}/{name}"):
            if files.exists(f"{wiped}/{name}"):
                _keep_damaged(files, f"{wiped}/{name}", f"{path}/{name}")
                files.remove_tree(f"{wiped}/{name}")
            files.rename(f"{path}/{name}", f"{wiped}/{name}")
    files.sync_directory(path)


def remove_wiped(files: Files, path: str) -> None:
    """Remove the files that were set aside, but keep copies of damaged files. Blocking."""
    wiped = f"{path}/{_WIPED}"
    if files.exists(wiped):
        for name in _WITH_ENTRIES:
            if files.exists(f"{wiped}/{name}"):
                _keep_damaged(files, f"{wiped}/{name}", f"{path}/{name}")
        files.remove_tree(wiped)


def _keep_damaged(files: Files, source: str, target: str) -> None:
    """Move copies of damaged files to the replica's new directory."""
    names = [name for name in files.list(source) if ".damaged" in name]
    for name in names:
        files.rename(f"{source}/{name}", free_name(files, f"{target}/{name}"))
    if names:
        files.sync_directory(target)
