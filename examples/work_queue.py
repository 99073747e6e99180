"""A work queue: workers take jobs one by one, in no order; a job that fails is handed out again.

Start a cluster with `loom up`, then run this file, several times. LOOM_CLUSTER says where it is.
"""

import asyncio
import os

import loomlog

JOBS = 20


async def work(log: loomlog.Log, name: str, done: dict[int, str]) -> None:
    """Take jobs until nobody needs this worker. In real life this is a program of its own."""
    failed: set[int] = set()
    async with log.queue("thumbnails", prefetch=1, member=name) as queue:
        async for job in queue:
            if job.value.endswith(b"7") and job.position not in failed:  # fails the first time
                failed.add(job.position)
                await job.retry()
                continue
            await asyncio.sleep(0.01)  # the work
            await job.ack()  # it is not handed out again
            done[job.position] = name


async def main() -> None:
    address = os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")
    async with await loomlog.connect(address) as cluster:
        log = await cluster.create_log("images", exist_ok=True)
        jobs = await log.append_many([b"image %d" % number for number in range(JOBS)])

        done: dict[int, str] = {}
        workers = [asyncio.create_task(work(log, name, done)) for name in ("ann", "ben", "cem")]
        async with asyncio.timeout(60):
            while not done.keys() >= {job.position for job in jobs}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        print(f"{JOBS} images done by {', '.join(sorted({*done.values()}))}")


if __name__ == "__main__":
    asyncio.run(main())
