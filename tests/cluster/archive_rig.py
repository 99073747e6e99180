"""A cluster in a thread of its own, and a log in it that can be filled and archived."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import loomlog
from loomlog.archive.record import ArchiveInfo
from loomlog.spark import archive_job
from loomlog.spark.archive_job import ArchiveOutcome
from loomlog.testing import LocalCluster


@contextmanager
def local_cluster() -> Iterator[str]:
    """Run a cluster that blocking clients and other processes reach over TCP; yield its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    local = LocalCluster(nodes=2, sync="none")
    asyncio.run_coroutine_threadsafe(local.__aenter__(), loop).result(30)
    try:
        yield local.address
    finally:
        asyncio.run_coroutine_threadsafe(local.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@dataclass
class ArchiveRig:
    cluster: loomlog.BlockingCluster
    address: str
    log: loomlog.BlockingLog
    directory: Path  # where archives go

    @classmethod
    def make(
        cls, cluster: loomlog.BlockingCluster, address: str, directory: Path, streams: int = 3
    ) -> ArchiveRig:
        log = cluster.create_log(f"log-{uuid.uuid4().hex[:8]}", streams=streams, replicas=1)
        return cls(cluster, address, log, directory)

    def fill(self, count: int, batch: int = 7) -> None:
        """Append the values b"1", b"2", …: each is its position unless something else appends."""
        streams = [stream.id for stream in self.log.describe().streams]
        first = self.log.tail() + 1
        for turn, begin in enumerate(range(first, first + count, batch)):
            numbers = range(begin, min(begin + batch, first + count))
            self.log.append_many(
                [b"%d" % n for n in numbers],
                [b"key-%d" % n if n % 2 else None for n in numbers],
                stream=streams[turn % len(streams)],
            )

    def archive(self, until: int | None = None, **options: Any) -> ArchiveOutcome:
        given: dict[str, Any] = {"to": str(self.directory), "rows_per_file": 20} | options
        last = self.log.tail() if until is None else until
        return archive_job.run(self.cluster, self.address, self.log.name, until=last, **given)

    @property
    def info(self) -> ArchiveInfo:
        info = self.log.archive()
        assert info is not None
        return info

    @property
    def files(self) -> list[Path]:
        """Return all Parquet files, also those that are not part of the archive."""
        return sorted(Path(urlparse(self.info.location).path).glob("*.parquet"))
