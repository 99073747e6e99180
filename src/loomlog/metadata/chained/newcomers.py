"""Add replicas to chains: create them, copy blocks while the log is in use, and let them join."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from loomlog.core.chained.admission import Admission
from loomlog.core.chained.chain import Projection, Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import Interrupted
from loomlog.core.chained.newcomer import create
from loomlog.errors import LoomError, NotFound, NotLeader, Unavailable
from loomlog.metadata.chained.epochs import Epochs

logger = logging.getLogger(__name__)

COPIES_MAX: Final = 4  # at a time: they compete with appends for disks and network


class Newcomers:
    """Copies blocks to replicas that will join a chain, a few at a time."""

    def __init__(self, epochs: Epochs, bytes_per_s: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._epochs = epochs
        self._records, self._driver, self._nodes = epochs.records, epochs.driver, epochs.nodes
        self._bytes_per_s = bytes_per_s
        self._room = asyncio.Semaphore(COPIES_MAX)
        self.under_way: dict[Replica, Admission] = {}
        self._sources: dict[Replica, Replica] = {}  # chosen by operators; else the tail

    def prefer_source(self, newcomer: Replica, source: Replica) -> None:
        """Fill a newcomer from this replica, until it has joined or that replica fails."""
        self._sources[newcomer] = source

    async def admit(self, replica: Replica) -> None:
        """Copy to a newcomer until it has joined or is abandoned; then it has to be removed."""
        try:
            async with self._room:
                await self._admit(replica)
        except NotLeader:
            raise
        except NotFound:
            return  # the log was deleted, and all replicas are removed
        except LoomError as error:
            logger.warning("node %d does not join segment %d: %s", *replica[:2], error)
            if not self._problem(replica):  # otherwise it was restarted, and may take another one
                self._nodes.set_unable(replica.log_id, replica.node_id)
            await self._records.change(replica.log_id, lambda record: record.give_up(replica))
        finally:
            self.under_way.pop(replica, None)
            self._sources.pop(replica, None)

    async def _admit(self, replica: Replica) -> None:
        loglet = replica.log_id
        projection = self._projection(replica)
        steps = create(projection, replica, self._nodes.life(replica.node_id))
        newcomer = await self._driver.drive(loglet, steps)
        if isinstance(newcomer, Interrupted):
            raise Unavailable(newcomer.reason)
        admission = self.under_way[replica] = Admission(newcomer)
        while True:
            if problem := self._problem(replica):
                raise Unavailable(problem)
            try:
                began_s = self._loop.time()
                projection = self._projection(replica)
                catch_up = admission.catch_up(projection, self._sources.get(replica))
                stop = await self._driver.drive(loglet, catch_up, self._bytes_per_s)
                if stop is not None:
                    self._sources.pop(replica, None)
                    raise Unavailable(stop.reason)
                goal = admission.next_goal(self._loop.time() - began_s)
                what = "joins" if goal.newcomer else "catches up"
                what = f"node {replica.node_id} {what}"
                new = await self._epochs.next(loglet, goal, what, after=projection.epoch)
                if replica in new.replicas:  # unless another epoch has begun meanwhile
                    return
            except Unavailable:
                delay_s = admission.retry_delay_s()
                if delay_s is None or not self._nodes.reachable(replica.node_id):
                    raise
                await asyncio.sleep(delay_s)

    def _problem(self, replica: Replica) -> str:
        """Return why it can no longer join; "" if unknown."""
        admission = self.under_way.get(replica)
        return "" if admission is None else admission.problem(self._nodes.life(replica.node_id))

    def _projection(self, replica: Replica) -> Projection:
        record = self._records.get(replica.log_id)
        if record is None or replica not in record.joining:
            raise NotFound(f"segment {replica.log_id} continues without it")
        return record.projection

    def percent(self, record: ChainedRecord, replica: Replica) -> int:
        """Return how much of its chain the newcomer has."""
        admission = self.under_way.get(replica)
        return admission.percent(record.projection) if admission else 0
