"""The epochs that were granted, as the metadata repository said and as is stored here.

Any peer can send a request of any epoch. A request of an epoch that is not known here waits until
the metadata repository was asked: once for each epoch of a log, and for each forged one.
"""

from __future__ import annotations

import asyncio

from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.storage import taken_epoch
from loomlog.errors import NotLeader, Unavailable
from loomlog.node.copyset.copies import Copies
from loomlog.node.copyset.epoch_store import AskMetadata
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb


class Grants:
    """The granted epochs of all logs, as far as this node knows."""

    def __init__(self, copies: Copies, ask: AskMetadata) -> None:
        self._copies = copies
        self._ask = ask
        self._granted: dict[LogId, Epoch] = {}  # the highest one
        self._asking: dict[LogId, asyncio.Task[None]] = {}

    def covers(self, log: LogId, epoch: Epoch) -> bool:
        """Return whether the epoch is known to be granted, without asking anybody."""
        if epoch <= self._granted.get(log, 0):
            return True
        if epoch > taken_epoch(self._copies.standing(log)):
            return False
        self._granted[log] = epoch
        return True

    def learned(self, log: LogId, epoch: Epoch) -> None:
        """Note what the metadata repository said."""
        if epoch > self._granted.get(log, 0):
            self._granted[log] = epoch

    def forget(self, log: LogId) -> None:
        self._granted.pop(log, None)

    def stop(self) -> None:
        for asking in self._asking.values():
            asking.cancel()

    async def verify(self, log: LogId, epoch: Epoch) -> None:
        """Return if the epoch was granted; raise Unavailable if not, or if nobody can tell."""
        for _ in range(2):  # an answer that was on its way before may be too old
            await self._asked(log)
            if self.covers(log, epoch):
                return
        raise Unavailable(
            f"epoch {epoch} of loglet {log} was never granted: the newest one is "
            f"{self._granted.get(log, 0)}"
        )

    async def _asked(self, log: LogId) -> None:
        """Ask the metadata repository; concurrent callers wait for the same answer."""
        if log not in self._asking:
            self._asking[log] = asyncio.get_running_loop().create_task(self._get(log))
            self._asking[log].add_done_callback(lambda asking: self._answered(log, asking))
        await asyncio.shield(self._asking[log])

    async def _get(self, log: LogId) -> None:
        question = pb.EpochStoreRequest(kind=pb.EpochStoreRequest.GET, loglet_id=log)
        try:
            answer = await self._ask(pb.Frame(epoch_store_request=question))
        except NotLeader as error:  # of the metadata: clients would take it for a sequencer
            raise Unavailable(f"the epochs of loglet {log}: {error}") from None
        self.learned(log, answer.copyset_state.epoch)

    def _answered(self, log: LogId, asking: asyncio.Task[None]) -> None:
        del self._asking[log]
        if not asking.cancelled():
            asking.exception()  # those who still wait get it, too
