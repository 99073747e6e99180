"""A worker for jobs that are mostly short, of which a caller waits for the end of each.

To hand a job to a thread and its end back to the loop costs about as much as a sync. So a job that
comes alone is done on the loop, as long as such jobs were quick lately: who asks one by one has its
answer sooner. When jobs come close upon each other, or the disk is slow, they go to the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from loomlog.storage.files import Finished, Step, Worker

QUICK_S: Final = 0.001  # longer than that the loop must not stand still, but for the first time
ALONE_S: Final = 0.0003  # since the end of the job before


class EagerWorker:
    """Runs small jobs on the loop and others on the worker behind it, in order. The callback of a
    job that runs on the loop is called before `run` returns."""

    def __init__(
        self,
        worker: Worker,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._under_way = 0  # in the thread
        self._ended_s = 0.0
        self._took_s = QUICK_S  # the first one shows how quick they are

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        began_s = self._clock()
        alone = not self._under_way and began_s - self._ended_s >= ALONE_S
        if alone and self._took_s < QUICK_S:
            self._run_here(steps, finished, began_s)
        else:
            self._hand_over(steps, finished, began_s)

    def close(self) -> None:
        self._worker.close()

    def _run_here(self, steps: Sequence[Step], finished: Finished, began_s: float) -> None:
        error: BaseException | None = None
        try:
            for step in steps:
                step()
        except Exception as failure:
            error = failure
        self._ended(began_s)
        finished(error)

    def _hand_over(self, steps: Sequence[Step], finished: Finished, began_s: float) -> None:
        def ended(error: BaseException | None) -> None:
            self._under_way -= 1
            self._ended(began_s)
            finished(error)

        self._under_way += 1
        self._worker.run(steps, ended)

    def _ended(self, began_s: float) -> None:
        self._ended_s = self._clock()
        self._took_s = self._ended_s - began_s
