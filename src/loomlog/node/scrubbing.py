"""Scrubbing: everything that is stored and committed of a replica is read and checked, at a
moderate rate, and repaired from peers where it is broken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from loomlog import limits
from loomlog.errors import Corrupt, LoomError, Trimmed
from loomlog.node.repairing import Repairer
from loomlog.node.replica import ReplicaDriver
from loomlog.node.throttle import Throttle
from loomlog.storage.segments import Broken
from loomlog.types import Llsn
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)


class Scrub:
    """One pass over one replica."""

    def __init__(self, driver: ReplicaDriver, repairer: Repairer, peers: Sequence[str]) -> None:
        self._driver = driver
        self._repairer = repairer
        self._peers = peers
        self._last = driver.core.last_committed_llsn
        self._next: Llsn = driver.store.first_kept
        self._bytes = 0
        self._corrupt = 0
        self._repaired = 0
        self._error = ""
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def done(self) -> bool:
        return self._task.done()

    def progress(self) -> pb.ScrubResponse:
        return pb.ScrubResponse(
            finished=self.done,
            checked_llsn=self._next - 1,
            last_llsn=self._last,
            checked_bytes=self._bytes,
            corrupt_batches=self._corrupt,
            repaired_batches=self._repaired,
            error=self._error,
        )

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        stream_id = self._driver.stream_id
        try:
            await self._check_all()
        except LoomError as error:
            self._error = str(error)
            logger.warning("scrub of stream %d: %s", stream_id, error)
        except Exception as error:
            self._error = "internal error: see the log of the storage node"
            logger.error("scrub of stream %d", stream_id, exc_info=error)
        logger.info(
            "scrub of stream %d: %d bytes, %d batches corrupt, %d of them repaired",
            *(stream_id, self._bytes, self._corrupt, self._repaired),
        )

    async def _check_all(self) -> None:
        throttle = Throttle(limits.SCRUB_BYTES_PER_S)
        while self._next <= self._last and not self._driver.closed:
            try:
                examined = await self._repairer.examine(self._next, self._last)
            except Trimmed:
                self._next = max(self._next + 1, self._driver.store.first_kept)
                continue
            except Corrupt as error:  # of the commits: no peer stores the same bytes
                if self._peers:
                    self._driver.damage(str(error))
                raise
            self._bytes += examined.size
            self._next = max(self._next, examined.next_llsn)
            await throttle.take(examined.size)
            if examined.broken is not None:
                await self._found(examined.broken)

    async def _found(self, broken: Broken) -> None:
        self._corrupt += 1
        if await self._repairer.mend(broken, self._peers):
            self._repaired += 1
        else:
            self._error = f"LLSN {broken.llsn} is broken and no peer has it"
            self._next = max(self._next, broken.next_llsn)
