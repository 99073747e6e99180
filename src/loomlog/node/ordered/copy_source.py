"""Copies entries of a replica to a node that lacks them: the sending side.

Only committed entries are copied, and these never change: so a copy may be interrupted at any
point, repeated, and run while the stream runs. The destination says where to begin, so a restarted
copy continues where the last one ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TypeAlias

from loomlog import limits
from loomlog.errors import LoomError, Timeout, Unavailable
from loomlog.net.endpoints import connect
from loomlog.node.ordered.reader import ReplicaReader
from loomlog.node.ordered.replica import ReplicaDriver
from loomlog.node.workers import Throttle
from loomlog.storage.ordered.stream_reader import ReplicaPart
from loomlog.types import Llsn
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, OnlyAnswers
from loomlog.wire.translate import commit_to_wire

logger = logging.getLogger(__name__)

_IN_FLIGHT = limits.COPY_PARTS_IN_FLIGHT
_PART_TIMEOUT_S = 3 * limits.REQUEST_TIMEOUT_S  # the other disk may be busy

Answer: TypeAlias = "asyncio.Future[LoomError | None]"


class OutgoingCopy:
    """One copy to one destination, from its start to its end."""

    def __init__(
        self, driver: ReplicaDriver, reader: ReplicaReader, codec: Codec, order: pb.Synchronise
    ) -> None:
        self.driver = driver
        self.epoch = int(order.seal_epoch)
        self.throttle = Throttle(order.bytes_per_s)
        self._reader = reader
        self._codec = codec
        self._address = order.destination.address
        self._node = order.destination.storage_node_id
        self._copied_llsn: Llsn = 0
        self._copied_bytes = 0
        self._error = ""
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def done(self) -> bool:
        return self._task.done()

    def progress(self) -> pb.SynchroniseResponse:
        return pb.SynchroniseResponse(
            finished=self.done and not self._error,
            copied_llsn=self._copied_llsn,
            last_llsn=self.driver.core.last_committed_llsn,
            copied_bytes=self._copied_bytes,
            error=self._error,
        )

    async def settled(self, timeout_s: float) -> None:
        """Wait until the copy has finished, at most for `timeout_s`."""
        await asyncio.wait((self._task,), timeout=timeout_s)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        stream_id = self.driver.stream_id
        try:
            await self._copy()
        except asyncio.CancelledError:
            self._error = "the copy was stopped"
            raise
        except LoomError as error:
            self._error = str(error)
            logger.warning("copy of stream %d to node %d: %s", stream_id, self._node, error)
        except Exception as error:
            self._error = "internal error: see the log of the storage node"
            logger.error("copy of stream %d to node %d", stream_id, self._node, exc_info=error)
        else:
            logger.info(
                "stream %d is copied to node %d up to LLSN %d: %d bytes",
                stream_id,
                self._node,
                self._copied_llsn,
                self._copied_bytes,
            )

    async def _copy(self) -> None:
        connection = await connect(
            self._address, self._codec, OnlyAnswers(), wanted=("node", self._node)
        )
        try:
            next_llsn = await self._begin(connection)
            self._copied_llsn = next_llsn - 1
            await self._send_all(connection, next_llsn)
        finally:
            connection.close()

    async def _begin(self, connection: Connection) -> Llsn:
        """Start the copy. Return the first LLSN that the destination needs."""
        self._check_source()
        # The destination may be wiped, and may have the only sound copy of batches broken here.
        await self._reader.repair_known(self._address)
        beginning = await self._reader.beginning()
        start = pb.SyncStart(
            log_stream_id=self.driver.stream_id,
            seal_epoch=self.epoch,
            first_llsn=beginning.llsn,
            first_glsn=beginning.glsn,
            last_llsn=self.driver.core.last_committed_llsn,
            trimmed_glsn=self.driver.trimmed,
            prev_high_watermark=beginning.prev_high_watermark,
            stamp=self.driver.store.meta.stamp,
        )
        answer, _ = await connection.request(pb.Frame(sync_start=start), timeout_s=_PART_TIMEOUT_S)
        return int(answer.sync_started.next_llsn)

    def _check_source(self) -> None:
        core = self.driver.core
        if core.epoch != self.epoch or core.damaged or self.driver.closed:
            raise Unavailable(
                f"stream {core.stream_id} on node {core.node_id} is {core.state} in epoch "
                f"{core.epoch}{', damaged' * core.damaged}: no copy in epoch {self.epoch}"
            )

    async def _send_all(self, connection: Connection, next_llsn: Llsn) -> None:
        under_way: deque[tuple[ReplicaPart, Answer]] = deque()
        core = self.driver.core
        while next_llsn <= core.last_committed_llsn or under_way:
            if next_llsn <= core.last_committed_llsn and len(under_way) < _IN_FLIGHT:
                self._check_source()
                part = await self._reader.part(next_llsn, limits.COPY_PART_BYTES)
                await self.throttle.take(len(part.buffer))
                under_way.append((part, self._send(connection, part)))
                next_llsn = part.last_llsn + 1
            else:
                await self._answered(*under_way.popleft())

    async def _answered(self, part: ReplicaPart, answer: Answer) -> None:
        try:
            async with asyncio.timeout(_PART_TIMEOUT_S):
                error = await answer
        except TimeoutError:
            raise Timeout(f"{self._address} did not answer in {_PART_TIMEOUT_S:g} s") from None
        if error is not None:
            raise error
        self._copied_llsn = part.last_llsn
        self._copied_bytes += len(part.buffer)

    def _send(self, connection: Connection, part: ReplicaPart) -> Answer:
        stream_id = self.driver.stream_id
        message = pb.SyncBatches(
            log_stream_id=stream_id,
            seal_epoch=self.epoch,
            commits=[commit_to_wire(stream_id, commit) for commit in part.commits],
        )
        answer: Answer = asyncio.get_running_loop().create_future()

        def on_reply(reply: Frame | LoomError, payload: memoryview) -> None:
            if not answer.done():
                answer.set_result(reply if isinstance(reply, LoomError) else None)

        connection.call(pb.Frame(sync_batches=message), [part.buffer], on_reply)
        return answer
