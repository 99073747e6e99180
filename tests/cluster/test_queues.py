"""Work queues on real servers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from poll import until

import loomlog
from loomlog import errors
from loomlog.client.blocking.contexts import BlockingJob
from loomlog.testing import LocalCluster


async def next_job(queue: loomlog.Queue) -> loomlog.Job:
    async with asyncio.timeout(30), aclosing(queue.__aiter__()) as jobs:
        return await anext(jobs)


async def test_jobs_are_acknowledged_in_any_order_by_several_tasks() -> None:
    done: list[int] = []

    async def work(queue: loomlog.Queue, delay_s: float) -> None:
        async for job in queue:
            await asyncio.sleep(delay_s)
            await job.ack()
            done.append(job.position)

    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("jobs", replicas=1)
        await log.append_many([b"%d" % n for n in range(60)])
        async with log.queue("q") as first, log.queue("q") as second, asyncio.timeout(60):
            tasks = [
                asyncio.create_task(work(queue, delay_s))
                for queue, delay_s in ((first, 0.001), (first, 0.01), (second, 0.003))
            ]
            while len(done) < 60:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            info = await first.describe()
            for task in tasks:
                task.cancel()
        assert sorted(done) == list(range(1, 61)), "each exactly once"
        assert (info.position, info.behind, info.taken, info.free) == (60, 0, 0, 0)
        with pytest.raises(errors.NotFound, match="no queue 'other'"):
            await log.queue("other").describe()
        await log.queue("q").delete()


async def test_a_job_that_fails_again_and_again_becomes_a_dead_letter() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("jobs", replicas=1)
        await log.append(b"bad", b"key", headers={"trace": b"7"})
        await log.append(b"good")
        async with log.queue("q", visibility_timeout_s=0.2, attempts_max=2) as queue:
            bad = await next_job(queue)
            good = await next_job(queue)
            await good.ack()
            again = await next_job(queue)  # nobody acknowledged it
            assert (again.position, again.attempts) == (bad.position, 2)
            with pytest.raises(errors.Fenced, match="not acknowledged within"):
                await bad.ack()
            await again.retry()
            await log.append(b"more")
            assert (await next_job(queue)).value == b"more"
        letters = cluster.log("jobs.dead-letters")
        assert await letters.tail() == 1
        letter = await letters.read(1)
        assert (letter.key, letter.value, letter.headers) == (b"key", b"bad", {"trace": b"7"})
        assert (await log.queue("q").describe()).free == 1, "who leaves gives its jobs back"


async def test_a_job_is_acknowledged_or_given_back_once() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("jobs", replicas=1)
        await log.append_many([b"a", b"b", b"c"])
        async with log.queue("q", prefetch=1, visibility_timeout_s=60) as queue:
            done = await next_job(queue)
            await asyncio.gather(done.ack(), done.ack())
            await done.ack()
            with pytest.raises(errors.InvalidArgument, match="at position 1 is acknowledged: it "):
                await done.retry()
            given_back = await next_job(queue)
            await given_back.retry()
            await given_back.retry()
            with pytest.raises(errors.Fenced, match="at position 2 was given back: it is handed"):
                await given_back.ack()
            again = await next_job(queue)
            assert (again.position, again.attempts) == (2, 2)
            await given_back.retry()
            await again.ack()
            held = await next_job(queue)
        await again.ack()
        with pytest.raises(errors.Fenced, match="because it has left: join it again"):
            await held.ack()


async def test_a_job_has_what_its_entry_has() -> None:
    moment = datetime(2026, 11, 18, tzinfo=UTC)

    def story(address: str) -> None:
        with (
            loomlog.connect_sync(address) as cluster,
            cluster.log("jobs").queue("blocking") as queue,
        ):
            check(next(iter(queue)))

    def check(job: loomlog.Job | BlockingJob) -> None:
        assert (job.value, job.key, job.position) == (b"v", b"k", 1)
        assert (job.headers, job.timestamp) == ({"trace": b"7"}, moment)
        assert job.timestamp_us == job.entry.timestamp_us

    local = LocalCluster(nodes=1)
    async with local as cluster:
        log = await cluster.create_log("jobs", replicas=1)
        await log.append(b"v", b"k", headers={"trace": b"7"}, timestamp=moment)
        async with log.queue("q") as queue:
            check(await next_job(queue))
        await asyncio.to_thread(story, local.address)


async def test_without_an_event_loop() -> None:
    def story(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.log("jobs")
            with log.queue("q", prefetch=1) as queue:
                for job in queue:
                    assert (job.value, job.attempts) == (b"x", 1)
                    job.ack()
                    if job.position == 3:
                        break
                assert queue.describe().behind == 0

    local = LocalCluster(nodes=1)
    async with local as cluster:
        await (await cluster.create_log("jobs", replicas=1)).append_many([b"x"] * 3)
        await asyncio.to_thread(story, local.address)
        with pytest.raises(errors.InvalidArgument, match="a number from 1 to 1000, not 0"):
            cluster.log("jobs").queue("q", attempts_max=0)
        with pytest.raises(errors.InvalidArgument, match="visibility_timeout_s must be seconds"):
            cluster.log("jobs").queue("q", visibility_timeout_s=0)


async def with_rows(cluster: loomlog.Cluster) -> loomlog.Log:
    """Return a log with an entry, two published rows, which can be lost, and an entry."""
    log = await cluster.create_log("jobs", replicas=1)
    await log.append(b"first")
    rows = pa.record_batch({"value": [b"second", b"third"]})
    await (await log.writer("w")).publish(1, await log.stage(rows))
    await log.append(b"last")
    return log


async def lose_rows(cluster: loomlog.Cluster) -> None:
    staging = cluster.log("jobs.staged")
    await staging.trim(await staging.tail())  # by hand: nobody should


async def test_lost_entries_are_reported_once_and_passed() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await with_rows(cluster)
        await lose_rows(cluster)
        async with log.queue("q") as queue, log.queue("q") as other:
            assert (await next_job(queue)).value == b"first"
            with pytest.raises(
                errors.DataLoss, match="positions 2 to 3 of log 'jobs' are lost, and queue 'q'"
            ):
                await next_job(queue)
            assert (await next_job(queue)).value == b"last"
            await log.append(b"more")
            assert (await next_job(other)).value == b"more"


async def test_a_job_whose_entry_is_lost_after_it_was_taken_is_reported_once() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await with_rows(cluster)
        async with log.queue("q") as queue:
            jobs = [await next_job(queue) for _ in range(4)]
            await jobs[0].ack()
        await lose_rows(cluster)
        async with log.queue("q") as queue:
            for position in (2, 3):
                match = (
                    f"positions {position} to {position} of log 'jobs' are lost, and queue 'q' has"
                )
                with pytest.raises(errors.DataLoss, match=match):
                    await next_job(queue)
            last = await next_job(queue)
            assert (last.value, last.attempts) == (b"last", 2)
            await last.ack()
            assert (await queue.describe()).taken == 0


async def test_visits_pass_what_is_lost() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await with_rows(cluster)
        visits = log.queue("q").visits
        taken = await visits.take(2)
        await visits.retry(taken.receipt, [1, 2])
        await lose_rows(cluster)
        with pytest.raises(errors.DataLoss, match="positions 2 to 2 of log 'jobs' are lost"):
            await visits.take(10)
        taken = await visits.take(1)
        assert [job.entry.value for job in taken.jobs] == [b"first"]
        assert await visits.ack(taken.receipt, [1]) == [1]
        with pytest.raises(errors.DataLoss, match="positions 3 to 3 of log 'jobs' are lost"):
            await visits.take(10)
        taken = await visits.take(10)
        assert [job.entry.value for job in taken.jobs] == [b"last"]
        assert await visits.ack(taken.receipt, [4]) == [4]
        assert await visits.take(10) == ("", [])


async def test_trimmed_entries_are_passed() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await with_rows(cluster)
        await log.trim(4)
        async with log.queue("q") as queue, asyncio.timeout(30):
            waiting = asyncio.create_task(next_job(queue))
            await until(queue.describe, lambda info: info.behind == 0)
            await log.append(b"more")
            assert (await waiting).value == b"more"
