"""The connection to the metadata repository: register, report, take commits and orders.

Reports are pushed when something changed, once per turn of the loop for all replicas, and as a
heartbeat. The link reconnects by itself for as long as the node runs; only a refusal that
waiting cannot mend (another cluster's data, a node id in use) ends the node.

Of several metadata repositories one leads: the others name it, and one that has been replaced is
refused by its epoch. A new leader announces itself; and with every heartbeat the old one is asked
whether it still leads, so that one that fell silent is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from loomlog import limits
from loomlog.errors import LoomError, NotLeader, Retryable, Unavailable
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import connect
from loomlog.net.service import Service
from loomlog.types import Glsn, LogId, StreamId
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
        chain_bytes: Callable[[], int],
        tails: Callable[[], Mapping[LogId, Glsn]],
    ) -> None:
        """`tails`: of the loglets that are sequenced here."""
        self._addresses = list(addresses)
        self._chosen = 0
        self._codec = codec
        self._service = service
        self._registration = registration
        self._on_registered = on_registered
        self._report_of = report_of
        self._chain_bytes = chain_bytes
        self._tails = tails
        self._tails_told: Mapping[LogId, Glsn] = {}
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._lost = asyncio.Event()
        self._changed: dict[StreamId, None] = {}  # an ordered set
        self._heartbeat: asyncio.TimerHandle | None = None
        self._heartbeat_s = limits.HEARTBEAT_S
        self._unanswered = 0  # questions to the leader whether it still leads
        self._leader_epoch = 0  # the highest one registered with
        self._attempt: asyncio.Task[None] | None = None
        self._announced = asyncio.Event()
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
        self._hang_up()

    def changed(self, stream_id: StreamId) -> None:
        """The replica has something new to report."""
        if not self._changed:
            self._loop.call_soon(self._report)
        self._changed[stream_id] = None

    def tell(self, frame: Frame) -> None:
        """If the metadata repository is there; its answer is of no interest."""
        if self._connection is not None:
            self._connection.call(frame, (), lambda answer, payload: None)

    def leader_announced(self, beat: pb.LeaderBeat) -> None:
        """A metadata repository says that it leads."""
        if beat.epoch <= self._leader_epoch:
            return
        newer = NotLeader(f"{beat.address} leads in epoch {beat.epoch}", beat.address)
        self._choose(beat.address)
        self._announced.set()
        if self._attempt is not None:
            self._attempt.cancel()
        if self._connection is not None:
            self._connection.close(newer)

    async def request(self, frame: Frame) -> Frame:
        """Ask the metadata repository something. Raises what it answers, or Unavailable."""
        if self._connection is None:
            raise Unavailable("the metadata repository is out of reach of this node")
        answer, _ = await self._connection.request(frame)
        return answer

    # ---- connecting

    async def _stay_connected(self) -> None:
        failures = 0  # in a row
        while True:
            address = self._addresses[self._chosen]
            try:
                await self._try_to_register(address)
            except Retryable as error:
                logger.warning("no metadata repository at %s: %s", address, error)
                self._turn(error)
                failures += 1
                await self._pause(failures)
            except LoomError as error:
                if not self.refused.done():
                    self.refused.set_result(error)
                return
            except Exception:  # a full disk, say: or this node would take no part for ever
                logger.exception("cannot take part as registered at %s", address)
                self._hang_up()
                failures += len(self._addresses)
                await self._pause(failures)
            else:
                failures = 0
                await self._lost.wait()
                logger.warning("lost the metadata repository at %s", address)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _try_to_register(self, address: str) -> None:
        """Until another one announces that it leads."""
        self._announced.clear()
        self._lost.set()
        self._attempt = self._loop.create_task(self._register(address))
        try:
            await asyncio.wait((self._attempt,))
        finally:
            attempt, self._attempt = self._attempt, None
            attempt.cancel()
        if not attempt.cancelled():
            attempt.result()

    async def _pause(self, failures: int) -> None:
        """When all were asked in vain: longer and longer."""
        rounds, rest = divmod(failures, len(self._addresses))
        if not rest:
            delay_s = min(_RETRY_FIRST_S * 2 ** min(rounds - 1, 10), _RETRY_MAX_S)
            try:
                async with asyncio.timeout(delay_s):
                    await self._announced.wait()
            except TimeoutError:
                pass

    def _turn(self, error: Retryable) -> None:
        """To who is said to lead, or to the next one."""
        leader = error.leader if isinstance(error, NotLeader) else ""
        if leader and leader != self._addresses[self._chosen]:
            self._choose(leader)
        else:
            self._chosen = (self._chosen + 1) % len(self._addresses)

    def _choose(self, address: str) -> None:
        self._learn([address])
        self._chosen = self._addresses.index(address)

    def _learn(self, addresses: Sequence[str]) -> None:
        self._addresses += [address for address in addresses if address not in self._addresses]

    async def _register(self, address: str) -> None:
        several = len(self._addresses) > 1
        connect_s = limits.LEADER_SILENCE_S if several else limits.CONNECT_TIMEOUT_S
        answer_s = limits.LEADER_SILENCE_S if several else limits.REQUEST_TIMEOUT_S
        connection = await connect(address, self._codec, self, connect_s)
        self._lost.clear()
        registration = self._registration()
        self._node_id = registration.storage_node_id
        try:
            answer, _ = await connection.request(
                pb.Frame(register=registration, leader_epoch=self._leader_epoch),
                timeout_s=answer_s,
            )
            self._check_leader(address, answer.leader_epoch)
        except BaseException:
            connection.close()
            raise
        if connection.closed:
            return
        self._connection = connection
        self._tails_told = {}
        self._unanswered = 0
        self._heartbeat_s = answer.registered.heartbeat_s or limits.HEARTBEAT_S
        self._learn(answer.registered.metadata)
        self._on_registered(answer.registered)
        self.registered.set()
        logger.info("registered with the metadata repository at %s", address)
        self._schedule_heartbeat()

    def _check_leader(self, address: str, epoch: int) -> None:
        """Of several, who was replaced as the leader may not know it yet."""
        if epoch < self._leader_epoch and len(self._addresses) > 1:
            raise NotLeader(f"{address} leads in epoch {epoch}, which is over")
        self._leader_epoch = epoch

    # ---- reporting

    def _report(self, tails: Iterable[pb.LogletTail] = ()) -> None:
        changed, self._changed = self._changed, {}
        connection = self._connection
        if connection is None:
            return
        reports = [report for stream in changed if (report := self._report_of(stream))]
        message = pb.GetReportResponse(
            storage_node_id=self._node_id,
            uncommit_reports=reports,
            chain_bytes=self._chain_bytes(),
            tails=tails,
        )
        connection.send(pb.Frame(report=message))

    def _new_tails(self) -> list[pb.LogletTail]:
        """Those that the metadata repository was not told of yet."""
        told, self._tails_told = self._tails_told, self._tails()
        return [
            pb.LogletTail(loglet_id=loglet, tail=tail)
            for loglet, tail in self._tails_told.items()
            if told.get(loglet) != tail
        ]

    def _schedule_heartbeat(self) -> None:
        self._stop_heartbeat()
        self._heartbeat = self._loop.call_later(self._heartbeat_s, self._beat)

    def _beat(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            self._report(self._new_tails())
            if len(self._addresses) > 1:
                self._watch_leader(connection)
        finally:  # whatever fails, it must not be the last one
            self._schedule_heartbeat()

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    # ---- does it still lead?

    def _watch_leader(self, connection: Connection) -> None:
        """Counted, not timed: while this process itself was stopped, nobody was asked."""
        if self._unanswered * self._heartbeat_s >= limits.LEADER_SILENCE_S:
            connection.close(Unavailable(f"{connection.peer} does not say whether it still leads"))
            return
        self._unanswered += 1

        def heard(answer: Frame | LoomError, payload: memoryview) -> None:
            if connection is self._connection and not isinstance(answer, LoomError):
                self._unanswered = 0
                self.leader_announced(answer.leader_beat)

        connection.call(pb.Frame(ask_leader=pb.AskLeader()), (), heard)

    # ---- Handler

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._service.frame_received(connection, frame, payload)

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if connection is self._connection:
            self._connection = None
            self._stop_heartbeat()
        self._lost.set()
