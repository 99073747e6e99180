"""A visit to a work queue takes jobs that are free, and new ones.

Visits on servers: tests/cluster/test_queue_visits.py."""

from __future__ import annotations

from loomlog.client.queues import visits
from loomlog.core.queues.state import JobState, QueueState

BEFORE = QueueState(7, 2, {1: JobState("0.1", 1), 2: JobState("0.1", 3)}, {"0.1": "gone"})


def take(
    before: QueueState, count: int, *, new: tuple[int, ...] = (), gone: tuple[str, ...] = ()
) -> QueueState:
    return visits._take(before, member="1.1", name="visit", gone=set(gone), new=[*new], count=count)


def test_jobs_of_members_that_are_gone_come_first() -> None:
    after = take(BEFORE, 3, new=(3, 4), gone=("0.1",))
    assert after.owned_by("1.1") == {1, 2, 3}
    assert after.jobs[2].attempts == 4
    assert after.position == 3, "the rest is left for others"
    assert list(after.members) == ["1.1"]


def test_jobs_of_members_that_are_there_are_theirs() -> None:
    after = take(BEFORE, 3, new=(3,))
    assert after.owned_by("1.1") == {3}
    assert after.owned_by("0.1") == {1, 2}


def test_what_another_visit_has_taken_meanwhile_is_not_taken() -> None:
    after = take(BEFORE, 3, new=(1, 2, 5))  # 3 and 4 are not entries
    assert after.owned_by("1.1") == {5}
    assert after.position == 5
    assert take(BEFORE, 3, new=(1, 2)).position == 2


def test_a_queue_with_many_open_jobs_takes_no_new_ones() -> None:
    open_jobs = {p: JobState("0.1", 1) for p in range(1, visits.OPEN_MAX)}
    full = QueueState(7, visits.OPEN_MAX - 1, open_jobs, {"0.1": "slow"})
    new = tuple(range(visits.OPEN_MAX, visits.OPEN_MAX + 9))
    after = take(full, 9, new=new)
    assert after.owned_by("1.1") == {visits.OPEN_MAX}
    assert take(after, 9, new=new[1:]).position == visits.OPEN_MAX
