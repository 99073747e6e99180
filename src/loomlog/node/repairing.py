"""Repairing stored batches that do not check out, with the copies of peers.

Replicas of a stream store the same bytes, so a sound copy goes into the place of the broken batch.
Nothing broken is ever served: where no peer has it, the error goes to who asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from loomlog import batch, limits
from loomlog.errors import LoomError, NotFound
from loomlog.net.connection import OnlyAnswers
from loomlog.net.endpoints import connect
from loomlog.node.replica import ReplicaDriver
from loomlog.node.workers import off_loop
from loomlog.storage.files import Worker
from loomlog.storage.segments import Broken, Examined
from loomlog.types import Llsn
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec

logger = logging.getLogger(__name__)


class Repairer:
    """Repairs one replica."""

    def __init__(self, driver: ReplicaDriver, worker: Worker, codec: Codec) -> None:
        self._driver = driver
        self._worker = worker
        self._codec = codec
        self._one_by_one = asyncio.Lock()

    async def repair(self, first_llsn: Llsn, bytes_max: int) -> bool:
        """Make whole what a read from `first_llsn` on met; False if a batch stays broken."""
        last = self._driver.core.last_committed_llsn
        llsn, checked = first_llsn, 0
        async with self._one_by_one:  # others may have met the same
            while llsn <= last and (llsn <= first_llsn or checked < bytes_max):
                examined = await self.examine(llsn, last)
                if examined.broken is None:
                    llsn, checked = examined.next_llsn, checked + examined.size
                elif not await self.mend(examined.broken, self._driver.peers()):
                    return False
        return True

    async def examine(self, llsn: Llsn, last_llsn: Llsn) -> Examined:
        store = self._driver.store
        return await off_loop(
            self._worker, lambda: store.examine(llsn, last_llsn, limits.SCRUB_BYTES)
        )

    async def mend(self, broken: Broken, peers: Sequence[str]) -> bool:
        """Put the copy of one of the peers into its place."""
        stream_id = self._driver.stream_id
        logger.error("stream %d: LLSN %d is broken: %s", stream_id, broken.llsn, broken.reason)
        for address in peers:
            try:
                view = await self._fetch(broken, address)
                await self._driver.done(partial(self._driver.store.overwrite, broken, view))
                left = (await self.examine(broken.llsn, broken.llsn)).broken
            except LoomError as error:
                logger.warning("stream %d: no copy from %s: %s", stream_id, address, error)
                continue
            if left is None:
                logger.info("stream %d: LLSN %d is repaired", stream_id, broken.llsn)
                return True
        return False

    async def _fetch(self, broken: Broken, address: str) -> memoryview:
        connection = await connect(address, self._codec, OnlyAnswers())
        try:
            question = pb.FetchBatches(
                log_stream_id=self._driver.stream_id,
                first_llsn=broken.llsn,
                last_llsn=broken.llsn,
            )
            _, payload = await connection.request(pb.Frame(fetch_batches=question))
        finally:
            connection.close()
        for header, view in batch.split(payload):
            if header.first_llsn == broken.llsn:
                if header.first_position:
                    batch.assign_position(view, 0)
                return view
        raise NotFound(f"no batch that begins with LLSN {broken.llsn}")
