"""Decides how much one micro-batch takes of a log, and how long it waits for more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from loomlog.client.blocking import BlockingLog
from loomlog.client.loglets.registry import is_dense
from loomlog.errors import Trimmed
from loomlog.types import Glsn

_COUNTED = ("key", "value", "headers")


class Patience:
    """Makes small numbers of records wait for more, but no longer than `delay_s`."""

    def __init__(self, records_min: int, delay_s: float) -> None:
        self._records_min = records_min
        self._delay_s = delay_s
        self._since: float | None = None  # when records were first seen to wait

    def is_over(self, records: int) -> bool:
        """Return whether there are enough records, or they have waited long enough."""
        now = time.monotonic()
        since = now if self._since is None else self._since
        if records >= self._records_min or (records > 0 and now - since >= self._delay_s):
            self._since = None
            return True
        self._since = since if records > 0 else None
        return False


def shares(waiting: Mapping[str, int], records_max: int) -> dict[str, int]:
    """Divide the records of a micro-batch among logs. Large logs get the shares that small ones do
    not use, and every log with records gets at least one, so that none starves."""
    found, left = {}, records_max
    logs = sorted((log for log in waiting if waiting[log] > 0), key=lambda log: waiting[log])
    for at, log in enumerate(logs):
        found[log] = min(waiting[log], max(left // (len(logs) - at), 1))
        left -= found[log]
    return found


def before_next(log: BlockingLog, done: Glsn, end: Glsn) -> Glsn:
    """Return the position before the next entry if only a gap follows `done`: a gap between
    epochs may be wider than the limit of a trigger."""
    if is_dense(done, end) or done + 1 < log.head():
        return done
    with log.subscribe_arrow(done + 1, end, payloads=False) as batches:
        rows = next(batches, None)
    return end if rows is None else int(rows.column("position")[0].as_py()) - 1


def within_bytes(
    log: BlockingLog, first: Glsn, last: Glsn, bytes_max: int, timeout_s: float
) -> Glsn:
    """Return the last position up to `last` so that the entries from `first` have at most this
    many bytes, but at least one entry. Trimmed entries have no size."""
    while (begin := max(first, log.earliest())) <= last:
        try:
            return _within_bytes(log, begin, last, bytes_max, timeout_s)
        except Trimmed:
            continue  # trimmed just now; the next attempt uses the new head
    return last


def _within_bytes(
    log: BlockingLog, first: Glsn, last: Glsn, bytes_max: int, timeout_s: float
) -> Glsn:
    left, taken = bytes_max, None
    with log.subscribe_arrow(first, last, timeout_s=timeout_s) as batches:
        for batch in batches:
            if not batch.num_rows:
                continue
            sizes = pc.cumulative_sum(_sizes(batch))
            fitting = int(pc.sum(pc.less_equal(sizes, left)).as_py())
            if fitting < batch.num_rows:
                if fitting or taken is None:
                    taken = batch.column(0)[max(fitting, 1) - 1].as_py()
                return int(taken)
            left -= sizes[-1].as_py()
            taken = batch.column(0)[-1].as_py()
    return last


def _sizes(batch: Any) -> Any:
    """Return the bytes of each record."""
    lengths = (pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in _COUNTED)
    key, value, headers = (length.cast("int64") for length in lengths)
    return pc.add(pc.add(key, value), headers)
