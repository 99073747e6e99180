"""Read a log as Arrow record batches: columns, no Python per record.

Start a cluster with `loom up`, then run this file. LOOM_CLUSTER says where the cluster is.
"""

import asyncio
import os

import pyarrow.compute as pc

import loomlog

RECORDS = 20_000


async def main() -> None:
    address = os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")
    async with await loomlog.connect(address) as cluster:
        log = await cluster.create_log("measurements", streams=2, replicas=3, exist_ok=True)

        first = await log.tail() + 1
        for begin in range(0, RECORDS, 1000):
            await log.append_many([b"%d" % n for n in range(begin, begin + 1000)])

        rows = total = 0
        async for batch in log.subscribe_arrow(start=first, stop=await log.tail()):
            numbers = pc.cast(pc.cast(batch.column("value"), "string"), "int64")
            rows += batch.num_rows
            total += pc.sum(numbers).as_py()
        print(f"{rows:,} records, their sum is {total:,}; columns: {batch.schema.names}")
        assert total == RECORDS * (RECORDS - 1) // 2


if __name__ == "__main__":
    asyncio.run(main())
