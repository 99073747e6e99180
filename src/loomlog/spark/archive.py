"""The archive job on Spark: a task for each range file, anywhere in the Spark cluster."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from loomlog.errors import LoomError, Retryable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loomlog.spark.archive_job import RunTasks

T = TypeVar("T")
R = TypeVar("R")

LOOK_EVERY_S: Final = 0.5


class _Failed(NamedTuple):
    """A task's error that trying again does not mend."""

    error: LoomError


def tasks_on(spark: SparkSession) -> RunTasks:
    """Runs the tasks of an archive job on Spark, which tries those again that fail."""
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
            if isinstance(result, _Failed):
                raise result.error
        return found

    return run


class _Careful:
    """Does the work of a task; hands an error back that is no use to try again."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def __call__(self, task: Any) -> Any:
        try:
            return self._work(task)
        except Retryable:
            raise
        except LoomError as error:
            return _Failed(error)


class _Watched:
    """Tells how many tasks of a job group are finished, as long as it is entered."""

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
    """The last line that says something: Spark's own message is a whole page."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if "Error: " in line or line.startswith("loomlog.errors.")]
    return (said or lines or [type(error).__name__])[0]
