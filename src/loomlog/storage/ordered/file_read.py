"""Two ways to read a file: wait for the disk, or give up where one would have to.

Lookups are written once, against `Read`; on the event loop they get `from_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from loomlog.storage.files import File

Read: TypeAlias = Callable[[File, int, int], bytearray]  # file, size, offset


class NotCached(Exception):  # noqa: N818 - not an error: the other way must be taken
    """The bytes are not in memory."""


def from_disk(file: File, size: int, offset: int) -> bytearray:
    return file.read(size, offset)


def from_cache(file: File, size: int, offset: int) -> bytearray:
    data = file.read_cached(size, offset)
    if data is None:
        raise NotCached
    return data
