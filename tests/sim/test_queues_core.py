"""Work queues: crashes, suspensions, late acknowledgements, lost answers; broken rules show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from queue_world import QueueWorld
from seed_chunks import chunks
from violation import Violation

from loomlog.client.queues.queue import Queue
from loomlog.core.queues.state import FREE, JobState, QueueState
from loomlog.types import Glsn

CHUNK = 8
CONTROL_SEEDS = 60


@pytest.mark.parametrize("chunk", chunks(80, quick=1))
def test_every_job_is_done_by_the_member_that_has_it(chunk: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        try:
            counts += QueueWorld(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    for what in ("handed out", "again", "done", "told", "lost"):
        assert counts[what], f"{what}: {counts}"


def is_found() -> bool:
    for seed in range(CONTROL_SEEDS):
        try:
            QueueWorld(seed).run()
        except Violation:
            return True
    return False


def test_a_job_that_is_finished_by_anybody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(self: QueueState, member: str, positions: Iterable[Glsn]) -> QueueState:
        done = set(positions)
        return replace(self, jobs={p: job for p, job in self.jobs.items() if p not in done})

    monkeypatch.setattr(QueueState, "finish", finish)
    monkeypatch.setattr(Queue, "_check", lambda self, job: None)
    assert is_found()


def test_a_job_that_two_take_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_new(
        self: QueueState, member: str, positions: Iterable[Glsn], through: Glsn
    ) -> QueueState:
        jobs = {**self.jobs, **{p: JobState(member, 1) for p in positions}}
        return replace(self, jobs=jobs, position=max(self.position, through))

    monkeypatch.setattr(QueueState, "take_new", take_new)
    assert is_found()


def test_attempts_that_are_not_counted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_again(self: QueueState, member: str, position: Glsn) -> QueueState:
        job = self.jobs.get(position)
        if job is None or job.owner != FREE:
            return self
        return replace(self, jobs={**self.jobs, position: JobState(member, job.attempts)})

    monkeypatch.setattr(QueueState, "take_again", take_again)
    assert is_found()


def test_an_entry_that_is_passed_though_it_is_there_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def skip(self: QueueState, through: Glsn) -> QueueState:
        return replace(self, position=max(self.position, through + 1))

    monkeypatch.setattr(QueueState, "skip", skip)
    assert is_found()
