"""The tasks of an archive run: write a range file, or verify one; and how Spark runs them.

Tasks run anywhere in the Spark cluster. They read the log itself, from its nodes, and never its
archive.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from loomlog.archive import range_file
from loomlog.archive.location import Location
from loomlog.archive.manifest import RangeFile
from loomlog.client import row_ranges
from loomlog.client.blocking import BlockingLog, connect_sync
from loomlog.client.row_ranges import SILENCE_S
from loomlog.errors import Corrupt, DataLoss, LoomError, Retryable
from loomlog.types import Glsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loomlog.spark.archive_job import RunTasks

T = TypeVar("T")
R = TypeVar("R")

LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """A log and the directory of its archive."""

    cluster: str
    log: str
    location: str


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A range file to write."""

    place: ArchivedLog
    first: Glsn
    last: Glsn
    rows: int  # at most: the log may have gaps


@dataclass(frozen=True, slots=True)
class CheckTask:
    """A range file to check; the log has the positions from `head` on."""

    place: ArchivedLog
    file: RangeFile
    head: Glsn

    @property
    def rows(self) -> int:
        return self.file.rows


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of verifying a file: intact and equal to the log, or the problem."""

    file: RangeFile
    problem: str = ""


def write_file(task: WriteTask) -> RangeFile:
    with connect_sync(task.place.cluster) as cluster:
        rows = cluster.log(task.place.log).subscribe_arrow(
            task.first, task.last, archived=False, gaps=True, timeout_s=SILENCE_S
        )
        return range_file.write(Location(task.place.location), task.first, task.last, rows)


def check_file(task: CheckTask) -> Checked:
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
    log: BlockingLog, place: ArchivedLog, first: Glsn, last: Glsn, rows_per_file: int
) -> Iterator[WriteTask]:
    """Yield ranges of files that together cover all positions from `first` to `last`."""
    for part in row_ranges.cut(log, first, last, rows_per_file):
        yield WriteTask(place, *part)


# ---- on Spark


class _FailedTask(NamedTuple):
    """The error of a task that a retry cannot fix."""

    error: LoomError


def tasks_on(spark: SparkSession) -> RunTasks:
    """Run the tasks of an archive job on Spark, which retries those that fail."""
    context = spark.sparkContext

    def run(work: Callable[[T], R], tasks: Sequence[T], finished: Callable[[int], None]) -> list[R]:
        group = f"loomlog-archive-{secrets.token_hex(4)}"
        context.setJobGroup(group, "loomlog archive")
        job = context.parallelize(list(tasks), len(tasks)).map(_Careful(work))
        with _Watched(context.statusTracker(), group, finished):
            try:
                found = job.collect()
            except Exception as error:
                raise LoomError(f"a task of the archive job fails: {_why(error)}") from error
        for result in found:
            if isinstance(result, _FailedTask):
                raise result.error
        return found

    return run


class _Careful:
    """Runs a task; returns an error that a retry cannot fix."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def __call__(self, task: Any) -> Any:
        try:
            return self._work(task)
        except Retryable:
            raise
        except LoomError as error:
            return _FailedTask(error)


class _Watched:
    """Reports how many tasks of a job group are finished, within a `with` block."""

    def __init__(self, tracker: Any, group: str, finished: Callable[[int], None]) -> None:
        self._tracker = tracker
        self._group = group
        self._finished = finished
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._finished(sum(map(self._completed, self._stages())))

    def _stages(self) -> list[int]:
        jobs = map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group))
        return [stage for job in jobs if job is not None for stage in job.stageIds]

    def _completed(self, stage: int) -> int:
        info = self._tracker.getStageInfo(stage)
        return 0 if info is None else int(info.numCompletedTasks)


def _why(error: Exception) -> str:
    """Return the informative line of an error: Spark's own message is a whole page."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if "Error: " in line or line.startswith("loomlog.errors.")]
    return (said or lines or [type(error).__name__])[0]
