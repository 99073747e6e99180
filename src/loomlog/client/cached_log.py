"""The cached metadata of a log, which is fetched when it is first needed or turns out to be old."""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.client.servers import Metadata, mark_retrieved
from loomlog.errors import LoomError, Retryable
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

REFRESH_INTERVAL_S: Final = 0.02  # appends that fail together share a refresh


class CachedLog:
    """The cached metadata of one log: its segments, its streams and their replicas."""

    def __init__(self, name: str, metadata: Metadata) -> None:
        self.name = name
        self.last_known: pb.Log | None = None
        self.reached: Glsn = 0  # the highest position delivered to a subscription
        self._metadata = metadata
        self._refreshing: asyncio.Task[pb.Log] | None = None
        self._refreshed_s = float("-inf")

    async def cached(self) -> pb.Log:
        """Return the last known metadata, however old; fetch it if there is none."""
        return self.last_known or await self.refresh()

    async def refresh(self) -> pb.Log:
        """Fetch the metadata. Concurrent callers share a response that may be slightly older than
        their call: good enough for streams and addresses, but not for the tail."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add_done_callback(mark_retrieved)
        return await asyncio.shield(self._refreshing)

    async def fetch(self, verb: str = "") -> pb.Log:
        """Return the log as the metadata repository has it now, except that its tail may be too
        low. `verb` is what the caller does next; PermissionDenied names the permission for it."""
        frame = pb.Frame(describe_log=pb.DescribeLog(name=self.name, verb=verb))
        log = (await self._metadata.request(frame)).log
        self._metadata.learn(log.metadata)
        self._update(log)
        return log

    async def bounds(self) -> pb.Bounds:
        """Return the head and the tail. While the tail is not known, wait, and raise an error when
        the time is up."""
        frame = pb.Frame(get_bounds=pb.GetBounds(name=self.name))
        return (await self._metadata.request(frame)).bounds

    def _update(self, log: pb.Log) -> None:
        """Cache a log unless the cached version is newer."""
        cached = self.last_known
        if cached is not None and cached.log_id != log.log_id:
            self.reached = 0
            cached = None
        if cached is None or cached.version <= log.version:
            self.last_known = log

    async def close(self) -> None:
        task = self._refreshing
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _refresh(self) -> pb.Log:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._refreshed_s + REFRESH_INTERVAL_S - loop.time()))
            log = await self.fetch()
            return self.last_known or log
        except LoomError as error:
            if not isinstance(error, Retryable):
                self.last_known = None
            raise
        finally:
            self._refreshed_s = loop.time()
            self._refreshing = None
