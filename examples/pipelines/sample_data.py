"""Something for the pipelines beside this file to read.

python examples/pipelines/sample_data.py access        -> log access
python examples/pipelines/sample_data.py impressions   -> logs impressions and clicks
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import loomlog
from loomlog.errors import AlreadyExists

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
PATHS = ("/", "/search", "/cart")
REQUESTS = 30_000
IMPRESSIONS = 3_000


def requests() -> Iterator[dict[str, Any]]:
    """Three minutes of a web server."""
    for n in range(REQUESTS):
        yield {
            "time": (BEGIN + timedelta(minutes=3) * n / REQUESTS).isoformat(),
            "path": PATHS[n % 7 % len(PATHS)],
            "status": 500 if n % 100 == 99 else 200,
            "bytes": 200 + n % 1000,
        }


def impressions() -> Iterator[dict[str, Any]]:
    """An hour of advertisements."""
    for n in range(IMPRESSIONS):
        yield {
            "impression": f"i{n}",
            "campaign": f"campaign {n % 5}",
            "price": 0.01 * (1 + n % 5),
            "shown": (BEGIN + timedelta(hours=1) * n / IMPRESSIONS).isoformat(),
        }


def clicks() -> Iterator[dict[str, Any]]:
    """Every tenth is clicked; every hundredth too late, after a quarter of an hour."""
    for n in range(0, IMPRESSIONS, 10):
        after = timedelta(minutes=15 if n % 100 == 0 else 5)
        shown = BEGIN + timedelta(hours=1) * n / IMPRESSIONS
        yield {"clicked": f"i{n}", "at": (shown + after).isoformat()}


def fill(cluster: loomlog.BlockingCluster, name: str, records: Iterator[dict[str, Any]]) -> None:
    """Append all of them to a log, which is made if it is not there."""
    try:
        log = cluster.create_log(name, streams=2)
    except AlreadyExists:
        log = cluster.log(name)
    values = [json.dumps(record).encode() for record in records]
    for at in range(0, len(values), 1_000):
        log.append_many(values[at : at + 1_000])
    print(f"{len(values):,} records in log {name}")


def main(what: str) -> None:
    with loomlog.connect_sync(os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")) as cluster:
        if what == "access":
            fill(cluster, "access", requests())
        elif what == "impressions":
            fill(cluster, "impressions", impressions())
            fill(cluster, "clicks", clicks())
        else:
            sys.exit("say what: access or impressions")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
