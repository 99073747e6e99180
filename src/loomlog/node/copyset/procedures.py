"""Runs the procedures of core/copyset (fence, recovery, purge, resolve, look_back) over the
network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
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
from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.procedures import Answer, Exchange, Steps
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.recovery import NotRecovered, Recovered, Recovery
from loomlog.core.copyset.shards import node_of
from loomlog.core.requests import Lost, Outcome, drive
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.copyset.peers import OnAnswer, PeerNodes
from loomlog.node.copyset.shards import LocalShards
from loomlog.node.workers import insist
from loomlog.types import LogId, NodeId, ShardId

logger = logging.getLogger(__name__)

ANSWER_S: Final = 3.0  # nodes that are silent for longer count as dead elsewhere, too
RETRY: Final = Backoff(0.05, 0.5)
GRACE_S: Final = 0.05  # for the rest, when there are enough answers


class Asker:
    """Sends requests to shards, of this node and others, and to the epoch store."""

    def __init__(
        self, me: NodeId, shards: LocalShards, peers: PeerNodes, epochs: EpochStoreClient
    ) -> None:
        self._me = me
        self._shards = shards
        self._peers = peers
        self._epochs = epochs
        self._loop = asyncio.get_running_loop()

    def ask(self, shard: ShardId, request: NodeRequest, done: OnAnswer) -> None:
        """Call `done` with the answer, never before this returns; None: there is none."""
        if node_of(shard) == self._me:
            self._shards.ask(shard, request, partial(self._later, done))
        else:
            self._peers.ask(shard, request, self._shards.stamp_of(request.log), done)

    def release(self, shard: ShardId, release: Release) -> None:
        if node_of(shard) == self._me:
            self._shards.release(shard, release)
        else:
            self._peers.release(shard, release, self._shards.stamp_of(release.log))

    def authorities(self, log: LogId) -> dict[ShardId, Authority]:
        """Return which shards recovery does not wait for: they are gone for good."""
        return dict.fromkeys(self._epochs.gone.get(log, ()), Authority.UNAVAILABLE)

    async def run(self, steps: Steps[Outcome]) -> Outcome:
        """Drive a procedure to its end."""
        return await drive(steps, self._answer)

    def _later(self, done: OnAnswer, answer: NodeAnswer) -> None:
        self._loop.call_soon(done, answer)

    async def _answer(self, asked: Exchange) -> Sequence[Answer]:
        answers: list[asyncio.Future[Answer]] = []
        for target, request in asked.asks:
            if isinstance(request, EpochStoreRequest):  # always alone
                return [await self._ask_store(request)]
            assert isinstance(target, int)
            answers.append(asyncio.get_running_loop().create_future())
            self.ask(target, request, partial(_came, answers[-1]))
        await _until_enough(asked, answers)
        return [answer.result() if answer.done() else Lost() for answer in answers]

    async def _ask_store(self, request: EpochStoreRequest) -> LogState | Lost:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._epochs.ask(request) or Lost()
        except TimeoutError:
            return Lost()


def _came(future: asyncio.Future[Answer], answer: NodeAnswer | None) -> None:
    if not future.done():
        future.set_result(answer if answer is not None else Lost())


async def _until_enough(asked: Exchange, answers: Sequence[asyncio.Future[Answer]]) -> None:
    """Wait for enough answers, and then briefly for the rest."""
    shards = [ask.target for ask in asked.asks if isinstance(ask.target, int)]
    by_shard = list(zip(shards, answers, strict=True))
    missing = list(answers)
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            while missing and not asked.enough({s: a.result() for s, a in by_shard if a.done()}):
                await asyncio.wait(missing, return_when=asyncio.FIRST_COMPLETED)
                missing = [answer for answer in answers if not answer.done()]
    if missing:
        await asyncio.wait(missing, timeout=GRACE_S)


async def recover(
    log: LogId,
    epoch: Epoch,
    asker: Asker,
    now_us: Callable[[], int],
    is_over: Callable[[], bool],
    down: Callable[[], Collection[NodeId]],
) -> Recovered | Preempted | None:
    """Recover all epochs before `epoch`, on the node that took it, without the nodes that are
    `down` if it must be. Return None when `is_over`."""
    recovery, reported = Recovery(log, epoch), ""

    async def attempt() -> Recovered | Preempted | NotRecovered | None:
        nonlocal reported
        if is_over():
            return NotRecovered("it is over")
        steps = recovery.attempt(asker.authorities(log), now_us(), down())
        ending = await asker.run(steps)
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
