"""Decides how much space a file allocates ahead of its data: little at first, then doubling.

Allocated space makes syncs cheaper, but a cluster may have thousands of logs that are hardly
written to.
"""

from __future__ import annotations

from typing import Final

_PARTS: Final = 256  # a new file is this many times smaller than a full one


def allocation(used: int, full: int) -> int:
    """Return the size of a file that holds `used` bytes and may grow to `full` bytes."""
    size = max(full // _PARTS, 1)
    while size < 2 * used:
        size *= 2
    return max(min(size, full), used)
