"""Measure how long a disk takes to make a small write durable."""

from __future__ import annotations

import statistics
import time
from typing import Final, NamedTuple

from loomlog.storage.files import Files, Space

WRITES: Final = 5
_CONTENT: Final = bytes(4096)


class DiskSpeed(NamedTuple):
    """The speed and the space of a disk."""

    sync_s: float  # for 4 KiB, the median
    space: Space
    error: str = ""  # not empty: it could not be measured


def measure(files: Files, directory: str) -> DiskSpeed:
    """Write and sync a file in the directory a few times, and remove it. Blocks."""
    path, taken_s = f"{directory}/sync-probe", []
    try:
        file = files.open(path, create=True)
        try:
            for _ in range(WRITES):
                begun_s = time.perf_counter()
                file.write([_CONTENT], 0)
                file.sync()
                taken_s.append(time.perf_counter() - begun_s)
        finally:
            file.close()
            files.remove(path)
        return DiskSpeed(statistics.median(taken_s), files.space(directory))
    except OSError as error:
        return DiskSpeed(0.0, Space(0, 0), error.strerror or str(error))
