"""What the tasks of an archive run do, anywhere in the Spark cluster: write a range file, or check
one. Both read the log itself, from its nodes, and never its archive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from loomlog.archive import range_file
from loomlog.archive.location import Location
from loomlog.archive.manifest import RangeFile
from loomlog.client.blocking import connect_sync
from loomlog.errors import Corrupt, DataLoss
from loomlog.types import Glsn

SILENCE_S: Final = 60.0  # a task that hears nothing for so long fails, and is tried again


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
    """What was found; no problem: it is as it was written, and as the log is."""

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
