"""Two programs share a log: each gets the entries of some keys, in order, and every one once.

Start a cluster with `loom up`, then run this file several times. LOOM_CLUSTER says where it is.
"""

import asyncio
import os

import loomlog


async def work(log: loomlog.Log, name: str, done: set[int], wanted: int) -> None:
    """Process entries until all are done. In real life this is a program of its own."""
    async with log.group("billing", shards=16, member=name) as group:
        async for entry in group:
            print(f"{name}: {entry.value.decode()} of {(entry.key or b'').decode()}")
            await group.commit()  # it is not handed out again, to anybody
            done.add(entry.position)
            if len(done) >= wanted:
                return


async def main() -> None:
    address = os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")
    async with await loomlog.connect(address) as cluster:
        log = await cluster.create_log("orders-to-bill", exist_ok=True)
        keys = [b"customer-%d" % (number % 7) for number in range(40)]
        await log.append_many([b"order %d" % number for number in range(40)], keys)

        done: set[int] = set()
        workers = [asyncio.create_task(work(log, name, done, len(keys))) for name in ("a", "b")]
        await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        print(f"{len(done)} orders billed")


if __name__ == "__main__":
    asyncio.run(main())
