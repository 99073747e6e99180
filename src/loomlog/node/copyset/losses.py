"""A node that lost its disk must not say "it never was here": others would believe it.

The metadata repository knows a node that came back with empty volumes, or says itself that its
copies are gone, and remembers below which id loglets were there by then (`lost_below`). Of those
the node says with every answer that it may miss records, for good: what it has counts, what it
lacks does not. It also forgot what it was sealed at. So before it takes anything of such a log, it
seals itself below the log's newest epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from loomlog.core.copyset.messages import (
    Delivered,
    GetEnd,
    GetState,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Read,
    Refused,
    Release,
    Seal,
    SealedAt,
    Store,
    Trouble,
)
from loomlog.errors import LoomError
from loomlog.node.copyset.copies import Copies
from loomlog.node.copyset.epoch_store import EpochStore
from loomlog.node.copyset.looking_up import looked_up
from loomlog.node.copyset.marks import Marks, Seen
from loomlog.storage.logsdb.store import Answered
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

_NOT_JOINED: Final = Refused(
    Trouble.DISABLED, "this node has not yet registered with the metadata repository"
)
_MAY_HAVE_KNOWN: Final = Refused(Trouble.DISABLED, "this node lost copies: it may have known")

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class HonestCopies:
    """The copies of a node, and whether they are all that it was given. `lost_below` is None until
    the node has joined a cluster: then it does not know yet."""

    def __init__(
        self,
        copies: Copies,
        epochs: EpochStore,
        lost_below: Callable[[], int | None],
        marks: Marks,
        spawn: Spawn,
    ) -> None:
        self._copies = copies
        self._epochs = epochs
        self._lost_below = lost_below
        self._marks = marks
        self._spawn = spawn
        self._sealed: set[LogId] = set()  # of those that may miss something

    def ask(self, request: NodeRequest, done: Answered) -> None:
        """As Copies.ask."""
        if isinstance(request, Store) and len(request.record.batch):
            self._marks.note(request.log, request.record.first, request.record.batch)
        if (lost_below := self._lost_below()) is None:
            done(_NOT_JOINED)
        elif request.log >= lost_below:
            self._copies.ask(request, done)
        elif request.log in self._sealed:
            self._copies.ask(request, _honest(request, done))
        else:
            self._spawn(self._seal_first(request, done))

    def wait(self, read: Read, wait_s: float, done: Answered) -> Callable[[], None]:
        """As Copies.wait."""
        if self._lost_below() is None:
            done(_NOT_JOINED)
            return lambda: None
        if self.may_miss(read.log):
            done = _honest(read, done)
        return self._copies.wait(read, wait_s, done)

    def may_miss(self, log: LogId) -> bool:
        """Records of it that it was given."""
        lost_below = self._lost_below()
        return lost_below is None or log < lost_below

    async def find_batch(self, question: pb.FindCopysetBatch) -> Seen:
        """Where it was to be stored."""
        log = question.loglet_id
        if self._marks.is_short(log) and (store := await self._copies.opened()) is not None:
            since_us = self._marks.matters_since_us
            self._marks.note_older(log, await looked_up(partial(store.recent, log, since_us)))
        seen = self._marks.find(log, question.producer_id, question.sequence)
        is_blind = self.may_miss(log) or self._copies.are_closed
        return seen._replace(certain=False) if is_blind else seen

    def forget(self, log: LogId) -> None:
        self._sealed.discard(log)
        self._marks.forget(log)

    async def _seal_first(self, request: NodeRequest, done: Answered) -> None:
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
            self.ask(request, done)

        self._copies.ask(Seal(log, known.state.epoch - 1, wave=0), sealed)


def _honest(request: NodeRequest, done: Answered) -> Answered:
    def answered(answer: NodeAnswer) -> None:
        match request, answer:
            case _, SealedAt() | Delivered():
                done(replace(answer, underreplicated=True))
            case GetEnd(), NotHere():
                done(_MAY_HAVE_KNOWN)
            case _:
                done(answer)

    return done if isinstance(request, Release) else answered
