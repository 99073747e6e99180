"""Add replicas to chains: create them, copy blocks while the log is in use, let them join."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from loomlog.core.backoff import Backoff
from loomlog.core.chained.chain import Projection, Replica
from loomlog.core.chained.messages import Interrupted, Pulled
from loomlog.core.chained.reconfigure import Goal, Newcomer, copy, create, settle
from loomlog.errors import LoomError, NotFound, NotLeader, Unavailable
from loomlog.metadata.chained.epochs import Epochs
from loomlog.types import Glsn, LogId

logger = logging.getLogger(__name__)

COPIES_MAX: Final = 4  # at one time: they take disks and network from appends
ATTEMPTS: Final = 8  # without any progress; then another node is looked for
RETRY: Final = Backoff(0.1, 2.0)
CATCH_UP_S: Final = 0.3  # what arrives in this time is copied while appends wait
EPOCHS_MAX: Final = 5  # begun to make the rest that small


@dataclass(slots=True)
class Copying:
    """The progress of a copy to a newcomer."""

    newcomer: Newcomer
    settled: Glsn = 0  # below this nothing is open any more, in the projection it is copied from
    reached: Glsn = 0  # it has all that its source has below this

    def begin(self, settled: Glsn) -> None:
        """Start at `copied`: blocks above it from an earlier attempt may be incomplete."""
        self.settled, self.reached = settled, self.newcomer.copied

    def copied(self, part: Pulled) -> None:
        self.reached = part.end

    def keep(self) -> None:
        """Keep the progress for the next attempt."""
        copied = max(self.newcomer.copied, min(self.reached, self.settled))
        self.newcomer = self.newcomer._replace(copied=copied)


class Newcomers:
    """Copies blocks to replicas that will join a chain, a few at a time."""

    def __init__(self, epochs: Epochs, bytes_per_s: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._epochs = epochs
        self._records, self._driver, self._nodes = epochs.records, epochs.driver, epochs.nodes
        self._bytes_per_s = bytes_per_s
        self._room = asyncio.Semaphore(COPIES_MAX)
        self.under_way: dict[Replica, Copying] = {}

    async def admit(self, replica: Replica) -> None:
        """Copy to it until it has joined or is given up; then it is to be removed."""
        try:
            async with self._room:
                await self._admit(replica)
        except NotLeader:
            raise
        except NotFound:
            return  # the log was deleted, and all replicas are removed
        except LoomError as error:
            logger.warning("node %d does not join segment %d: %s", *replica[:2], error)
            self._nodes.set_unable(replica.log_id, replica.node_id)
            await self._records.drop(replica.log_id, replica)
        finally:
            self.under_way.pop(replica, None)

    async def _admit(self, replica: Replica) -> None:
        loglet = replica.log_id
        projection = self._projection(replica)
        newcomer = await self._driver.drive(loglet, create(projection, replica))
        if isinstance(newcomer, Interrupted):
            raise Unavailable(newcomer.reason)
        copying = self.under_way[replica] = Copying(newcomer)
        attempts, epochs = 0, 0
        while True:
            before = copying.newcomer.copied
            try:
                began_s = self._loop.time()
                await self._catch_up(self._projection(replica), copying)
                if self._loop.time() - began_s <= CATCH_UP_S or epochs == EPOCHS_MAX:
                    goal = Goal(newcomer=copying.newcomer)
                    await self._epochs.next(loglet, goal, f"node {replica.node_id} joins")
                    return
                await self._epochs.next(loglet, Goal(), f"node {replica.node_id} catches up")
                epochs += 1
            except Unavailable:
                attempts = 0 if copying.newcomer.copied > before else attempts + 1
                if attempts == ATTEMPTS or not self._nodes.reachable(replica.node_id):
                    raise
                await asyncio.sleep(RETRY.delay_s(attempts))

    async def _catch_up(self, projection: Projection, copying: Copying) -> None:
        """Settle all below the start of the epoch, and copy it."""
        loglet, epoch = projection.log_id, projection.epoch
        settled = await self._driver.drive(loglet, settle(projection, copying.newcomer.copied))
        if isinstance(settled, Interrupted):
            raise Unavailable(settled.reason)
        copying.begin(settled)
        tail = projection.chains[copying.newcomer.replica.chain][-1]
        steps = copy(epoch, tail, copying.newcomer, until=settled)
        trimmed = await self._driver.drive(loglet, steps, copying.copied, self._bytes_per_s)
        copying.keep()
        if isinstance(trimmed, Interrupted):
            raise Unavailable(trimmed.reason)
        copying.newcomer = copying.newcomer._replace(copied=settled, trimmed=trimmed)

    def _projection(self, replica: Replica) -> Projection:
        record = self._records.get(replica.log_id)
        if record is None or replica not in record.joining:
            raise NotFound(f"segment {replica.log_id} continues without it")
        return record.projection

    def percent(self, loglet: LogId, replica: Replica) -> int:
        """Return how much of its chain the newcomer has."""
        copying, record = self.under_way.get(replica), self._records.get(loglet)
        if copying is None or record is None:
            return 0
        first, end = record.projection.first, max(copying.settled, record.projection.start)
        return min(100, 100 * max(0, copying.reached - first) // max(1, end - first))
