"""Which jobs are done on the loop, and which go to the thread."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loomlog.storage.eager_worker import ALONE_S, QUICK_S, EagerWorker
from loomlog.storage.files import Finished, Step

QUICKLY_S = QUICK_S / 10
LATER_S = 10 * ALONE_S


class Thread:
    """Does what was handed in when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Sequence[Step], Finished]] = []

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self.jobs.append((steps, finished))

    def close(self) -> None:
        pass

    def work(self) -> None:
        steps, finished = self.jobs.pop(0)
        for step in steps:
            step()
        finished(None)


class WorkerRig:
    def __init__(self) -> None:
        self.now_s = 1.0
        self.thread = Thread()
        self.ends: list[BaseException | None] = []
        self.worker = EagerWorker(self.thread, lambda: self.now_s)

    def run(self, takes_s: float) -> bool:
        """A job that takes so long; whether it was done at once."""
        done = []

        def step() -> None:
            self.now_s += takes_s
            done.append(True)

        self.worker.run([step], self.ends.append)
        return bool(done)

    def known_to_be_quick(self) -> WorkerRig:
        assert not self.run(QUICKLY_S)  # the first one: nobody knows yet
        self.thread.work()
        self.now_s += LATER_S
        return self


@pytest.fixture
def rig() -> WorkerRig:
    return WorkerRig().known_to_be_quick()


def test_a_job_that_comes_alone_is_done_and_told_at_once(rig: WorkerRig) -> None:
    assert rig.ends == [None]  # of the first one
    assert rig.run(QUICKLY_S)
    assert rig.ends == [None, None]


def test_jobs_close_upon_each_other_go_to_the_thread(rig: WorkerRig) -> None:
    assert rig.run(QUICKLY_S)
    assert not rig.run(QUICKLY_S)
    rig.now_s += LATER_S
    assert not rig.run(QUICKLY_S)  # none overtakes another
    rig.thread.work()
    rig.thread.work()
    rig.now_s += LATER_S
    assert rig.run(QUICKLY_S)


def test_after_a_slow_one_the_loop_is_spared_until_they_are_quick_again(rig: WorkerRig) -> None:
    assert rig.run(5 * QUICK_S)
    for takes_s in (5 * QUICK_S, QUICKLY_S):
        rig.now_s += LATER_S
        assert not rig.run(takes_s)
        rig.thread.work()
    rig.now_s += LATER_S
    assert rig.run(QUICKLY_S)


def test_a_failure_is_told_like_that_of_a_thread(rig: WorkerRig) -> None:
    failure = OSError("no disk")

    def fail() -> None:
        raise failure

    rig.worker.run([fail], rig.ends.append)
    assert rig.ends[-1] is failure
