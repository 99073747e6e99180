"""The copies of `copyset` logs on a node: which requests they take, and what is said with answers.

Every request names the creation stamp of its log. Numbers of logs may collide when metadata is
older than the nodes; stamps never do. The first request that brings something says which stamp the
log has here.

A node that lost its disk must not say "it never was here": others would believe it. The metadata
repository recognises a node that came back with empty volumes or an older copy of its data, and
remembers the newest epoch that each loglet had by then. For epochs up to that one the node says
with every answer that it may miss records, for good: what it has counts, what it lacks does not.
Since it also forgot what it was sealed at, it seals itself below the log's newest epoch before it
takes anything of such a log.

A node that has not registered since it was started does not know what it lost. It shows what it
has, and takes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from loomlog.core.copyset.messages import (
    Begin,
    Delivered,
    Digest,
    Done,
    Forget,
    GetState,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Purge,
    Read,
    Refused,
    Release,
    Seal,
    SealedAt,
    Store,
    Trim,
    Trouble,
)
from loomlog.core.copyset.record import EPOCH_MAX, Epoch, epoch_of
from loomlog.core.copyset.storage import LogStanding
from loomlog.errors import LoomError, Unavailable
from loomlog.net.turns import Turns
from loomlog.node.copyset.epoch_store import EpochStore
from loomlog.node.copyset.logs_volume import LogsVolume
from loomlog.node.copyset.marks import MATTERS_US, Marks, Seen
from loomlog.node.copyset.waiting_reads import WaitingReads
from loomlog.node.disks import Disks
from loomlog.node.workers import called_back
from loomlog.storage.logsdb.store import Answered
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

Found = TypeVar("Found")
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

_NOT_JOINED: Final = Refused(
    Trouble.DISABLED, "this node has not yet registered with the metadata repository"
)


class Copies:
    """Opens what is on the disks when it is made; that blocks."""

    def __init__(
        self, disks: Disks, epochs: EpochStore, now_us: Callable[[], int], spawn: Spawn
    ) -> None:
        self._epochs = epochs
        self._spawn = spawn
        self._waiting = WaitingReads(self.ask_store)
        self.volume = LogsVolume(disks, now_us, self._waiting.look_at_all)
        older = None if self.volume.is_closed else frozenset(self.volume.logs)
        self.marks = Marks(asyncio.get_running_loop().time, now_us(), older)
        self._lost: Mapping[LogId, Epoch] | None = None  # None until the node has registered
        self._sealed: set[LogId] = set()  # of those that may miss something

    def joined(self, lost: Mapping[LogId, Epoch]) -> None:
        """Learn up to which epochs copies of loglets may be lost."""
        self._lost = lost

    def standing(self, log: LogId) -> LogStanding:
        return self.volume.standing(log)

    def forget(self, log: LogId) -> None:
        self._sealed.discard(log)
        self.marks.forget(log)

    def stop(self) -> None:
        self._waiting.stop()

    # ---- requests

    def ask(self, request: NodeRequest, stamp: int, done: Answered) -> None:
        """Call `done` with the answer, on the loop. A batch must not change until then."""
        if isinstance(request, Store) and len(request.record.batch):
            self.marks.note(request.log, request.record.first, request.record.batch)
        if (refusal := self._refusal(request, stamp)) is not None:
            done(refusal)
        elif isinstance(request, Read):
            self.ask_store(request, self._with_loss(request.log, done))
        elif request.log not in (self._lost or ()):
            self.ask_store(request, done)
        elif request.log in self._sealed:
            is_told = isinstance(request, Seal)
            self.ask_store(request, self._with_loss(request.log, done) if is_told else done)
        else:
            self._spawn(self._seal_first(request, stamp, done))

    def wait(
        self, read: Read, stamp: int, wait_s: float, done: Answered, turns: Turns
    ) -> Callable[[], None]:
        """Like `ask`, but wait that long for something to show. Call what this returns to end the
        read without an answer."""
        if (refusal := self._refusal(read, stamp)) is not None:
            done(refusal)
            return lambda: None
        return self._waiting.add(read, wait_s, self._with_loss(read.log, done), turns)

    def ask_store(self, request: NodeRequest, done: Answered) -> None:
        """Like `ask`, but ignore stamps and losses."""
        answered = partial(self._answered, request, done)
        self.volume.when_open(lambda store: store.ask(request, answered), done)

    def _answered(self, request: NodeRequest, done: Answered, answer: NodeAnswer) -> None:
        done(answer)
        if isinstance(answer, Done) and isinstance(request, Release | Purge | Trim | Forget):
            self._waiting.changed(request.log)

    # ---- creation stamps

    def _refusal(self, request: NodeRequest, stamp: int) -> NodeAnswer | None:
        """Return the answer to a request that must not reach the store, else None."""
        shows = isinstance(request, Read) and self.volume.store is not None
        if self._lost is None and not shows:
            return _NOT_JOINED
        stored = self.standing(request.log).stamp
        if stored == stamp:
            return None
        if stored:
            return _other_log(request, stored, stamp)
        if not isinstance(request, Read | Digest | Forget):
            # Durable with what is asked next.
            self.ask_store(Begin(request.log, stamp), lambda answer: None)
        return None

    # ---- losses

    def may_miss(self, log: LogId) -> bool:
        """Return whether records may be missing that this node was given."""
        return self._lost_through(log) > epoch_of(self.standing(log).trimmed)

    def _lost_through(self, log: LogId) -> Epoch:
        return EPOCH_MAX if self._lost is None else self._lost.get(log, 0)

    def _with_loss(self, log: LogId, done: Answered) -> Answered:
        def answered(answer: NodeAnswer) -> None:
            if isinstance(answer, SealedAt | Delivered):
                answer = replace(answer, lost_through=self._lost_through(log))
            done(answer)

        return answered

    async def _seal_first(self, request: NodeRequest, stamp: int, done: Answered) -> None:
        log = request.log
        try:
            known = await self._epochs.request(GetState(log))
        except LoomError as error:
            done(Refused(Trouble.DISABLED, f"this node lost copies of loglet {log}: {error}"))
            return

        def sealed(answer: NodeAnswer) -> None:
            if isinstance(answer, Refused):
                done(answer)
                return
            self._sealed.add(log)
            logger.info("loglet %d: some of its copies here were lost", log)
            self.ask(request, stamp, done)

        self.ask_store(Seal(log, known.state.epoch - 1, wave=0), sealed)

    # ---- repeated batches

    async def find_batch(self, question: pb.FindCopysetBatch) -> Seen:
        """Return where the batch was to be stored."""
        log = question.loglet_id
        is_short = self._lost is not None and self.marks.is_short(log)
        if is_short and (store := await self.volume.opened()) is not None:
            look = partial(store.recent, log, self.marks.began_us, MATTERS_US)
            self.marks.note_older(log, await looked_up(look))
        seen = self.marks.find(log, question.producer_id, question.sequence)
        is_blind = self.may_miss(log) or self.volume.is_closed
        return seen._replace(certain=False) if is_blind else seen


async def looked_up(look: Callable[[Callable[[Found | Refused], None]], None]) -> Found:
    """Start a look-up in the store and wait for its result; raises Unavailable if it is refused."""
    found = await called_back(look)
    if isinstance(found, Refused):
        raise Unavailable(found.reason)
    return found


def _other_log(request: NodeRequest, stored: int, stamp: int) -> NodeAnswer:
    reason = (
        f"loglet {request.log} is kept here with creation stamp {stored:016x}, the request is for "
        f"{stamp:016x}"
    )
    if isinstance(request, Forget | Trim):
        logger.warning("nothing is deleted: %s", reason)
        return NotHere()
    return Refused(Trouble.DISABLED, reason)
