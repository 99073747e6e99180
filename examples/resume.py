"""A reader that continues where it was, however often it is stopped and started.

Start a cluster with `loom up`, then run this file several times. LOOM_CLUSTER says where it is.
"""

import asyncio
import os

import loomlog


async def main() -> None:
    address = os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")
    async with await loomlog.connect(address) as cluster:
        log = await cluster.create_log("resume", retention="7d", exist_ok=True)
        await log.append_many([b"one", b"two", b"three"])

        checkpoint = log.checkpoint("example")
        done = await checkpoint.get() or 0
        async for entry in log.subscribe(start=done + 1, stop=await log.tail()):
            print(f"{entry.position}: {entry.value.decode()}")  # what you do with an entry
            done = await checkpoint.set(entry.position)  # then it is not seen again
        print(f"done up to {done}")


if __name__ == "__main__":
    asyncio.run(main())
