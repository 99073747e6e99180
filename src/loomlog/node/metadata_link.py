"""The connection to the metadata repository: register, report, receive orders.

Reports are pushed when something changed, once per iteration of the loop, and as heartbeats. The
link reconnects by itself for as long as the node runs, whatever answers at the addresses. Only a
refusal of this very node (another cluster's data, a node id in use) ends it.

Of several metadata repositories one leads. The others redirect to it, and a leader that has been
replaced is recognised by its epoch. A new leader announces itself, and proves that it knows the
cluster's secret. With every heartbeat, the present leader is asked whether it still leads, so that
the node leaves one that has become silent. The node connects only to addresses that it was given,
and to those that a metadata repository named.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from loomlog import limits
from loomlog.core.backoff import Backoff
from loomlog.errors import (
    AlreadyExists,
    InvalidArgument,
    LoomError,
    NotLeader,
    RolledBack,
    Unauthorized,
    Unavailable,
)
from loomlog.net.address import split_address
from loomlog.net.credentials import RENEWS
from loomlog.net.endpoints import connect
from loomlog.net.notices import Notices
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Handler

logger = logging.getLogger(__name__)

_RETRY = Backoff(0.05, 1.0)
SHORT_BEATS: Final = 2  # consecutive short heartbeats
AddChanges: TypeAlias = Callable[[pb.GetReportResponse], None]

_REFUSALS = (Unauthorized, AlreadyExists, InvalidArgument)  # of this node: retrying is useless


class HeldBackError(LoomError):
    """The metadata repository does not admit this node before an operator allows it."""


class MetadataLink:
    """The link of one node."""

    def __init__(
        self,
        addresses: Sequence[str],
        codec: Codec,
        service: Handler,
        registration: Callable[[], pb.Register],
        on_registered: Callable[[pb.Registered], None],
        make_report: Callable[[], pb.GetReportResponse],
        make_short_report: Callable[[], pb.GetReportResponse],
    ) -> None:
        """`make_report` returns a full heartbeat. While nothing changes, most are short ones."""
        self._addresses = list(addresses)
        self._chosen = 0
        self._codec = codec
        self._registration = registration
        self._on_registered = on_registered
        self._make_report, self._make_short_report = make_report, make_short_report
        self._last_content = b""  # of the last full heartbeat
        self._short_beats = 0  # how many short heartbeats are to follow
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._lost = asyncio.Event()
        self._changes: dict[AddChanges, None] = {}  # to be reported in the next loop iteration
        self._node_id: NodeId = 0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._heartbeat_s = limits.HEARTBEAT_S
        self._unanswered = 0  # unanswered questions to the leader whether it still leads
        self._leader_epoch = 0  # the highest one of any leader that this node registered with
        self._attempt: asyncio.Task[None] | None = None
        self._announced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._notices = Notices(logger)
        self.frame_received = service.frame_received  # orders go straight to the service
        self.registered = asyncio.Event()
        self.refused: asyncio.Future[LoomError] = self._loop.create_future()
        self.held_back: asyncio.Future[str] = self._loop.create_future()  # resolved with the reason
        self.rolled_back: RolledBack | None = None  # the cluster waits until an operator acts

    def start(self) -> None:
        self._task = self._loop.create_task(self._stay_connected())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._stop_heartbeat()
        self._hang_up()

    @property
    def is_connected(self) -> bool:
        """True if this node is registered now."""
        return self._connection is not None

    def report_soon(self, add: AddChanges) -> None:
        """Report a change in the next loop iteration, together with all others. `add` adds it to
        the report."""
        if not self._changes:
            self._loop.call_soon(self._report_changes)
        self._changes[add] = None

    def _report_changes(self) -> None:
        changes, self._changes = self._changes, {}
        if self._connection is not None:
            frame = pb.Frame()
            report = frame.report
            report.storage_node_id = self._node_id
            for add in changes:
                add(report)
            self._connection.send(frame)

    def report(self) -> None:
        """Send a full heartbeat immediately."""
        if self._connection is not None:
            self._connection.send(pb.Frame(report=self._make_report()))

    def notify(self, frame: Frame) -> None:
        """Send a message if the metadata repository is connected, and ignore its answer."""
        if self._connection is not None:
            self._connection.call(frame, (), lambda answer, payload: None)

    def register_again(self) -> None:
        """Register again, because the list of replicas in the last registration is out of date."""
        self._hang_up()

    def leader_announced(self, beat: pb.LeaderBeat) -> None:
        """Called when a metadata repository of this cluster announces that it leads."""
        if beat.epoch <= self._leader_epoch or not _is_address(beat.address):
            return
        newer = NotLeader(f"{beat.address} leads in epoch {beat.epoch}", beat.address)
        self._choose(beat.address)
        self._announced.set()
        if self._attempt is not None:
            self._attempt.cancel()
        if self._connection is not None:
            self._connection.close(newer)

    async def request(self, frame: Frame) -> Frame:
        """Send a request to the metadata repository and return the answer. Raise its error, or
        Unavailable."""
        if self._connection is None:
            raise Unavailable("the metadata repository is out of reach of this node")
        answer, _ = await self._connection.request(frame)
        return answer

    @property
    def has_twin(self) -> bool:
        """Return whether another process of this node was there when it was refused."""
        return self.refused.done() and isinstance(self.refused.result(), AlreadyExists)

    # ---- connecting

    async def _stay_connected(self) -> None:
        failures = 0  # in a row
        while True:
            address = self._addresses[self._chosen]
            try:
                await self._try_to_register(address)
            except _REFUSALS as error:
                if not self.refused.done():
                    self.refused.set_result(error)
                return
            except LoomError as error:
                if not isinstance(error, NotLeader):
                    self.rolled_back = error if isinstance(error, RolledBack) else None
                self._complain(address, error)
                self._turn(error)
                failures += 1
                await self._pause(failures)
            except Exception as error:  # such as a full disk: try again
                notice = "cannot take part as registered at %s"
                self._notices.log("failed", notice, address, error=error)
                self._hang_up()
                failures += len(self._addresses)
                await self._pause(failures)
            else:
                failures = 0
                await self._lost.wait()
                logger.warning("lost the metadata repository at %s", address)

    def _complain(self, address: str, error: LoomError) -> None:
        if isinstance(error, HeldBackError):  # which lasts until an operator decides
            self._notices.log("held back", "not registered at %s: %s", address, error)
        else:
            logger.warning("no metadata repository at %s: %s", address, error)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _try_to_register(self, address: str) -> None:
        """Try to register, unless another metadata repository announces that it leads."""
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
        """Pause whenever all addresses have failed, longer each time."""
        rounds, rest = divmod(failures, len(self._addresses))
        if not rest:
            try:
                async with asyncio.timeout(_RETRY.delay_s(rounds - 1)):
                    await self._announced.wait()
            except TimeoutError:
                pass

    def _turn(self, error: LoomError) -> None:
        """Choose the repository that is named as leader, or the next one."""
        leader = error.leader if isinstance(error, NotLeader) else ""
        if _is_address(leader) and leader != self._addresses[self._chosen]:
            self._choose(leader)
        else:
            self._chosen = (self._chosen + 1) % len(self._addresses)

    def _choose(self, address: str) -> None:
        self._learn([address])
        self._chosen = self._addresses.index(address)

    def _learn(self, addresses: Sequence[str]) -> None:
        fresh = (address for address in addresses if address not in self._addresses)
        self._addresses += filter(_is_address, fresh)

    async def _register(self, address: str) -> None:
        several = len(self._addresses) > 1
        connect_s = limits.LEADER_SILENCE_S if several else limits.CONNECT_TIMEOUT_S
        answer_s = limits.LEADER_SILENCE_S if several else limits.REQUEST_TIMEOUT_S
        connection = await self._connect(address, connect_s)
        self._lost.clear()
        registration = self._registration()
        self._node_id = registration.storage_node_id
        registered: asyncio.Future[None] = self._loop.create_future()

        def take(answer: Frame | LoomError, _: memoryview) -> None:
            """Process the answer in the callback: before the orders that follow it."""
            if registered.done():
                return
            try:
                if isinstance(answer, LoomError):
                    raise answer
                self._take_registration(address, connection, answer)
            except Exception as error:
                registered.set_exception(error)
            else:
                registered.set_result(None)

        request = pb.Frame(register=registration, leader_epoch=self._leader_epoch)
        request_id = connection.call(request, (), take, timeout_s=answer_s)
        try:
            await registered
        except BaseException as error:
            connection.forget(request_id)
            if isinstance(error, _REFUSALS) and connection.closed:  # the error is not the answer
                raise Unavailable(str(error)) from error
            connection.close()
            raise

    def _take_registration(self, address: str, connection: Connection, answer: Frame) -> None:
        self._check_leader(address, answer.leader_epoch)
        self._check_taken_in(answer.registered)
        self._connection = connection
        self.rolled_back = None
        self._unanswered = self._short_beats = 0
        self._heartbeat_s = answer.registered.heartbeat_s or limits.HEARTBEAT_S
        self._learn(answer.registered.metadata)
        self._on_registered(answer.registered)
        self.registered.set()
        logger.info("registered with the metadata repository at %s", address)
        self._schedule_heartbeat()

    async def _connect(self, address: str, timeout_s: float) -> Connection:
        """Connect. An error of whatever listens at the address is not a refusal of this node."""
        credentials = self._codec.credentials
        if credentials is not None and credentials.has_expired:
            # Clients cannot connect, so the node must not register, even if a slow clock allows it.
            raise Unavailable(f"{credentials.own} has expired: {RENEWS}")
        try:
            return await connect(address, self._codec, self, timeout_s, wanted=("metadata", 0))
        except _REFUSALS as error:
            raise Unavailable(f"cannot talk to {address}: {error}") from error

    def _check_leader(self, address: str, epoch: int) -> None:
        """Raise NotLeader if a leader was replaced, which it may not know yet."""
        if epoch < self._leader_epoch and len(self._addresses) > 1:
            raise NotLeader(f"{address} leads in epoch {epoch}, which is over")
        self._leader_epoch = epoch

    def _check_taken_in(self, answer: pb.Registered) -> None:
        if answer.held_back:
            if not self.held_back.done():
                self.held_back.set_result(answer.held_back)
            raise HeldBackError(answer.held_back)

    # ---- heartbeats

    def _schedule_heartbeat(self) -> None:
        self._stop_heartbeat()
        self._heartbeat = self._loop.call_later(self._heartbeat_s, self._beat)

    def _beat(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.send(pb.Frame(report=self._next_report()))
            if len(self._addresses) > 1:
                self._watch_leader(connection)
        finally:  # whatever fails, heartbeats must continue
            self._schedule_heartbeat()

    def _next_report(self) -> pb.GetReportResponse:
        if self._short_beats:
            self._short_beats -= 1
            return self._make_short_report()
        report, content = self._make_report(), pb.GetReportResponse()
        content.CopyFrom(report)
        content.ClearField("clock_us")
        content.ClearField("scrub")  # has times, too
        before, self._last_content = self._last_content, content.SerializeToString()
        self._short_beats = SHORT_BEATS if self._last_content == before else 0
        return report

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    # ---- watching the leader

    def _watch_leader(self, connection: Connection) -> None:
        """Ask the leader whether it still leads. Unanswered questions are counted instead of timed,
        because this process itself may have been paused."""
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

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if connection is self._connection:
            self._connection = None
            self._stop_heartbeat()
        self._lost.set()


def _is_address(address: str) -> bool:
    try:
        split_address(address)
    except InvalidArgument:
        return False
    return True
