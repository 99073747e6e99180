"""Python's own hook at start-up: gives servers little patience, and data without an age.

A recovery makes do without nodes that may have what all others have forgotten after a few attempts,
and a chain after a second, instead of 30 s; and a copy of a disk never counts as older data,
however long a test takes.
"""

from __future__ import annotations

from loomlog.core.copyset import recovery
from loomlog.metadata.chained import epochs
from loomlog.node import age_marks

recovery.CRASHED_ATTEMPTS = 3  # type: ignore[misc]
epochs.CRASHED_WAIT_S = 1.0  # type: ignore[misc]
age_marks.GROW_S = 1e6  # type: ignore[misc]
