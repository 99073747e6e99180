"""Visits to a work queue: many clients take jobs at once, without joining it."""

from __future__ import annotations

import asyncio

import pytest

from loomlog import Log
from loomlog.client.queues.visits import QueueVisits
from loomlog.errors import Fenced
from loomlog.testing import LocalCluster


def visits(log: Log, visibility_timeout_s: float = 30.0, attempts_max: int = 5) -> QueueVisits:
    """Return the visits of another process, which shares no state with the others."""
    return log.queue(
        "jobs", visibility_timeout_s=visibility_timeout_s, attempts_max=attempts_max
    ).visits


async def test_each_of_many_visits_gets_jobs_while_there_are_some() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("log", replicas=1)
        await log.append_many([b"%d" % n for n in range(10)])
        taken = await asyncio.gather(*(visits(log).take(2) for _ in range(5)))
        assert [len(each.jobs) for each in taken] == [2] * 5
        positions = [job.entry.position for each in taken for job in each.jobs]
        assert sorted(positions) == list(range(1, 11))
        assert (await visits(log).take(2)).receipt == ""


async def test_only_jobs_that_a_visit_has_are_acknowledged() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("log", replicas=1)
        await log.append_many([b"a", b"b", b"c"])
        first = await visits(log).take(2)
        await visits(log).retry(first.receipt, [2])
        assert await visits(log).ack(first.receipt, [1, 2, 3]) == [1]
        assert await visits(log).ack(first.receipt, [1]) == [1]  # a repeated request
        second = await visits(log).take(3)
        assert [(job.entry.position, job.attempts) for job in second.jobs] == [(2, 2), (3, 1)]
        with pytest.raises(Fenced):
            await visits(log).ack("nobody", [2])


async def test_what_failed_too_often_does_not_end_a_visit() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("log", replicas=1)
        await log.append_many([b"bad", b"good"])
        bad = await visits(log).take(1)
        await visits(log).retry(bad.receipt, [1])
        good = await visits(log, attempts_max=1).take(1)
        assert [job.entry.value for job in good.jobs] == [b"good"]
        assert (await cluster.log("log.dead-letters").read(1)).value == b"bad"
