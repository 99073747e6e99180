"""How long it takes to force writes to disk, over all disks of this process."""

from __future__ import annotations

from threading import Lock
from time import perf_counter

from loomlog.meters import Histogram

TIMES = Histogram()
_lock = Lock()  # several workers sync at the same time


def note_sync(begun_s: float) -> None:
    """Note a sync that began at this time of `perf_counter` and is done."""
    duration_s = perf_counter() - begun_s
    with _lock:
        TIMES.observe(duration_s)
