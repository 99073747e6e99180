"""Python's own hook at start-up: gives a server a wall clock that an attack can set.

The file named by LOOM_CLOCK_OFFSET holds how far the clock is off, in seconds. It is read again
whenever it changes, so that a clock jumps while its server runs. Monotonic clocks are untouched,
as they are when somebody sets the clock of a real machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_now_ns = time.time_ns
_file = os.environ.get("LOOM_CLOCK_OFFSET", "")
_known: tuple[int, int] = (0, 0)  # when the file was changed, and the offset


def _offset_ns() -> int:
    global _known
    try:
        changed = os.stat(_file).st_mtime_ns
        if changed != _known[0]:
            _known = changed, int(float(Path(_file).read_text() or 0) * 1e9)
    except (OSError, ValueError):
        pass  # it is just being written
    return _known[1]


def _time_ns() -> int:
    return _now_ns() + _offset_ns()


def _time() -> float:
    return _time_ns() / 1e9


if _file:
    time.time_ns = _time_ns
    time.time = _time
