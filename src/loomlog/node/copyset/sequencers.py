"""The sequencers on a node: a slot for each log, which activates a sequencer when necessary and
queues appends meanwhile.

Clients may ask any node. The live node with the highest weighted rendezvous hash for the log takes
an epoch and sequences; the others redirect to it. A running sequencer continues until it is
preempted, even while the metadata repository cannot be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from loomlog.core.conditions import Condition
from loomlog.core.copyset.messages import Activate, Contradict, GetState
from loomlog.core.copyset.nodeset import node_of, sequencer_of, shard_name, shard_of
from loomlog.core.copyset.record import Epoch, Lsn, make
from loomlog.errors import (
    Busy,
    InvalidArgument,
    LoomError,
    NotLeader,
    RolledBack,
    Sealed,
    Unavailable,
)
from loomlog.limits import MIB, REQUEST_TIMEOUT_S
from loomlog.node.copyset.epoch_store import Known
from loomlog.node.copyset.resolver import STATE_S, Resolver
from loomlog.node.copyset.sequencer import OpenAppend, OpenEnd, RunningSequencer, SequencerContext
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

REFRESH_S: Final = 1.0  # between requests for the live nodes
QUEUED_APPENDS_MAX: Final = 10_000  # while a sequencer is activated
QUEUED_BYTES_MAX: Final = 128 * MIB  # of these appends
SWAPS_MAX: Final = 3  # attempts to take an epoch in competition with other nodes


class LocalSequencers:
    """Has a slot for each log that was asked for here."""

    def __init__(self, context: SequencerContext) -> None:
        self._context = context
        self.exclusions = context.exclusions
        self._slots: dict[LogId, SequencerSlot] = {}
        self._dead: set[NodeId] = set()  # as the metadata repository sees it
        self._refreshing = False

    async def finish(self) -> None:
        """End all sequencers, and report where their epochs end."""
        await asyncio.gather(*(slot.finish() for slot in self._slots.values()))

    def stop(self) -> None:
        for slot in self._slots.values():
            slot.stop()

    def slot(self, log: LogId) -> SequencerSlot:
        if log not in self._slots:
            if not log:
                raise InvalidArgument("loglets have ids above 0")
            self._slots[log] = SequencerSlot(log, self._context)
            if not self._refreshing:
                self._refreshing = True
                self._context.spawn(self._refresh())
        return self._slots[log]

    def get(self, log: LogId) -> SequencerSlot | None:
        return self._slots.get(log)

    def forget(self, log: LogId) -> None:
        """Called when a log is deleted."""
        if (slot := self._slots.pop(log, None)) is not None:
            slot.stop()

    def tails(self) -> dict[LogId, Lsn]:
        """Return the last LSN of each log that a sequencer here has acknowledged."""
        slots = self._slots.items()
        return {log: s.sequencer.tail().tail for log, s in slots if s.sequencer is not None}

    def conditions(self) -> list[Condition]:
        now_s = asyncio.get_running_loop().time()
        return self.exclusions.conditions(self._context.me, now_s)

    def _running(self) -> list[RunningSequencer]:
        return [slot.sequencer for slot in self._slots.values() if slot.sequencer is not None]

    # ---- the other nodes

    def connected(self, node: NodeId) -> None:
        self.exclusions.returned(node)
        for sequencer in self._running():
            sequencer.returned(node)
            sequencer.retry()

    def learned(self, known: Known) -> None:
        others = [node for node in known.nodes.values() if node.node_id != self._context.me]
        self._context.asker.learn(others)
        before, self._dead = self._dead, {node.node_id for node in others if not node.alive}
        self.exclusions.down = frozenset(
            node for node in self._dead if not self._context.asker.is_connected(node)
        )
        was_full = self.exclusions.full.keys()
        self.exclusions.full = {
            shard_of(node.node_id, index): node.full
            for node in known.nodes.values()
            for index in node.full_shards
        }
        slot = self._slots.get(known.log)
        if slot is not None and slot.sequencer is not None:
            slot.sequencer.learned(known.state)
        with_room = set(map(node_of, was_full - self.exclusions.full.keys()))
        if back := (before - self._dead) | with_room:
            for node in sorted(back):
                self.exclusions.returned(node)
            for sequencer in self._running():
                sequencer.retry()

    async def _refresh(self) -> None:
        """Update the live nodes, with a request about one of the logs in turn."""
        turn = 0
        while self._slots:
            turn += 1
            await asyncio.sleep(REFRESH_S)
            try:
                self._drop_needless()
                active = [log for log, slot in self._slots.items() if slot.sequencer is not None]
                if active:
                    await self._context.epochs.get(active[turn % len(active)], REFRESH_S / 2)
            except LoomError as error:
                logger.debug("which nodes are alive is not known: %s", error)
            except Exception:  # otherwise the updates would stop
                logger.exception("which nodes are alive could not be learned")
        self._refreshing = False

    def _drop_needless(self) -> None:
        """Drop unneeded slots, since any client may ask any node about any log."""
        for log in [log for log, slot in self._slots.items() if not slot.is_needed]:
            del self._slots[log]
            self._context.epochs.expire(log)


class SequencerSlot:
    """Queues the appends of one log, and runs its sequencer if it belongs here."""

    def __init__(self, log: LogId, context: SequencerContext) -> None:
        self._log = log
        self._context = context
        self._resolver = Resolver(log, context)
        self._loop = asyncio.get_running_loop()
        self._queue: deque[OpenAppend] = deque()  # until there is a sequencer
        self._queued_bytes = 0
        self._activating: asyncio.Task[None] | None = None
        self._given_up = 0  # epochs in a row
        self._begun: Epoch = 0  # the newest; none is begun twice, LSNs would be given again
        self._looking_back = 0  # how many appends wait for the recovery of earlier epochs
        self._newest: Epoch = 0  # that any node is known to have taken
        self._contradiction: Contradict | None = None  # the epoch store went back in time
        self.sequencer: RunningSequencer | None = None

    @property
    def is_needed(self) -> bool:
        """True if the slot has state: a present or past sequencer, or waiting appends."""
        waiting = self._queue or self._activating is not None or self._looking_back
        return bool(self._begun or waiting)

    # ---- requests

    def append(self, append: OpenAppend) -> None:
        """Accept an append, which is answered when its outcome is known."""
        sequencer = self.sequencer
        if sequencer is None:
            self._enqueue(append)
        elif not append.fits(sequencer.epoch):
            append.not_taken(sequencer.epoch)
        elif append.repeated and not sequencer.knows(append):
            self._context.spawn(self._look_back(append, partial(self._recovered_before, sequencer)))
        elif append.expected is not None and not sequencer.is_recovered:
            self._context.spawn(self._append_recovered(append, sequencer))
        else:
            try:
                sequencer.append(append)
            except LoomError as error:
                append.failed(error)

    async def tail(self) -> pb.CopysetTail:
        """Return the tail of the sequencer here, which is activated if it belongs here."""
        if self.sequencer is None:
            await asyncio.shield(self._activate_soon())
        if self.sequencer is None:
            raise Unavailable(f"loglet {self._log}: its sequencer just ended: ask again")
        return self.sequencer.tail()

    def begin(self, known: Known) -> RunningSequencer | None:
        """Begin the epoch that was taken for this node. Return None if it is already over."""
        sequencer = self.sequencer
        if sequencer is not None and sequencer.epoch < known.state.epoch:
            sequencer.learned(known.state)
        if self.sequencer is None and known.state.epoch > self._begun:
            logger.info("loglet %d: this node sequences in epoch %d", self._log, known.state.epoch)
            self._begun = known.state.epoch
            self.sequencer = RunningSequencer(
                known, self._context, self._enqueue, self._over, self._given_up
            )
        begun = self.sequencer
        self._flush()
        return begun

    async def finish(self) -> None:
        """Stop acknowledging, and report how far the log was acknowledged."""
        self._refuse_all(Unavailable(f"loglet {self._log} is not sequenced here any more"))
        if self.sequencer is not None:
            await self.sequencer.finish()

    def stop(self) -> None:
        if self._activating is not None:
            self._activating.cancel()
        if self.sequencer is not None:
            self.sequencer.stop()
        self._refuse_all(Unavailable(f"loglet {self._log} is not sequenced here any more"))

    # ---- activation

    def _enqueue(self, append: OpenAppend) -> None:
        size = self._queued_bytes + append.header.size
        if len(self._queue) >= QUEUED_APPENDS_MAX or size > QUEUED_BYTES_MAX:
            trouble = f"loglet {self._log}: too many appends wait for a sequencer"
            append.failed(Busy(f"{trouble}: try again in a moment"))
            return
        self._queue.append(append)
        self._queued_bytes = size
        if self.sequencer is None:  # else one that drains
            self._activate_soon()

    def _flush(self) -> None:
        for append in self._dequeue():
            self.append(append)

    def _dequeue(self) -> list[OpenAppend]:
        queued = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return queued

    def _activate_soon(self) -> asyncio.Task[None]:
        if self._activating is None:
            self._activating = self._loop.create_task(self._activate())
            self._activating.add_done_callback(_retrieve)
        return self._activating

    async def _activate(self) -> None:
        try:
            try:
                known = await self._take_epoch()
            finally:
                self._activating = None
            if known is not None:
                self.begin(known)
            else:
                self._flush()
        except LoomError as error:
            self._refuse_all(error)
            raise
        except Exception as error:
            logger.exception("loglet %d: no sequencer can begin here", self._log)
            me = self._context.me
            trouble = Unavailable(
                f"loglet {self._log}: no sequencer can begin: see the log of node {me}"
            )
            self._refuse_all(trouble)
            raise trouble from error

    def _refuse_all(self, error: LoomError) -> None:
        for append in self._dequeue():
            self._refuse(append, error)

    def _refuse(self, append: OpenAppend, error: LoomError) -> None:
        """Refuse an append, except for a repeated one that the closed log may already have."""
        if isinstance(error, Sealed) and append.repeated:
            self._context.spawn(self._look_back(append, self._resolver.closed_at))
        else:
            append.failed(error)

    async def _take_epoch(self) -> Known | None:
        """Take the next epoch; return None if one was taken for this node meanwhile."""
        known, me = await self._current(), self._context.me
        for _ in range(SWAPS_MAX):
            if self.sequencer is not None:
                return None
            self._check_open(known)
            self._check_mine(known)
            expected = known.state.epoch
            known = await self._context.epochs.request(Activate(self._log, me, expected))
            taken = known.state
            is_mine = (taken.epoch, taken.sequencer) == (expected + 1, me)
            if known.taken and is_mine and not taken.closed:
                return known
        self._check_open(known)
        raise Unavailable(f"loglet {self._log}: others take epochs, too: try again in a moment")

    async def _current(self) -> Known:
        """Return the state of the log; raise RolledBack if nodes know a newer one."""
        epochs = self._context.epochs
        known = await epochs.get(self._log, STATE_S)
        if known.state.epoch < self._newest:  # it may have been read before that one was taken
            known = await epochs.request(GetState(self._log))
        if known.state.epoch < self._newest:
            self._contradict(
                known.state.epoch, shard_of(self._context.me, 0), make(self._newest, 0)
            )
        if self._contradiction is not None:
            await epochs.request(self._contradiction)
            raise RolledBack(f"loglet {self._log}: the metadata repository forgot epochs")
        return known

    def _contradict(self, epoch: Epoch, shard: ShardId, lsn: Lsn) -> None:
        logger.error(
            "loglet %d: epoch %d is not new, node %s knows of position %d: the metadata "
            "repository went back in time, nothing more is sequenced here",
            self._log,
            epoch,
            shard_name(shard),
            lsn,
        )
        self._contradiction = Contradict(self._log, epoch, shard, lsn)

    def _check_open(self, known: Known) -> None:
        if known.state.closed:
            raise Sealed(f"loglet {self._log} takes no more appends: refresh the metadata")

    def _check_mine(self, known: Known) -> None:
        chosen = sequencer_of(self._log, _weights(known), known.state.chosen)
        if chosen is None:
            raise Unavailable(f"loglet {self._log}: no node is there that could sequence it")
        if chosen != self._context.me:
            raise NotLeader(
                f"node {chosen} sequences loglet {self._log}", known.nodes[chosen].address
            )

    # ---- ends

    def _over(self, open_ends: list[OpenEnd]) -> None:
        sequencer, self.sequencer = self.sequencer, None
        self._context.epochs.expire(self._log)
        if sequencer is not None:
            sequencer.stop()
            self._given_up = self._given_up + 1 if sequencer.gave_up else 0
            self._newest = max(self._newest, sequencer.replaced_by)
            if (found := sequencer.contradicted) is not None:
                self._contradict(sequencer.epoch, found.shard, found.lsn)
                self._activate_soon()  # it informs the metadata repository
                for append, _ in open_ends:
                    self._resolver.answer_unknown(
                        append, "the metadata repository went back in time"
                    )
            elif open_ends:
                resolving = self._resolver.answer_all(sequencer.epoch, open_ends, self._running)
                self._context.spawn(resolving)
        if self._queue or (sequencer is not None and sequencer.gave_up):
            self._activate_soon()

    def _running(self) -> Epoch:
        return 0 if self.sequencer is None else self.sequencer.epoch

    # ---- appends that have to wait

    async def _look_back(
        self, append: OpenAppend, recovered: Callable[[], Awaitable[Epoch | None]]
    ) -> None:
        """Search for the append in the epochs before the one that `recovered` waits for."""
        self._looking_back += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                epoch = await recovered()
                if epoch is None:
                    self.append(append)  # the current sequencer has to search
                    return
                if await self._resolver.is_in_none(append, epoch):
                    self.append(append.for_epoch(epoch))
        except LoomError as error:
            append.failed(error)
        except TimeoutError:
            append.failed(
                Unavailable(
                    f"loglet {self._log}: too few nodes tell yet whether they were given the "
                    "batch: ask again"
                )
            )
        finally:
            self._looking_back -= 1

    async def _append_recovered(self, append: OpenAppend, sequencer: RunningSequencer) -> None:
        """Append a conditional batch once the ends of earlier epochs are known."""
        self._looking_back += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await sequencer.recovered()
            self.append(append)
        except TimeoutError:
            append.failed(
                Unavailable(f"loglet {self._log}: how earlier epochs ended is not known yet")
            )
        finally:
            self._looking_back -= 1

    async def _recovered_before(self, sequencer: RunningSequencer) -> Epoch | None:
        return sequencer.epoch if await sequencer.recovered() else None


def _weights(known: Known) -> dict[NodeId, float]:
    """Return the weights of the nodes that may sequence; draining ones only if all are."""
    alive = [node for node in known.nodes.values() if node.alive]
    staying = [node for node in alive if not node.draining]
    return {node.node_id: 1.0 for node in staying or alive}


def _retrieve(activating: asyncio.Task[None]) -> None:
    """Mark a failure as retrieved, because the waiting callers got it."""
    if not activating.cancelled():
        activating.exception()
