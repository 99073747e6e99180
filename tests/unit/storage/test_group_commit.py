"""Waiting requests share a commit; after a failed one, nothing is acknowledged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loomlog.storage import group_commit
from loomlog.storage.files import Finished, Step
from loomlog.storage.group_commit import GroupCommit


class HeldWorker:
    """A worker that runs its jobs when the test lets it."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Sequence[Step], Finished]] = []

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self.jobs.append((steps, finished))

    run_short = run

    def close(self) -> None:
        pass

    def work(self) -> None:
        """Run the oldest job."""
        steps, finished = self.jobs.pop(0)
        try:
            for step in steps:
                step()
        except OSError as error:
            finished(error)
        else:
            finished(None)


class Numbers(GroupCommit[int, str, str]):
    """Commits numbers; one below zero fails the disk."""

    content = "numbers"

    def __init__(self) -> None:
        self.commits, self.look_ups = HeldWorker(), HeldWorker()
        self.failures: list[BaseException] = []
        super().__init__(self.commits, self.look_ups, self.failures.append)
        self.groups: list[tuple[list[int], int]] = []
        self.answers: list[str] = []
        self.rests: list[int] = []  # the commits before each

    def _commit(self, requests: Sequence[int], size: int) -> list[str]:
        self.groups.append((list(requests), size))
        if min(requests) < 0:
            raise OSError("broken")
        return [f"stored {number}" for number in requests]

    def _disk_failed(self, error: BaseException) -> str:
        return f"refused: {error}"

    def _rest(self) -> None:
        self.rests.append(len(self.groups))

    def put(self, number: int, size: int = 1) -> bool:
        return self._enqueue(number, size, self.answers.append)

    def add(self, number: int) -> None:
        self._add(number, self.answers.append)

    def hurry(self) -> None:
        self._hurry()

    def look(self, number: int) -> bool:
        def question() -> str:
            if number < 0:
                raise OSError("unreadable")
            return f"found {number}"

        return self._look_up(question, self.answers.append, self._disk_failed)


def test_what_comes_during_a_commit_shares_the_next_one() -> None:
    store = Numbers()
    for number in (1, 2, 3):
        assert store.put(number)
    store.commits.work()
    assert store.groups == [([1], 1)]
    assert store.answers == ["stored 1"]
    store.commits.work()
    assert store.groups[1:] == [([2, 3], 2)]
    assert store.answers == ["stored 1", "stored 2", "stored 3"]
    assert store.rests == [2]


def test_what_nobody_waits_for_is_part_of_the_next_commit() -> None:
    store = Numbers()
    store.add(1)
    assert not store.commits.jobs
    store.put(2)
    store.add(3)
    store.commits.work()
    assert store.groups == [([1, 2], 1)]
    assert not store.commits.jobs
    store.hurry()
    store.hurry()
    store.commits.work()
    assert store.groups[1:] == [([3], 0)]
    store.hurry()
    assert not store.commits.jobs
    assert store.answers == ["stored 1", "stored 2", "stored 3"]


def test_after_a_failed_commit_everything_is_refused() -> None:
    store = Numbers()
    store.put(1)
    store.put(-1)
    store.put(2)
    store.commits.work()
    store.put(3)
    store.commits.work()
    assert store.answers == ["stored 1", "refused: broken", "refused: broken"]
    store.commits.work()  # it had begun, and commits nothing
    assert store.answers[3:] == ["refused: broken"]
    assert store.groups == [([1], 1), ([-1, 2], 2)]
    assert [str(error) for error in store.failures] == ["broken"]
    assert store.failed == "refused: broken"


def test_what_waits_is_bounded_in_bytes_and_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "WAITING_BYTES_MAX", 10)
    monkeypatch.setattr(group_commit, "LOOK_UPS_MAX", 2)
    store = Numbers()
    assert store.put(1, 100)  # alone it may be larger
    assert store.put(2, 6)
    assert not store.put(3, 5)
    assert store.put(4, 4)
    assert [store.look(5), store.look(6), store.look(7)] == [True, True, False]
    store.look_ups.work()
    assert store.look(8)


def test_a_look_up_that_fails_says_so_and_others_go_on() -> None:
    store = Numbers()
    store.look(-1)
    store.look(1)
    store.look_ups.work()
    store.look_ups.work()
    assert store.answers == ["refused: unreadable", "found 1"]
    store.look(2)
    store.fail(OSError("gone"))
    store.look_ups.work()
    assert store.answers[2:] == ["refused: gone"]
