"""The tasks of an archive run, anywhere in the Spark cluster: write a range file, or verify
one. Both read the log itself, from its nodes, and never its archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, cast

from loomlog.archive import range_file
from loomlog.archive.location import Location
from loomlog.archive.manifest import RangeFile
from loomlog.client.blocking import BlockingLog, connect_sync
from loomlog.client.read.cuts import is_dense
from loomlog.errors import Corrupt, DataLoss
from loomlog.types import Glsn

SILENCE_S: Final = 60.0  # a task that receives nothing for this long fails and is retried


@dataclass(frozen=True, slots=True)
class Place:
    """A log and the directory of its archive."""

    cluster: str
    log: str
    location: str


@dataclass(frozen=True, slots=True)
class Writing:
    """A range file to be."""

    place: Place
    first: Glsn
    last: Glsn
    rows: int  # at most: the log may have gaps


@dataclass(frozen=True, slots=True)
class Checking:
    """A range file to check; the log has the positions from `head` on."""

    place: Place
    file: RangeFile
    head: Glsn

    @property
    def rows(self) -> int:
        return self.file.rows


@dataclass(frozen=True, slots=True)
class Checked:
    """A verified file; without a problem it equals what was written and what the log has."""

    file: RangeFile
    problem: str = ""


def write_file(task: Writing) -> RangeFile:
    with connect_sync(task.place.cluster) as cluster:
        rows = cluster.log(task.place.log).subscribe_arrow(
            task.first, task.last, archived=False, gaps=True, timeout_s=SILENCE_S
        )
        return range_file.write(Location(task.place.location), task.first, task.last, rows)


def check_file(task: Checking) -> Checked:
    location = Location(task.place.location)
    with connect_sync(task.place.cluster) as cluster:
        live: Iterable[Any] = ()
        if task.head <= task.file.last:
            first = max(task.head, task.file.first)
            live = cluster.log(task.place.log).subscribe_arrow(
                first, task.file.last, archived=False, gaps=True, timeout_s=SILENCE_S
            )
        try:
            range_file.check(location, task.file, live)
        except (Corrupt, DataLoss) as error:
            return Checked(task.file, str(error))
    return Checked(task.file)


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
    """Return the position of the next entry if a wide gap may come before it; otherwise `first`."""
    if is_dense(0, last):  # all positions of the log
        return first
    found = log.subscribe_arrow(first, last, archived=False, timeout_s=SILENCE_S)
    with closing(cast("Any", found)):
        rows = next(found, None)
        return last if rows is None else int(rows.column("position")[0].as_py())
