"""Runs the procedures of core/copyset (fence, recovery, purge, resolve, look_back) over the
network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import (
    EpochStoreRequest,
    LogState,
    NodeAnswer,
    NodeRequest,
    Preempted,
    Release,
)
from loomlog.core.copyset.procedures import Answer, CopysetAsk, Exchange, Steps
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.recovery import NotRecovered, Recovered, Recovery
from loomlog.core.requests import Lost, Outcome, drive
from loomlog.node.copyset.copies import Copies, LogCatchUp
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.copyset.peers import OnAnswer, PeerNodes
from loomlog.node.workers import insist
from loomlog.types import LogId, NodeId

logger = logging.getLogger(__name__)

ANSWER_S: Final = 3.0  # nodes that are silent for longer count as dead elsewhere, too
RETRY: Final = Backoff(0.05, 0.5)
GRACE_S: Final = 0.05  # for the rest, when there are enough answers


class Asker:
    """Sends requests to nodes, this one included, and to the epoch store."""

    def __init__(
        self,
        me: NodeId,
        copies: Copies,
        catch_up: LogCatchUp,
        peers: PeerNodes,
        epochs: EpochStoreClient,
    ) -> None:
        self._me = me
        self._copies = copies
        self._catch_up = catch_up
        self._peers = peers
        self._epochs = epochs
        self._loop = asyncio.get_running_loop()

    def ask(self, node: NodeId, request: NodeRequest, done: OnAnswer) -> None:
        """Call `done` with the answer, never before this returns; None: there is none."""
        stamp = self._copies.stamp_of(request.log)
        if node == self._me:
            self._copies.ask(request, stamp, partial(self._later, done))
        else:
            self._peers.ask(node, request, stamp, done)

    def release(self, node: NodeId, release: Release) -> None:
        stamp = self._copies.stamp_of(release.log)
        if node == self._me:
            self._catch_up.release(release, stamp)
        else:
            self._peers.release(node, release, stamp)

    async def run(self, steps: Steps[Outcome]) -> Outcome:
        """Drive a procedure to its end."""
        return await drive(steps, self._answer)

    def _later(self, done: OnAnswer, answer: NodeAnswer) -> None:
        self._loop.call_soon(done, answer)

    async def _answer(self, asked: Exchange) -> Sequence[Answer]:
        answers = _Answers(asked)
        for index, (target, request) in enumerate(asked.asks):
            if isinstance(request, EpochStoreRequest):  # always alone
                return [await self._ask_store(request)]
            assert isinstance(target, int)
            self.ask(target, request, partial(answers.came, index))
        return await answers.wait()

    async def _ask_store(self, request: EpochStoreRequest) -> LogState | Lost:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._epochs.ask(request) or Lost()
        except TimeoutError:
            return Lost()


class _Answers:
    """The answers to the requests of one round."""

    def __init__(self, asked: Exchange) -> None:
        self._asked = asked
        self._answers: list[Answer | None] = [None] * len(asked.asks)
        self._missing = len(asked.asks)
        self._changed = asyncio.Event()

    def came(self, index: int, answer: NodeAnswer | None) -> None:
        if self._answers[index] is None:
            self._answers[index] = answer if answer is not None else Lost()
            self._missing -= 1
            self._changed.set()

    async def wait(self) -> list[Answer]:
        await self._until(self._are_enough, ANSWER_S)
        await self._until(lambda: False, GRACE_S)
        return [answer if answer is not None else Lost() for answer in self._answers]

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the condition holds or no answer is missing."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._missing and not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass

    def _are_enough(self) -> bool:
        pairs = zip(self._asked.asks, self._answers, strict=True)
        return self._asked.enough(
            {_node(ask): answer for ask, answer in pairs if answer is not None}
        )


def _node(ask: CopysetAsk) -> NodeId:
    assert isinstance(ask.target, int)
    return ask.target


async def recover(
    log: LogId,
    epoch: Epoch,
    asker: Asker,
    now_us: Callable[[], int],
    is_over: Callable[[], bool],
) -> Recovered | Preempted | None:
    """Recover all epochs before `epoch`, on the node that took it. Return None when `is_over`."""
    recovery, reported = Recovery(log, epoch), ""

    async def attempt() -> Recovered | Preempted | NotRecovered | None:
        nonlocal reported
        if is_over():
            return NotRecovered("it is over")
        ending = await asker.run(recovery.attempt({}, now_us()))
        if not isinstance(ending, NotRecovered):
            return ending
        if ending.reason != reported:  # once, however often it is tried
            reported = ending.reason
            logger.warning("loglet %d: not recovered yet: %s", log, reported)
        return None

    ending: Recovered | Preempted | NotRecovered = await insist(attempt, RETRY)
    if isinstance(ending, NotRecovered):
        return None
    if isinstance(ending, Recovered):
        logger.info("loglet %d: recovered, epoch %d continues", log, epoch)
    return ending
