"""The slot for one log's sequencer on this node: activates it, and deals with appends when it ends.

Any node may be asked. The live node with the highest weighted rendezvous hash for the log takes an
epoch and sequences; the others name it. A running sequencer continues until it is preempted, also
while the metadata repository is out of reach.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from loomlog.core.copyset.log_state import is_recovered
from loomlog.core.copyset.messages import Activate, Contradict, FoundBatch, GetState, LogState
from loomlog.core.copyset.nodeset import sequencer_of
from loomlog.core.copyset.procedures import (
    Appended,
    Nowhere,
    Resolution,
    Unresolved,
    look_back,
    resolve,
)
from loomlog.core.copyset.record import Epoch, Lsn, epoch_of, make
from loomlog.core.copyset.shards import shard_name, shard_of
from loomlog.errors import (
    AppendUnknown,
    Busy,
    LoomError,
    NotLeader,
    RolledBack,
    Sealed,
    Unavailable,
)
from loomlog.limits import MIB, REQUEST_TIMEOUT_S
from loomlog.node.copyset.epoch_store import Known
from loomlog.node.copyset.procedures import ANSWER_S, RETRY
from loomlog.node.copyset.sequencer import OpenAppend, OpenEnd, RunningSequencer, SequencerContext
from loomlog.node.workers import insist
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

STATE_S: Final = 0.25  # the list of live nodes is fetched at most this often
LOOK_BACK_S: Final = ANSWER_S + 0.5  # for nodes that tell which batches they were given
QUEUED_APPENDS_MAX: Final = 10_000  # while a sequencer is activated
QUEUED_BYTES_MAX: Final = 128 * MIB  # of these appends
SWAPS_MAX: Final = 3  # attempts to take an epoch, while others do, too


class SequencerSlot:
    """Queues the appends of one log, and runs its sequencer if it belongs here."""

    def __init__(self, log: LogId, context: SequencerContext) -> None:
        self._log = log
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._queue: deque[OpenAppend] = deque()  # until there is a sequencer
        self._queued_bytes = 0
        self._activating: asyncio.Task[None] | None = None
        self._begun: Epoch = 0  # the newest; none is begun twice, LSNs would be given again
        self._looking_back = 0  # how many appends are looked for
        self._newest: Epoch = 0  # that any node is known to have taken
        self._contradiction: Contradict | None = None  # the epoch store went back in time
        self.sequencer: RunningSequencer | None = None

    @property
    def is_needed(self) -> bool:
        """Whether it has state: it sequences or did, or an append waits."""
        waiting = self._queue or self._activating is not None or self._looking_back
        return bool(self._begun or waiting)

    # ---- requests

    def append(self, append: OpenAppend) -> None:
        """Take an append; it is answered when its outcome is clear."""
        sequencer = self.sequencer
        if sequencer is None:
            self._enqueue(append)
        elif not append.fits(sequencer.epoch):
            append.not_taken(sequencer.epoch)
        elif append.repeated and not sequencer.knows(append):
            self._context.spawn(self._look_back(append, self._recovered_before(sequencer)))
        else:
            try:
                sequencer.append(append)
            except LoomError as error:
                append.failed(error)

    async def tail(self) -> pb.CopysetTail:
        """Return the tail of the sequencer here; activate it if it should be here."""
        if self.sequencer is None:
            await asyncio.shield(self._activate_soon())
        if self.sequencer is None:
            raise Unavailable(f"loglet {self._log}: its sequencer just ended: ask again")
        return self.sequencer.tail()

    def begin(self, known: Known) -> RunningSequencer | None:
        """Begin the epoch that was taken for this node. Return the sequencer; None: it is over."""
        sequencer = self.sequencer
        if sequencer is not None and sequencer.epoch < known.state.epoch:
            sequencer.learned(known.state)
        if self.sequencer is None and known.state.epoch > self._begun:
            logger.info("loglet %d: this node sequences in epoch %d", self._log, known.state.epoch)
            self._begun = known.state.epoch
            self.sequencer = RunningSequencer(known, self._context, self._enqueue, self._over)
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
        """Refuse an append, unless it is repeated and the closed log may have it already."""
        if isinstance(error, Sealed) and append.repeated:
            self._context.spawn(self._look_back(append, self._closed_at()))
        else:
            append.failed(error)

    async def _take_epoch(self) -> Known | None:
        """Take the next epoch; None: one was taken for this node in the meantime."""
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
        """Return the state of the log; raises RolledBack if nodes know a newer one."""
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
        chosen = sequencer_of(self._log, _weights(known))
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
            self._newest = max(self._newest, sequencer.replaced_by)
            if (found := sequencer.contradicted) is not None:
                self._contradict(sequencer.epoch, found.shard, found.lsn)
                self._activate_soon()  # it informs the metadata repository
                for append, _ in open_ends:
                    self._answer_unknown(append, "the metadata repository went back in time")
            elif open_ends:
                self._context.spawn(self._resolve_all(sequencer.epoch, open_ends))
        if self._queue or (sequencer is not None and sequencer.gave_up):
            self._activate_soon()

    async def _resolve_all(self, epoch: Epoch, open_ends: list[OpenEnd]) -> None:
        """Answer appends that were in progress, once the next sequencer has recovered the epoch."""
        left = dict(open_ends)
        reason = f"epoch {epoch} is not recovered yet"
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._state_when(lambda state: state.last_clean >= epoch)
                reason = "too few nodes answer"
                await asyncio.gather(*(self._resolve(left, *open_end) for open_end in open_ends))
        except TimeoutError:
            for append in left:
                self._answer_unknown(append, reason)

    async def _state_when(self, holds: Callable[[LogState], bool]) -> LogState:
        """Ask the epoch store until this holds."""

        async def attempt() -> LogState | None:
            state = await self._context.epochs.ask(GetState(self._log))
            return state if state is not None and holds(state) else None

        return await insist(attempt, RETRY)

    async def _resolve(self, left: dict[OpenAppend, Lsn], append: OpenAppend, lsn: Lsn) -> None:
        outcome = await self._find_out(lsn)
        del left[append]
        match outcome:
            case Appended(record):
                append.succeeded(record.first)
            case Nowhere():
                append.not_taken(0 if self.sequencer is None else self.sequencer.epoch)
            case Unresolved(reason):
                self._answer_unknown(append, reason)

    async def _find_out(self, lsn: Lsn) -> Resolution:
        async def attempt() -> Resolution | None:
            outcome = await self._context.asker.run(resolve(self._log, lsn))
            return None if isinstance(outcome, Unresolved) and not outcome.for_good else outcome

        outcome: Resolution = await insist(attempt, RETRY)
        return outcome

    def _answer_unknown(self, append: OpenAppend, reason: str) -> None:
        append.failed(
            AppendUnknown(
                f"loglet {self._log}: whether the batch was appended is not known: {reason}"
            )
        )

    # ---- repeated appends

    async def _look_back(self, append: OpenAppend, recovered: Awaitable[Epoch | None]) -> None:
        """Look for the append in epochs before the one that `recovered` waits for."""
        self._looking_back += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                epoch = await recovered
                if epoch is None:
                    self.append(append)  # the current sequencer has to look
                    return
                await self._find_before(append, epoch)
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

    async def _recovered_before(self, sequencer: RunningSequencer) -> Epoch | None:
        return sequencer.epoch if await sequencer.recovered() else None

    async def _closed_at(self) -> Epoch:
        """Wait until the closed log is recovered; return its last epoch, which takes no appends."""
        return (await self._state_when(is_recovered)).epoch

    async def _find_before(self, append: OpenAppend, epoch: Epoch) -> None:
        header = append.header

        async def attempt() -> FoundBatch | None:
            known = await self._context.epochs.get(self._log, STATE_S)
            steps = look_back(self._log, header.producer_id, header.sequence, known.state)
            return await self._context.asker.run(steps)

        async with asyncio.timeout(LOOK_BACK_S):
            found: FoundBatch = await insist(attempt, RETRY)
        certain = found.certain
        for lsn in (lsn for lsn in found.lsns if epoch_of(lsn) < epoch):
            outcome = await self._find_out(lsn)
            if isinstance(outcome, Appended):
                append.succeeded(outcome.record.first)
                return
            if isinstance(outcome, Unresolved):
                certain = False
        if certain:
            self.append(append.for_epoch(epoch))
        else:
            self._answer_unknown(append, "too few nodes remember what they were given")


def _weights(known: Known) -> dict[NodeId, float]:
    """Return the weights of the nodes that may sequence: if all are being drained, of those."""
    alive = [node for node in known.nodes.values() if node.alive]
    staying = [node for node in alive if not node.draining]
    return {node.node_id: 1.0 for node in staying or alive}


def _retrieve(activating: asyncio.Task[None]) -> None:
    """Mark a failure as retrieved: the callers that wait got it."""
    if not activating.cancelled():
        activating.exception()
