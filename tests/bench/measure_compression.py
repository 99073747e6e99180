"""Measure what compression of batches saves and costs, in CPU time of this process:

python tests/bench/measure_compression.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from random import Random
from typing import Any

from loomlog.columns import decode
from loomlog.columns.writer import encode
from loomlog.limits import APPEND_BATCH_BYTES

ROUNDS = 40


def orders(random: Random, count: int) -> list[bytes]:
    """Return JSON objects as programs write them."""
    return [
        json.dumps(
            {
                "order": random.getrandbits(40),
                "customer": f"customer-{random.randrange(5000)}",
                "state": random.choice(["new", "paid", "sent"]),
                "cents": random.randrange(100_000),
                "items": [random.randrange(2000) for _ in range(random.randrange(1, 6))],
                "at": f"2026-11-17T{random.randrange(24):02}:{random.randrange(60):02}:00Z",
                "note": "leave at the door" if random.random() < 0.2 else "",
            }
        ).encode()
        for _ in range(count)
    ]


def noise(random: Random, count: int) -> list[bytes]:
    return [random.randbytes(200) for _ in range(count)]


def cpu_s(work: Callable[[], Any]) -> float:
    began_s = time.process_time()
    for _ in range(ROUNDS):
        work()
    return (time.process_time() - began_s) / ROUNDS


def main() -> None:
    for name, make in (("JSON", orders), ("random", noise)):
        for batch_bytes in (APPEND_BATCH_BYTES // 16, APPEND_BATCH_BYTES):
            values = make(Random(1), batch_bytes // 200)
            raw = sum(map(len, values))
            for compression in ("none", "lz4", "zstd"):

                def write(values: list[bytes] = values, compression: str = compression) -> Any:
                    return encode(values, timestamps_us=1, compression=compression)

                batch = bytes(write())
                writing_s = cpu_s(write)
                reading_s = cpu_s(lambda batch=batch: list(decode(batch).entries()))  # type: ignore[misc]
                print(
                    f"{name:7} {batch_bytes // 1024:4} KiB {compression:5} "
                    f"stored {len(batch) / raw:5.2f} of the values, "
                    f"written with {raw / writing_s / 1e6:6.0f} MB/s, "
                    f"read with {raw / reading_s / 1e6:6.0f} MB/s"
                )


if __name__ == "__main__":
    main()
