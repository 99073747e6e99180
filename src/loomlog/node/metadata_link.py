"""The connection to the metadata repository: register, report, take commits and orders.

Reports are pushed when something changed, once per turn of the loop for all replicas, and as a
heartbeat. The link reconnects by itself for as long as the node runs; only a refusal that
waiting cannot mend (another cluster's data, a node id in use) ends the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from loomlog import limits
from loomlog.errors import LoomError, Retryable
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import connect
from loomlog.net.service import Service
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec

logger = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 1.0


class MetadataLink:
    """One per node."""

    def __init__(
        self,
        addresses: Sequence[str],
        codec: Codec,
        service: Service,
        registration: Callable[[], pb.Register],
        on_registered: Callable[[pb.Registered], None],
        report_of: Callable[[StreamId], pb.LogStreamUncommitReport | None],
    ) -> None:
        self._addresses = addresses
        self._codec = codec
        self._service = service
        self._registration = registration
        self._on_registered = on_registered
        self._report_of = report_of
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._lost = asyncio.Event()
        self._changed: dict[StreamId, None] = {}  # an ordered set
        self._heartbeat: asyncio.TimerHandle | None = None
        self._heartbeat_s = limits.HEARTBEAT_S
        self._task: asyncio.Task[None] | None = None
        self._node_id = 0
        self.registered = asyncio.Event()
        self.refused: asyncio.Future[LoomError] = self._loop.create_future()

    def start(self) -> None:
        self._task = self._loop.create_task(self._stay_connected())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._stop_heartbeat()
        if self._connection is not None:
            self._connection.close()

    def changed(self, stream_id: StreamId) -> None:
        """The replica has something new to report."""
        if not self._changed:
            self._loop.call_soon(self._report)
        self._changed[stream_id] = None

    # ---- connecting

    async def _stay_connected(self) -> None:
        delay = _RETRY_FIRST_S
        while True:
            for address in self._addresses:
                try:
                    await self._register(address)
                except Retryable as error:
                    logger.warning("no metadata repository at %s: %s", address, error)
                except LoomError as error:
                    if not self.refused.done():
                        self.refused.set_result(error)
                    return
                else:
                    delay = _RETRY_FIRST_S
                    await self._lost.wait()
                    logger.warning("lost the metadata repository at %s", address)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _RETRY_MAX_S)

    async def _register(self, address: str) -> None:
        connection = await connect(address, self._codec, self)
        self._lost.clear()
        registration = self._registration()
        self._node_id = registration.storage_node_id
        try:
            answer, _ = await connection.request(pb.Frame(register=registration))
        except BaseException:
            connection.close()
            raise
        if connection.closed:
            return
        self._connection = connection
        self._heartbeat_s = answer.registered.heartbeat_s or limits.HEARTBEAT_S
        self._on_registered(answer.registered)
        self.registered.set()
        logger.info("registered with the metadata repository at %s", address)
        self._schedule_heartbeat()

    # ---- reporting

    def _report(self) -> None:
        changed, self._changed = self._changed, {}
        connection = self._connection
        if connection is None:
            return
        reports = [report for stream in changed if (report := self._report_of(stream))]
        message = pb.GetReportResponse(storage_node_id=self._node_id, uncommit_reports=reports)
        connection.send(pb.Frame(report=message))

    def _schedule_heartbeat(self) -> None:
        self._stop_heartbeat()
        self._heartbeat = self._loop.call_later(self._heartbeat_s, self._beat)

    def _beat(self) -> None:
        if self._connection is not None:
            self._report()
            self._schedule_heartbeat()

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    # ---- Handler

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._service.frame_received(connection, frame, payload)

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if connection is self._connection:
            self._connection = None
            self._stop_heartbeat()
        self._lost.set()
