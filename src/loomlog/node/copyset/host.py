"""The place of one log's sequencer on this node: who it is, and what becomes of appends when that
changes.

Any node may be asked. The one that the log likes most, of those that are alive (weighted rendezvous
hashing), takes an epoch and sequences; the others name it. A sequencer that is at work goes on
until it is preempted, also while the metadata repository is out of reach.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from loomlog.core.copyset.lsn import Epoch, Lsn, epoch_of, words
from loomlog.core.copyset.messages import Activate, GetState
from loomlog.core.copyset.placement import sequencer_of
from loomlog.core.copyset.resolving import Appended, Nowhere, Resolution, Unresolved, resolve
from loomlog.errors import AppendUnknown, Busy, LoomError, NotLeader, Sealed, Unavailable
from loomlog.limits import COPYSET_QUEUED_APPENDS_MAX, COPYSET_QUEUED_BYTES_MAX, REQUEST_TIMEOUT_S
from loomlog.node.copyset.appends import Append
from loomlog.node.copyset.asking import insist
from loomlog.node.copyset.epoch_store import Known
from loomlog.node.copyset.means import Means
from loomlog.node.copyset.sequencing import OpenEnd, Sequencing
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

STATE_S: Final = 0.25  # who is alive is not asked for more often
SWAPS_MAX: Final = 3  # attempts to take an epoch, while others do, too


class Host:
    def __init__(self, log: LogId, means: Means) -> None:
        self._log = log
        self._means = means
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Append] = deque()  # until there is a sequencer
        self._queued_bytes = 0
        self._activating: asyncio.Task[None] | None = None
        self.sequencing: Sequencing | None = None

    # ---- what is asked

    def append(self, append: Append, previous: Lsn) -> None:
        """`previous`: the LSN that an earlier attempt was given, or 0."""
        sequencing = self.sequencing
        if previous and not (sequencing and sequencing.epoch == epoch_of(previous)):
            self._means.spawn(self._resolve_all(epoch_of(previous), [(append, previous)]))
        else:
            self._take(append)

    async def tail(self) -> pb.CopysetTail:
        """Of the sequencer here; activates one if it should be here."""
        if self.sequencing is None:
            await asyncio.shield(self._activate_soon())
        if self.sequencing is None:
            raise Unavailable(f"loglet {self._log}: its sequencer just ended: ask again")
        return self.sequencing.tail()

    def stop(self) -> None:
        if self._activating is not None:
            self._activating.cancel()
        if self.sequencing is not None:
            self.sequencing.stop()

    def _take(self, append: Append) -> None:
        if self.sequencing is None:
            self._enqueue(append)
            return
        try:
            self.sequencing.append(append)
        except LoomError as error:
            append.failed(error)

    # ---- activation

    def _enqueue(self, append: Append) -> None:
        size = self._queued_bytes + append.header.size
        if len(self._queue) >= COPYSET_QUEUED_APPENDS_MAX or size > COPYSET_QUEUED_BYTES_MAX:
            append.failed(Busy(f"loglet {self._log}: too many appends wait for a sequencer"))
            return
        self._queue.append(append)
        self._queued_bytes = size
        if self.sequencing is None:  # else one that drains
            self._activate_soon()

    def _dequeue(self) -> list[Append]:
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
            known = await self._take_epoch()
        except LoomError as error:
            for append in self._dequeue():
                append.failed(error)
            raise
        finally:
            self._activating = None
        logger.info("loglet %d: this node sequences in epoch %d", self._log, known.state.epoch)
        self.sequencing = Sequencing(known, self._means, self._enqueue, self._over)
        for append in self._dequeue():
            self._take(append)

    async def _take_epoch(self) -> Known:
        known = await self._means.epochs.get(self._log, STATE_S)
        for _ in range(SWAPS_MAX):
            self._check_open(known)
            self._check_mine(known)
            expected = known.state.epoch
            known = await self._means.epochs.request(Activate(self._log, self._means.me, expected))
            taken = known.state
            if (taken.epoch, taken.sequencer) == (
                expected + 1,
                self._means.me,
            ) and not taken.closed:
                return known
        self._check_open(known)
        raise Unavailable(f"loglet {self._log}: others take epochs, too: try again in a moment")

    def _check_open(self, known: Known) -> None:
        if known.state.closed:
            raise Sealed(f"loglet {self._log} takes no more appends: refresh the metadata")

    def _check_mine(self, known: Known) -> None:
        chosen = sequencer_of(self._log, _weights(known))
        if chosen is None:
            raise Unavailable(f"loglet {self._log}: no node is there that could sequence it")
        if chosen != self._means.me:
            raise NotLeader(
                f"node {chosen} sequences loglet {self._log}", known.nodes[chosen].address
            )

    # ---- ends

    def _over(self, open_ends: list[OpenEnd]) -> None:
        sequencing, self.sequencing = self.sequencing, None
        self._means.epochs.forget(self._log)
        if sequencing is not None:
            sequencing.stop()
            if open_ends:
                self._means.spawn(self._resolve_all(sequencing.epoch, open_ends))
        if self._queue:
            self._activate_soon()

    async def _resolve_all(self, epoch: Epoch, open_ends: list[OpenEnd]) -> None:
        """Whoever sequences now recovers that epoch; then it is certain what stands there."""
        left = dict(open_ends)
        reason = f"epoch {epoch} is not recovered yet"
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await insist(lambda: self._is_clean(epoch))
                reason = "too few nodes answer"
                await asyncio.gather(*(self._resolve(left, *open_end) for open_end in open_ends))
        except TimeoutError:
            for append, lsn in left.items():
                self._resolved(append, lsn, Unresolved(reason, for_good=True))

    async def _is_clean(self, epoch: Epoch) -> bool | None:
        state = await self._means.epochs.ask(GetState(self._log))
        return True if state is not None and state.last_clean >= epoch else None

    async def _resolve(self, left: dict[Append, Lsn], append: Append, lsn: Lsn) -> None:
        async def attempt() -> Resolution | None:
            outcome = await self._means.asker.run(resolve(self._log, lsn))
            return None if isinstance(outcome, Unresolved) and not outcome.for_good else outcome

        outcome: Resolution = await insist(attempt)
        del left[append]
        self._resolved(append, lsn, outcome)

    def _resolved(self, append: Append, lsn: Lsn, outcome: Resolution) -> None:
        match outcome:
            case Appended(record):
                append.succeeded(record.first)
            case Nowhere():
                self._take(append.anew())
            case Unresolved(reason):
                append.failed(
                    AppendUnknown(
                        f"loglet {self._log}: whether the batch is at {words(lsn)} is not known: "
                        f"{reason}"
                    )
                )


def _weights(known: Known) -> dict[NodeId, float]:
    """Of the nodes that may sequence: if all are being drained, those that are."""
    alive = [node for node in known.nodes.values() if node.alive]
    staying = [node for node in alive if not node.draining]
    return {node.node_id: 1.0 for node in staying or alive}


def _retrieve(activating: asyncio.Task[None]) -> None:
    """A failure was told to all who wait."""
    if not activating.cancelled():
        activating.exception()
