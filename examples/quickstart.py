"""Append, read, subscribe: the whole surface in one minute.

Start a cluster with `loom up`, then run this file. LOOM_CLUSTER says where the cluster is.
"""

import asyncio
import os

import loomlog


async def main() -> None:
    address = os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")
    async with await loomlog.connect(address) as cluster:
        log = await cluster.create_log("quickstart", streams=2, replicas=3, exist_ok=True)

        # An awaited append is on the disks of all replicas, and has its place in the order.
        at = await log.append(b"hello", key=b"greeting")
        print(f"appended at position {at.position}, stream {at.stream}")

        # Many at once: consecutive positions. (Concurrent append() calls are batched, too.)
        ats = await log.append_many([b"one", b"two", b"three"])
        print(f"appended positions {ats[0].position} to {ats[-1].position}")

        entry = await log.read(at.position)
        print(f"read back: {entry.value!r} with key {entry.key!r}, written {entry.timestamp}")

        # All readers see the same sequence, whatever streams the entries went to.
        # Without `stop` a subscription follows the tail forever.
        async for entry in log.subscribe(start=at.position, stop=ats[-1].position):
            print(f"{entry.position}: {entry.value.decode()}")


if __name__ == "__main__":
    asyncio.run(main())
