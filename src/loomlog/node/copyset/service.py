"""`copyset` on a storage node: its shards with copies of logs, and the sequencers that run there.

Any peer may send requests to the copies. core/copyset/storage.py decides what a request may do,
once it is certain that its epoch was granted and, with TLS, that the peer is the node that took it.
Only the metadata repository may trim and forget, over the connection from this node to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from loomlog.core.conditions import Condition
from loomlog.core.copyset.messages import (
    Digest,
    Forget,
    NodeAnswer,
    NodeRequest,
    Read,
    Release,
)
from loomlog.core.copyset.nodeset import Exclusions, index_of, shard_name
from loomlog.core.copyset.record import Epoch, Lsn
from loomlog.core.copyset.storage import claimed_epoch, newest_epoch
from loomlog.errors import LoomError, NotFound, Sealed, Unauthorized, Unavailable
from loomlog.node.copyset.asker import Asker
from loomlog.node.copyset.copies import bounded, looked_up
from loomlog.node.copyset.donor import Donor
from loomlog.node.copyset.epoch_store import EpochStoreClient, Known
from loomlog.node.copyset.grants import Grants
from loomlog.node.copyset.mender import Mender
from loomlog.node.copyset.recovery import ClosedLogs
from loomlog.node.copyset.sequencer import OpenAppend, SequencerContext
from loomlog.node.copyset.sequencers import LocalSequencers
from loomlog.node.copyset.shards import LocalShards, Shard
from loomlog.node.protocol import NodeContext, NodeProtocol
from loomlog.node.scrubber import ScrubNotes
from loomlog.node.volume import Volume
from loomlog.node.workers import called_back
from loomlog.storage.logsdb.store import Answered
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import (
    answer_frame,
    gone_shards,
    request_from_wire,
    state_from_wire,
)
from loomlog.wire.link import Connection, Frame, Route

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

TIDY_S: Final = 600.0  # between removals of old marks
FINISH_S: Final = 2.0  # for the metadata repository to note where epochs end, when a node stops
WAIT_S_MAX: Final = 30.0  # the longest that a read waits for more records
_ORDERS: Final = (pb.CopysetRequest.TRIM, pb.CopysetRequest.FORGET)


class CopysetService(NodeProtocol):
    """Serves the copies on this node, and hosts sequencers."""

    def __init__(self, context: NodeContext) -> None:
        self._me = context.node_id
        self._link = context.link
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reported_tails: dict[LogId, Lsn] = {}
        self._epochs = EpochStoreClient(
            context.link.request, lambda known: self._sequencers.learned(known)
        )
        self._grants = Grants(self._epochs)
        self._shards = LocalShards(
            self._me,
            context.disks,
            self._epochs,
            _now_us,
            self._spawn,
            context.link.register_again,
        )
        self._asker = Asker(
            self._me,
            self._shards,
            self._epochs,
            context.codec,
            lambda node: self._sequencers.connected(node),
        )
        self._donors = [
            Donor(shard.id, shard.copies, shard.catch_up, self._asker, self._epochs, self._spawn)
            for shard in self._shards
        ]
        self._menders = [
            Mender(shard.id, shard.copies, shard.catch_up, self._epochs, self._asker, self._spawn)
            for shard in self._shards
        ]
        self._restoring: asyncio.Task[None] | None = None
        self._tidying = self._loop.call_later(TIDY_S, self._tidy)
        sequencers = SequencerContext(
            me=context.node_id,
            asker=self._asker,
            epochs=self._epochs,
            exclusions=Exclusions(),
            chance=context.random,
            now_us=_now_us,
            spawn=self._spawn,
        )
        self._sequencers = LocalSequencers(sequencers)
        self._recoveries = ClosedLogs(self._asker, sequencers.exclusions, _now_us, self._spawn)

    def routes(self) -> dict[str, Route]:
        return {
            "copyset_request": self._request,
            "copyset_append": self._append,
            "find_copyset_tail": self._find_tail,
            "find_copyset_landmarks": self._landmarks,
        }

    def orders(self) -> dict[str, Route]:
        return {
            "copyset_request": self._order,
            "recover_copyset": self._order_recovery,
            "find_copyset_tail": self._order_tail,
            "find_copyset_landmarks": self._landmarks,
            "measure_copyset": self._measure,
            "copyset_rebuild": self._order_rebuild,
            "copyset_restored": self._order_restored,
            "fill_copyset": self._order_fill,
            "check_copyset": self._order_check,
        }

    def connection_closed(self, connection: Connection) -> None:
        for shard in self._shards:
            shard.copies.connection_closed(connection)

    def volume_changed(self, volume: Volume) -> None:
        self._shards.volume_changed(volume)

    async def finish(self) -> None:
        """Report to the epoch store how far the logs sequenced here were acknowledged."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await self._sequencers.finish()

    async def stop(self) -> None:
        self._tidying.cancel()
        self._sequencers.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._epochs.stop()
        self._asker.close()
        for shard in self._shards:
            shard.copies.stop()

    # ---- reports to the metadata repository

    def register(self, message: pb.Register) -> None:
        self._reported_tails = {}
        message.lost_shards.extend(self._shards.report_losses())
        message.closings.extend(
            pb.ShardClosing(shard=shard.index, number=shard.volume.closing)
            for shard in self._shards
            if shard.volume.closing
        )
        message.highest_log_id = max([message.highest_log_id, *self._shards.logs()])

    def registered(self, answer: pb.Registered) -> None:
        self._shards.joined(answer.lost, answer.life)
        for donor in self._donors:
            donor.learn(answer.rebuild, registered=True)

    def report(self, message: pb.GetReportResponse) -> None:
        message.loglet_bytes += self.stored_bytes
        message.rebuild.extend(filter(None, (donor.report() for donor in self._donors)))
        before, self._reported_tails = self._reported_tails, self.tails()
        message.tails.extend(
            pb.LogletTail(loglet_id=log, tail=tail)
            for log, tail in self._reported_tails.items()
            if before.get(log) != tail
        )

    def tails(self) -> dict[LogId, Lsn]:
        """Return the known end of each log: the last LSN that is released here, or acknowledged by
        a sequencer here."""
        tails = self._shards.released()
        for log, tail in self._sequencers.tails().items():
            tails[log] = max(tails.get(log, 0), tail)
        return tails

    def conditions(self) -> list[Condition]:
        avoided = self._sequencers.conditions()
        return [*(each for shard in self._shards for each in shard.volume.conditions), *avoided]

    def restrictions(self, message: pb.NodeConditions) -> None:
        for shard in self._shards:
            if shard.volume.refuses_copies or shard.volume.is_closed:
                message.shards.append(shard.condition())

    async def list_holdings(self, message: pb.Holdings) -> None:
        for shard in self._shards:
            if shard.volume.is_closed:
                raise _not_open(shard)
            if (store := shard.volume.store) is None:
                continue
            for log in store.logs():
                last = await looked_up(partial(store.last_copy, log))
                standing = store.standing(log)
                epoch, trimmed = newest_epoch(standing, last), standing.trimmed
                message.copysets.add(loglet_id=log, epoch=epoch, trimmed=trimmed)

    async def scrub(self, notes: ScrubNotes) -> None:
        for mender in self._menders:
            await mender.scrub(notes)

    def sizes(self) -> dict[tuple[LogId, int], int]:
        return {
            (log, shard.index): shard.volume.size_of(log)
            for shard in self._shards
            for log in shard.volume.logs
        }

    def stored(self) -> Iterator[pb.StoredReplica]:
        for shard in self._shards:
            for log in shard.volume.logs:
                yield pb.StoredReplica(
                    loglet_id=log,
                    part=shard.index,
                    path=shard.volume.path,
                    stored_bytes=shard.volume.size_of(log),
                )

    @property
    def stored_bytes(self) -> int:
        return sum(shard.volume.stored_bytes for shard in self._shards)

    # ---- requests of clients

    def _append(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        append = OpenAppend.of(connection, frame, payload)
        rolled_back = self._link.rolled_back
        if rolled_back is not None and not append.repeated:
            append.failed(rolled_back)
            return
        self._sequencers.slot(frame.copyset_append.loglet_id).append(append)

    async def _find_tail(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        tail = await self._sequencers.slot(frame.find_copyset_tail.loglet_id).tail()
        return pb.Frame(copyset_tail=tail)

    async def _order_tail(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        """Handle the same request of the metadata repository, which may also end a sequencer."""
        slot = self._sequencers.get(frame.find_copyset_tail.loglet_id)
        if not frame.find_copyset_tail.finish:
            return await self._find_tail(connection, frame, payload)
        if slot is not None and slot.sequencer is not None:
            await slot.sequencer.finish()
        return pb.Frame(copyset_tail=pb.CopysetTail())

    # ---- requests to the copies here

    def _request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        """Handle a request of any peer."""
        message = frame.copyset_request
        if message.kind in _ORDERS:
            name = pb.CopysetRequest.Kind.Name(message.kind)
            raise Unauthorized(f"{name} of a log is ordered by the metadata repository only")
        request = request_from_wire(message, payload)
        shard, epoch = self._shards.get(message.shard), claimed_epoch(request)
        if epoch and not (
            shard.copies.is_granted(request.log, epoch)
            # Without TLS any peer may, and most requests need no further check.
            and (not connection.is_encrypted or self._grants.may(connection, request, epoch))
        ):
            return self._when_granted(connection, shard, request, message.stamp, epoch)
        self._serve(connection, frame, shard, request)
        return None

    async def _when_granted(
        self, connection: Connection, shard: Shard, request: NodeRequest, stamp: int, epoch: Epoch
    ) -> Frame:
        """Answer once the metadata repository has confirmed the epoch."""
        asked = connection, shard.copies, request, epoch
        try:
            await self._grants.verify(*asked)
        except LoomError:
            if isinstance(request, Release):
                shard.catch_up.release_later(request, stamp, partial(self._grants.check, *asked))
            raise
        answer = await called_back(partial(_ask, connection, shard, request, stamp))
        if isinstance(request, Release):
            shard.catch_up.released(request, stamp, answer)
        return answer_frame(0, answer)[0]

    def _order(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Handle a request of the metadata repository, which may ask for everything."""
        shard = self._shards.get(frame.copyset_request.shard)
        self._serve(connection, frame, shard, request_from_wire(frame.copyset_request, payload))

    def _serve(
        self, connection: Connection, frame: Frame, shard: Shard, request: NodeRequest
    ) -> None:
        message = frame.copyset_request
        if isinstance(request, Read):
            shard.catch_up.note_reader(request.log)
            if message.wait_ms:
                wait_s = min(message.wait_ms / 1000, WAIT_S_MAX)
                done = partial(_answer, connection, frame.id)
                shard.copies.wait(connection, request, message.stamp, wait_s, done)
                return
        if isinstance(request, Forget) and shard.copies.is_of(request.log, message.stamp):
            self._forget(shard, request.log)
        if isinstance(request, Release):
            shard.catch_up.release(request, message.stamp)
        else:
            _ask(connection, shard, request, message.stamp, partial(_answer, connection, frame.id))

    async def _landmarks(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.find_copyset_landmarks
        shard = self._shards.get(order.shard)
        store = await shard.volume.opened()
        if store is None:
            raise _not_open(shard)
        log = order.loglet_id
        released = store.standing(log).released  # first, so that everything below it is examined
        older, young = await looked_up(partial(store.ages, log, order.timestamp_us))
        found = pb.CopysetLandmarks(
            older=older,
            young=young,
            released=released,
            underreplicated=shard.copies.may_miss(log),
        )
        return pb.Frame(copyset_landmarks=found)

    async def _measure(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.measure_copyset
        shard = self._shards.get(order.shard)
        store = await shard.volume.opened()
        if store is None:
            raise _not_open(shard)
        settled = max(store.standing(order.loglet_id).released, order.clean)
        found = await looked_up(
            partial(store.measure, order.loglet_id, order.first, order.last, settled)
        )
        return pb.Frame(measured=pb.Measured(through=found.through, size=found.size))

    # ---- orders of the metadata repository

    async def _order_recovery(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        """Recover all epochs below one that was taken for this node. Unless the log is closed, this
        node is its sequencer from now on."""
        message = frame.recover_copyset.state
        state, nodes = state_from_wire(message)
        known = Known(
            log=message.loglet_id,
            stream=message.log_stream_id,
            state=state,
            nodes=nodes,
            asked_at=self._loop.time(),
            now_us=message.now_us,
            gone=frozenset(gone_shards(message)),
        )
        self._epochs.note(known)
        if state.closed:
            is_recovered = await self._recoveries.recover(known)
        else:
            sequencer = self._sequencers.slot(known.log).begin(known)
            is_recovered = sequencer is not None and await sequencer.recovered()
        if not is_recovered:
            raise Sealed(f"loglet {known.log}: epoch {state.epoch} is over: a later one has begun")
        return pb.Frame(done=pb.Done())

    def _order_rebuild(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        for donor in self._donors:
            donor.learn(frame.copyset_rebuild)

    async def _order_fill(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.fill_copyset
        donor = next((each for each in self._donors if each.me == order.shard), None)
        if donor is None:
            raise NotFound(f"node {self._me} has no shard {shard_name(order.shard)}")
        left = await donor.fill(order.loglet_id)
        return pb.Frame(copyset_filled=pb.CopysetFilled(left=left))

    async def _order_check(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.check_copyset
        if order.reports:
            await self._shards.get(index_of(order.shard)).catch_up.report(order.loglet_id)
            return pb.Frame(copyset_checked=pb.CopysetChecked(reported=True))
        mender = next((each for each in self._menders if each.me == order.shard), None)
        if mender is None:
            raise NotFound(f"node {self._me} has no shard {shard_name(order.shard)}")
        suspects, epochs = frozenset(order.suspects), frozenset(order.epochs)
        checked = await mender.check(order.loglet_id, suspects, epochs, newest=order.newest)
        return pb.Frame(copyset_checked=checked)

    async def _order_restored(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        """Note that lost copies are restored; a repeated order waits for the first one."""
        if self._restoring is None:
            restored = self._shards.restored(frame.copyset_restored.restored)
            self._restoring = self._spawn(restored)
            self._restoring.add_done_callback(lambda _: setattr(self, "_restoring", None))
        await asyncio.shield(self._restoring)
        return pb.Frame(done=pb.Done())

    def _forget(self, shard: Shard, log: LogId) -> None:
        """Called when the log is deleted."""
        self._sequencers.forget(log)
        for part in (self._recoveries, self._epochs, shard.copies, shard.catch_up):
            part.forget(log)

    # ---- parts

    def _tidy(self) -> None:
        self._tidying = self._loop.call_later(TIDY_S, self._tidy)
        for shard in self._shards:
            shard.copies.marks.tidy()

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background work for copyset logs failed", exc_info=error)


def _ask(
    connection: Connection, shard: Shard, request: NodeRequest, stamp: int, done: Answered
) -> None:
    """Ask at once, or when a turn is free if the answer may be large."""
    if not isinstance(request, (Read, Digest)):
        shard.copies.ask(request, stamp, done)
        return

    def looked(answer: NodeAnswer) -> None:
        done(answer)
        connection.turns.end()

    def look() -> None:
        shard.copies.ask(bounded(connection, request), stamp, looked)

    connection.turns.take(look)


def _not_open(shard: Shard) -> Unavailable:
    name = shard_name(shard.id)
    return Unavailable(f"the copies of shard {name} cannot be opened: see the log of its node")


def _answer(connection: Connection, number: int, answer: NodeAnswer) -> None:
    connection.send(*answer_frame(number, answer))


def _now_us() -> int:
    return time.time_ns() // 1000
