"""`copyset` on a storage node: its copies of logs, and the sequencers that run there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from loomlog.core.copyset.messages import NodeAnswer, NodeRequest, Release
from loomlog.core.copyset.nodeset import Exclusions, ExclusionTimes
from loomlog.core.copyset.record import Lsn, make, offset_of
from loomlog.core.copyset.recovery import Recovered
from loomlog.core.copyset.sequencer import SequencerSettings
from loomlog.core.copyset.storage import newest_epoch
from loomlog.errors import InvalidArgument, LoomError, Sealed, Unavailable
from loomlog.node.copyset.copies import CatchUp, Copies, looked_up
from loomlog.node.copyset.epoch_store import EpochStore, Known
from loomlog.node.copyset.handler import CopysetHandler, Grants
from loomlog.node.copyset.peers import Peers
from loomlog.node.copyset.procedures import Asker, recover
from loomlog.node.copyset.sequencer import Append, RunningSequencer, SequencerContext
from loomlog.node.copyset.sequencer_slot import SequencerSlot
from loomlog.node.protocol import NodeContext, NodeProtocol
from loomlog.node.volume import Volume
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import state_from_wire
from loomlog.wire.link import Connection, Frame, Route

logger = logging.getLogger(__name__)

TIDY_S: Final = 600.0  # between looks for what is too old to be remembered
FINISH_S: Final = 2.0  # for the metadata repository to note where epochs end, when a node stops
REFRESH_S: Final = 1.0  # between questions which nodes are alive


class CopysetService(NodeProtocol):
    """Serves the copies on this node, and hosts sequencers."""

    def __init__(self, context: NodeContext, settings: SequencerSettings | None = None) -> None:
        self._me = context.node_id
        self._codec = context.codec
        self._disks = context.disks
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing = False
        self._slots: dict[LogId, SequencerSlot] = {}
        self._recoveries: dict[tuple[LogId, int], asyncio.Task[bool]] = {}
        self._needless: set[tuple[LogId, int]] = set()  # of these: the log was deleted
        self._dead: set[NodeId] = set()  # as the metadata repository sees it
        self._exclusions = Exclusions(ExclusionTimes())
        self._stamps: dict[LogId, int] = {}  # of logs that the metadata repository spoke of
        self._reported_tails: dict[LogId, Lsn] = {}
        self._peers = Peers(context.codec, self._connected, self._stamp_of)
        self._epochs = EpochStore(context.link.request, self._learned)
        self._copies = Copies(context.disks, self._epochs, _now_us, self._spawn)
        self._copies_lost = self._copies.volume.is_lost  # and that was not reported yet
        self._tidying = self._loop.call_later(TIDY_S, self._tidy)
        asker = Asker(self._ask, self._epochs.ask)
        self._context = SequencerContext(
            me=context.node_id,
            ask=self._ask,
            release=self._release,
            asker=asker,
            epochs=self._epochs,
            exclusions=self._exclusions,
            chance=context.random,
            settings=settings or SequencerSettings(),
            now_us=_now_us,
            spawn=self._spawn,
        )
        self._catch_up = CatchUp(self._me, self._copies, asker, self._epochs, self._spawn)
        self._grants = Grants(self._copies, context.link.request)
        self._handler = CopysetHandler(self._copies, self._grants, self._catch_up, self._forget)

    def routes(self) -> dict[str, Route]:
        return {
            "copyset_request": self._handler.request,
            "copyset_append": self._append,
            "find_copyset_tail": self._find_tail,
            "find_copyset_landmarks": self._handler.landmarks,
        }

    def orders(self) -> dict[str, Route]:
        return {
            "copyset_request": self._handler.order,
            "recover_copyset": self._order_recovery,
            "find_copyset_tail": self._order_tail,
            "find_copyset_landmarks": self._handler.landmarks,
        }

    def connection_closed(self, connection: Connection) -> None:
        self._copies.connection_closed(connection)

    def volume_changed(self, volume: Volume) -> None:
        self._copies.volume.volume_changed()

    async def finish(self) -> None:
        """Report to the epoch store how far the logs that are sequenced here were acknowledged."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await asyncio.gather(*(slot.finish() for slot in self._slots.values()))

    async def stop(self) -> None:
        self._tidying.cancel()
        for slot in self._slots.values():
            slot.stop()
        tasks = [*self._tasks, *self._recoveries.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._epochs.stop()
        self._grants.stop()
        self._peers.close()
        self._copies.stop()

    # ---- reports to the metadata repository

    def register(self, message: pb.Register) -> None:
        self._reported_tails = {}
        message.copies_lost = self._copies_lost
        message.highest_log_id = max([message.highest_log_id, *self._copies.volume.logs])

    def registered(self, answer: pb.Registered) -> None:
        self._disks.opened.note_lost({loss.loglet_id: loss.epoch for loss in answer.lost})
        self._copies.joined(dict(self._disks.opened.identity.lost))
        self._copies_lost = False

    def report(self, message: pb.GetReportResponse, *, full: bool) -> None:
        message.loglet_bytes += self.stored_bytes
        if full:
            before, self._reported_tails = self._reported_tails, self.tails()
            message.tails.extend(
                pb.LogletTail(loglet_id=log, tail=tail)
                for log, tail in self._reported_tails.items()
                if before.get(log) != tail
            )

    def tails(self) -> dict[LogId, Lsn]:
        """Return how far each log is known to reach: as far as it is released here, or given away
        by a sequencer here."""
        copies = self._copies
        released = ((log, copies.standing(log).released) for log in copies.volume.logs)
        tails = {log: lsn for log, lsn in released if offset_of(lsn)}
        for log, slot in self._slots.items():
            if slot.sequencer is not None:
                tails[log] = max(tails.get(log, 0), slot.sequencer.tail().tail)
        return tails

    def conditions(self, message: pb.NodeConditions) -> None:
        message.conditions.extend(self._copies.volume.conditions)
        message.stores_no_copies = self._copies.volume.is_closed
        message.refuses_copies = self._copies.volume.refuses_copies
        message.copies_fail = self._copies.volume.fails

    async def list_holdings(self, message: pb.Holdings) -> None:
        if self._copies.volume.is_closed:
            raise Unavailable("the copies on this node cannot be opened: see its log")
        store = self._copies.volume.store
        if store is None:
            return
        for log in store.logs():
            last = await looked_up(partial(store.last_copy, log))
            epoch = newest_epoch(store.standing(log), last)
            message.copysets.add(loglet_id=log, epoch=epoch)

    @property
    def stored_bytes(self) -> int:
        return self._copies.volume.stored_bytes

    # ---- requests of clients

    def _append(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        append = Append.of(self._codec, connection, frame, payload)
        self._slot(frame.copyset_append.loglet_id).append(append)

    async def _find_tail(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        tail = await self._slot(frame.find_copyset_tail.loglet_id).tail()
        return pb.Frame(copyset_tail=tail)

    async def _order_tail(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        """Handle the same request of the metadata repository, which may also end a sequencer."""
        slot = self._slots.get(frame.find_copyset_tail.loglet_id)
        if not frame.find_copyset_tail.finish:
            return await self._find_tail(connection, frame, payload)
        if slot is not None and slot.sequencer is not None:
            await slot.sequencer.finish()
        return pb.Frame(copyset_tail=pb.CopysetTail())

    def _slot(self, log: LogId) -> SequencerSlot:
        if log not in self._slots:
            if not log:
                raise InvalidArgument("loglets have ids above 0")
            self._slots[log] = SequencerSlot(log, self._context)
            if not self._refreshing:
                self._refreshing = True
                self._spawn(self._refresh())
        return self._slots[log]

    # ---- orders of the metadata repository

    async def _order_recovery(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        """Recover all epochs below one that was taken for this node. Unless the log is closed, its
        sequencer is here from now on."""
        message = frame.recover_copyset.state
        state, nodes = state_from_wire(message)
        known = Known(
            log=message.loglet_id,
            stream=message.log_stream_id,
            state=state,
            nodes=nodes,
            asked_at=self._loop.time(),
            now_us=message.now_us,
        )
        self._learned(known)
        if state.closed:
            is_recovered = await self._recovered(known)
        else:
            sequencer = self._slot(known.log).begin(known)
            is_recovered = sequencer is not None and await sequencer.recovered()
        if not is_recovered:
            raise Sealed(f"loglet {known.log}: epoch {state.epoch} is over: a later one has begun")
        return pb.Frame(done=pb.Done())

    async def _recovered(self, known: Known) -> bool:
        """Recover once: callers that ask again wait for the same recovery of an epoch."""
        key = (known.log, known.state.epoch)
        if key not in self._recoveries:
            self._recoveries[key] = self._loop.create_task(self._recover(known))
            self._recoveries[key].add_done_callback(lambda _: self._recovery_ended(key))
        return await asyncio.shield(self._recoveries[key])

    def _recovery_ended(self, key: tuple[LogId, int]) -> None:
        del self._recoveries[key]
        self._needless.discard(key)

    async def _recover(self, known: Known) -> bool:
        epoch = known.state.epoch
        ending = await recover(
            known.log,
            epoch,
            self._context.asker,
            self._context.now_us,
            lambda: (known.log, epoch) in self._needless,
        )
        if not isinstance(ending, Recovered):
            return False
        everybody = {node for metadata in known.state.history for node in metadata.nodes}
        for node in sorted(everybody):
            self._release(node, Release(known.log, make(epoch, 0)))
        return True

    def _forget(self, log: LogId) -> None:
        """Called when the log is deleted."""
        slot = self._slots.pop(log, None)
        if slot is not None:
            slot.stop()
        self._needless.update(key for key in self._recoveries if key[0] == log)
        self._stamps.pop(log, None)
        for part in (self._epochs, self._copies, self._catch_up, self._grants):
            part.forget(log)

    # ---- the other nodes

    def _ask(
        self, node: NodeId, request: NodeRequest, done: Callable[[NodeAnswer | None], None]
    ) -> None:
        if node == self._me:
            self._copies.ask(request, self._stamp_of(request.log), partial(self._later, done))
        else:
            self._peers.ask(node, request, done)

    def _later(self, done: Callable[[NodeAnswer | None], None], answer: NodeAnswer) -> None:
        """Answer as a peer would: never before `_ask` returns."""
        self._loop.call_soon(done, answer)

    def _release(self, node: NodeId, release: Release) -> None:
        if node == self._me:
            done = partial(self._catch_up.released, release)
            self._copies.ask(release, self._stamp_of(release.log), done)
        else:
            self._peers.release(node, release)

    def _connected(self, node: NodeId) -> None:
        self._exclusions.returned(node)
        for sequencer in self._sequencers():
            sequencer.returned(node)
            sequencer.retry()

    def _sequencers(self) -> list[RunningSequencer]:
        return [slot.sequencer for slot in self._slots.values() if slot.sequencer is not None]

    def _stamp_of(self, log: LogId) -> int:
        """Return the creation stamp of the log: what was learned, or else what is stored."""
        return self._stamps.get(log) or self._copies.standing(log).stamp

    def _learned(self, known: Known) -> None:
        self._grants.learned(known.log, known.state.epoch)
        self._stamps[known.log] = known.state.stamp
        others = [node for node in known.nodes.values() if node.node_id != self._me]
        self._peers.learn(others)
        before, self._dead = self._dead, {node.node_id for node in others if not node.alive}
        self._exclusions.down = frozenset(
            node for node in self._dead if not self._peers.is_connected(node)
        )
        slot = self._slots.get(known.log)
        if slot is not None and slot.sequencer is not None:
            slot.sequencer.learned(known.state)
        if back := before - self._dead:
            for node in sorted(back):
                self._exclusions.returned(node)
            for sequencer in self._sequencers():
                sequencer.retry()

    async def _refresh(self) -> None:
        """Learn which nodes are alive, once for all logs: the logs are asked for in turn."""
        turn = 0
        while self._slots:
            turn += 1
            await asyncio.sleep(REFRESH_S)
            try:
                self._drop_needless()
                active = [log for log, slot in self._slots.items() if slot.sequencer is not None]
                if active:
                    await self._epochs.get(active[turn % len(active)], REFRESH_S / 2)
            except LoomError as error:
                logger.debug("which nodes are alive is not known: %s", error)
            except Exception:  # or this node would never learn it again
                logger.exception("which nodes are alive could not be learned")
        self._refreshing = False

    def _drop_needless(self) -> None:
        """Drop slots without use: any client may ask any node about any log."""
        for log in [log for log, slot in self._slots.items() if not slot.is_needed]:
            del self._slots[log]
            self._epochs.forget(log)

    def _tidy(self) -> None:
        self._tidying = self._loop.call_later(TIDY_S, self._tidy)
        self._copies.marks.tidy()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background work for copyset logs failed", exc_info=error)


def _now_us() -> int:
    return time.time_ns() // 1000
