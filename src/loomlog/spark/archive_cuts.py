"""Where an archive run cuts a log into files: by what is there, however wide the gaps are.

The positions of protocol `copyset` begin anew with every epoch, far above those before. A file has
all of such a gap, and the entries behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

from loomlog.client.blocking import BlockingLog
from loomlog.client.copyset.epochs import is_dense
from loomlog.spark.archive_tasks import SILENCE_S, Place, Writing
from loomlog.types import Glsn


def cut(
    log: BlockingLog, place: Place, first: Glsn, last: Glsn, rows_per_file: int
) -> Iterator[Writing]:
    """Files that together have all positions from `first` to `last`."""
    while first <= last:
        begin = _next_entry(log, first, last)
        end = min(begin + rows_per_file - 1, last)
        yield Writing(place, first, end, end - begin + 1)
        first = end + 1


def _next_entry(log: BlockingLog, first: Glsn, last: Glsn) -> Glsn:
    """Where the first one stands, looked for if a wide gap may come before it; else `first`."""
    if is_dense(0, last):  # all positions of the log
        return first
    found = log.subscribe_arrow(first, last, archived=False, timeout_s=SILENCE_S)
    with closing(cast("Any", found)):
        rows = next(found, None)
        return last if rows is None else int(rows.column("position")[0].as_py())
