"""`copyset` on a storage node: its copies of logs, and the sequencers that it hosts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, Final

from loomlog.core.copyset.exclusions import Exclusions, ExclusionTimes
from loomlog.core.copyset.lsn import Lsn, make
from loomlog.core.copyset.messages import NodeAnswer, NodeRequest, Release
from loomlog.core.copyset.recovery import Recovered
from loomlog.core.copyset.sequencer import SequencerSettings
from loomlog.errors import InvalidArgument, LoomError, Sealed
from loomlog.net.connection import Connection, Frame
from loomlog.node.copyset.appends import Append
from loomlog.node.copyset.asking import Asker
from loomlog.node.copyset.catching_up import CatchingUp
from loomlog.node.copyset.copies import Copies
from loomlog.node.copyset.epoch_store import AskMetadata, EpochStore, Known
from loomlog.node.copyset.host import Host
from loomlog.node.copyset.losses import HonestCopies
from loomlog.node.copyset.marks import Marks, Seen
from loomlog.node.copyset.means import Means
from loomlog.node.copyset.peers import Peers
from loomlog.node.copyset.recovering import Recovering
from loomlog.node.copyset.sequencing import Sequencing
from loomlog.node.copyset.serving import Serving
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import state_from_wire

logger = logging.getLogger(__name__)

TIDY_S: Final = 600.0  # between looks for what is too old to be remembered
REFRESH_S: Final = 1.0  # between questions who is alive


class Copysets:
    def __init__(
        self,
        me: NodeId,
        codec: Codec,
        copies: Copies,
        ask_metadata: AskMetadata,
        lost_below: Callable[[], int | None],
        *,
        random: Random,
        now_us: Callable[[], int],
        settings: SequencerSettings | None = None,
    ) -> None:
        self._me = me
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing = False
        self._hosts: dict[LogId, Host] = {}
        self._recoveries: dict[tuple[LogId, int], asyncio.Task[bool]] = {}
        self._needless: set[tuple[LogId, int]] = set()  # of these: the log was deleted
        self._dead: set[NodeId] = set()  # as the metadata repository sees it
        self._exclusions = Exclusions(ExclusionTimes())
        self._peers = Peers(codec, self._connected)
        self._epochs = EpochStore(ask_metadata, self._learned)
        self._marks = Marks(self._loop.time, now_us(), copies.logs)
        self._tidying = self._loop.call_later(TIDY_S, self._tidy)
        self._honest = HonestCopies(copies, self._epochs, lost_below, self._marks, self._spawn)
        asker = Asker(self._ask, self._epochs.ask)
        self._means = Means(
            me,
            self._ask,
            self._tell,
            asker,
            self._find_batch,
            self._epochs,
            self._exclusions,
            random,
            settings or SequencerSettings(),
            now_us,
            self._spawn,
        )
        self._catching_up = CatchingUp(me, copies, asker, self._epochs, self._spawn)
        copies.missed = self._catching_up.missed
        self.serving = Serving(copies, self._honest, self._catching_up, self._forget)

    async def stop(self) -> None:
        self._tidying.cancel()
        for host in self._hosts.values():
            host.stop()
        tasks = [*self._tasks, *self._recoveries.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._epochs.stop()
        self._peers.close()

    # ---- what clients ask

    def append(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        append = Append.of(self._codec, connection, frame, payload)
        self._host(frame.copyset_append.loglet_id).append(append)

    async def find_tail(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        tail = await self._host(frame.find_copyset_tail.loglet_id).tail()
        return pb.Frame(copyset_tail=tail)

    def tails(self) -> dict[LogId, Lsn]:
        """Of the logs that are sequenced here."""
        active = ((log, host.sequencing) for log, host in self._hosts.items())
        return {log: sequencing.tail().tail for log, sequencing in active if sequencing is not None}

    def _host(self, log: LogId) -> Host:
        if log not in self._hosts:
            if not log:
                raise InvalidArgument("loglets have ids above 0")
            self._hosts[log] = Host(log, self._means)
            if not self._refreshing:
                self._refreshing = True
                self._spawn(self._refresh())
        return self._hosts[log]

    # ---- what other nodes ask

    async def find_batch(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        seen = await self._honest.find_batch(frame.find_copyset_batch)
        return pb.Frame(copyset_batch=pb.CopysetBatch(lsns=seen.lsns, certain=seen.certain))

    async def _find_batch(self, node: NodeId, question: pb.FindCopysetBatch) -> Seen:
        if node == self._me:
            return await self._honest.find_batch(question)
        answer = await self._peers.request(node, pb.Frame(find_copyset_batch=question))
        return Seen(list(answer.copyset_batch.lsns), answer.copyset_batch.certain)

    # ---- what the metadata repository orders

    async def recover(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        """All epochs below one that was taken for this node. Unless the log is closed, its
        sequencer is here from now on."""
        message = frame.recover_copyset.state
        state, nodes = state_from_wire(message)
        known = Known(message.loglet_id, message.log_stream_id, state, nodes, self._loop.time())
        self._learned(known)
        if state.closed:
            is_recovered = await self._recovered(known)
        else:
            sequencing = self._host(known.log).begin(known)
            is_recovered = sequencing is not None and await sequencing.recovered()
        if not is_recovered:
            raise Sealed(f"loglet {known.log}: epoch {state.epoch} is over: a later one has begun")
        return pb.Frame(done=pb.Done())

    async def _recovered(self, known: Known) -> bool:
        """Whoever asks again waits for the same recovery: two of an epoch must not be."""
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
        recovering = Recovering(known.log, epoch, self._means)
        ending = await recovering.run(lambda: (known.log, epoch) in self._needless)
        if not isinstance(ending, Recovered):
            return False
        everybody = {node for metadata in known.state.history for node in metadata.nodes}
        for node in sorted(everybody):
            self._tell(node, Release(known.log, make(epoch, 0)))
        return True

    def _forget(self, log: LogId) -> None:
        """The log is deleted."""
        host = self._hosts.pop(log, None)
        if host is not None:
            host.stop()
        self._needless.update(key for key in self._recoveries if key[0] == log)
        for others in (self._epochs, self._honest, self._catching_up):
            others.forget(log)

    # ---- the other nodes

    def _ask(
        self, node: NodeId, request: NodeRequest, done: Callable[[NodeAnswer | None], None]
    ) -> None:
        if node == self._me:
            self._honest.ask(request, partial(self._later, done))
        else:
            self._peers.ask(node, request, done)

    def _later(self, done: Callable[[NodeAnswer | None], None], answer: NodeAnswer) -> None:
        """As from a peer: never before `_ask` returns."""
        self._loop.call_soon(done, answer)

    def _tell(self, node: NodeId, release: Release) -> None:
        if node == self._me:
            self._honest.ask(release, lambda _: None)
        else:
            self._peers.tell(node, release)

    def _connected(self, node: NodeId) -> None:
        self._exclusions.returned(node)
        for sequencing in self._sequencings():
            sequencing.returned(node)
            sequencing.retry()

    def _sequencings(self) -> list[Sequencing]:
        return [host.sequencing for host in self._hosts.values() if host.sequencing is not None]

    def _learned(self, known: Known) -> None:
        others = [node for node in known.nodes.values() if node.node_id != self._me]
        self._peers.learn(others)
        before, self._dead = self._dead, {node.node_id for node in others if not node.alive}
        self._exclusions.down = frozenset(
            node for node in self._dead if not self._peers.is_connected(node)
        )
        host = self._hosts.get(known.log)
        if host is not None and host.sequencing is not None:
            host.sequencing.learned(known.state)
        if back := before - self._dead:
            for node in sorted(back):
                self._exclusions.returned(node)
            for sequencing in self._sequencings():
                sequencing.retry()

    async def _refresh(self) -> None:
        """Who is alive is the same for all logs: so they are asked for in turn."""
        turn = 0
        while self._hosts:
            turn += 1
            await asyncio.sleep(REFRESH_S)
            try:
                self._drop_needless()
                active = [log for log, host in self._hosts.items() if host.sequencing is not None]
                if active:
                    await self._epochs.get(active[turn % len(active)], REFRESH_S / 2)
            except LoomError as error:
                logger.debug("who is alive is not known: %s", error)
            except Exception:  # or nobody here would ever learn it again
                logger.exception("who is alive could not be learned")
        self._refreshing = False

    def _drop_needless(self) -> None:
        """Anybody may ask any node about any log."""
        for log in [log for log, host in self._hosts.items() if not host.is_needed]:
            del self._hosts[log]
            self._epochs.forget(log)

    def _tidy(self) -> None:
        self._tidying = self._loop.call_later(TIDY_S, self._tidy)
        self._marks.tidy()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("something of copyset logs ended with an error", exc_info=error)
