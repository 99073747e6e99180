"""Work queues on real servers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

import loomlog
from loomlog import errors
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
