"""The chains of one log: operations driven over connections, and which projection is in force.

What is known of projections comes with the log's metadata. After an interruption everybody who met
it waits for one look at the metadata repository, which is told of a node that does not answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from loomlog.client import backoff
from loomlog.client.chained.asking import (
    Answered,
    Asking,
    Question,
    ReplicaQuestion,
    SequencerQuestion,
)
from loomlog.client.chained.driving import Drive
from loomlog.client.metadata import CachedLog, Metadata
from loomlog.client.nodes import Connections
from loomlog.core.chained.messages import Answer, Ask, Outcome, Request, Service, Steps
from loomlog.core.chained.outcomes import Interrupted
from loomlog.core.chained.projection import Projection, Replica
from loomlog.errors import NotFound, Retryable, Trimmed, Unavailable
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb

PROTOCOL: Final = "chained"
REPORT_S: Final = 1.0  # for the metadata repository to agree, and to begin a new epoch
NEWER_S: Final = 4.0  # a new epoch is in force after this, or is asked about again
LOOK_S: Final = 0.2  # who may go on in the old one waits so long for it


class SegmentGoneError(Trimmed):
    """Nothing is left of a segment, or the log never had it."""


class View(NamedTuple):
    """A segment as it is known: where its blocks are, in one epoch."""

    stream: StreamId
    projection: Projection
    addresses: Mapping[NodeId, str]

    @property
    def loglet(self) -> LogId:
        return self.projection.log_id

    @property
    def epoch(self) -> int:
        return self.projection.epoch


class Chains:
    """All chained segments of one log, for one client."""

    def __init__(
        self, log: CachedLog, metadata: Metadata, connections: Connections, rng: random.Random
    ) -> None:
        self._log = log
        self._metadata = metadata
        self._asking = Asking(metadata, connections)
        self._rng = rng
        self._views: dict[StreamId, View] = {}
        self._adopted: pb.Log | None = None  # what the views were taken from
        self._looking: dict[StreamId, asyncio.Task[None]] = {}
        self._closed = False

    async def close(self) -> None:
        """Whoever tries again is told."""
        self._closed = True
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def view(self, stream: StreamId) -> View:
        """The newest that is known. SegmentGoneError: the log has no such stream any more."""
        if self._log.current is not self._adopted:
            self._adopt(self._log.current)
        found = self._views.get(stream)
        if found is None:
            name = self._log.name
            raise SegmentGoneError(f"the segment of stream {stream} of log {name!r} was trimmed")
        return found

    def _adopt(self, log: pb.Log | None) -> None:
        self._adopted = log
        known, self._views = self._views, {}
        for stream in log.streams if log is not None else ():
            if stream.HasField("projection"):
                described = codec.projection_from_wire(stream.projection)
                view = View(stream.log_stream_id, *described)
                before = known.get(view.stream)
                if before is not None and before.epoch > view.epoch:
                    view = before
                self._asking.interrupt(view.stream, view.epoch)
                self._views[view.stream] = view

    async def learn(self, stream: StreamId) -> View:
        """The same, for who may be the first to ask for it."""
        await self._log.get()
        try:
            return self.view(stream)
        except SegmentGoneError:
            await self._log.refresh()
            return self.view(stream)

    # ---- operations

    async def run(self, view: View, steps: Steps[Outcome]) -> Outcome:
        """Drive an operation to its end."""
        end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        drive = Drive(partial(self.ask, view), steps, partial(_tell, end))
        drive.start()
        try:
            return await end
        finally:
            drive.cancel()

    def ask(self, view: View, ask: Ask, answered: Answered, *, wait_ms: int = 0) -> Question:
        """`wait_ms`: so long a Fetch may wait for something to be there."""
        target, request = ask
        if isinstance(target, Service):
            return SequencerQuestion(self._asking, view.loglet, request, answered)
        return ReplicaQuestion(self._asking, view, target, request, answered, wait_ms)

    async def ask_sequencer(self, view: View, request: Request) -> Answer:
        return await self._wait_for(view, Ask(Service.SEQUENCER, request))

    async def ask_replica(
        self, view: View, replica: Replica, request: Request, *, wait_ms: int = 0
    ) -> Answer:
        return await self._wait_for(view, Ask(replica, request), wait_ms)

    async def _wait_for(self, view: View, ask: Ask, wait_ms: int = 0) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        question = self.ask(view, ask, partial(_tell, answer), wait_ms=wait_ms)
        try:
            return await answer
        finally:
            question.cancel()

    # ---- after an interruption

    async def recover(self, view: View, interrupted: Interrupted, attempts: int) -> View:
        """The newest projection. If none is newer, after a pause: then try again."""
        self._check_open()
        newest = self.view(view.stream)
        if newest.epoch <= view.epoch:
            await self._look_together(view, wait=interrupted.epoch > view.epoch)
            newest = self.view(view.stream)
        if newest.epoch <= view.epoch:
            await asyncio.sleep(backoff.delay_s(attempts, self._rng))
        return newest

    async def _look_together(self, view: View, *, wait: bool) -> None:
        looking = self._looking.get(view.stream)
        if looking is None:
            looking = asyncio.get_running_loop().create_task(self._look(view, wait))
            self._looking[view.stream] = looking
            looking.add_done_callback(lambda done: self._looked(view.stream, done))
        ended, _ = await asyncio.wait({looking}, timeout=None if wait else LOOK_S)
        self._check_open()
        if ended:
            looking.result()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this client was closed")

    def _looked(self, stream: StreamId, looking: asyncio.Task[None]) -> None:
        del self._looking[stream]
        if not looking.cancelled():
            looking.exception()  # whoever waited was told

    async def _look(self, view: View, wait: bool) -> None:
        """Ask for the newest projection; `wait`: a newer one has begun, or is about to. If a node
        is missed that may be so, too: what else is asked of it is interrupted then."""
        loop = asyncio.get_running_loop()
        wait = wait or view.stream in self._asking.missed
        deadline_s = loop.time() + (NEWER_S if wait else 0.0)
        attempts = 0
        while True:
            missed = self._asking.missed.pop(view.stream, None)
            if missed is not None:
                await self._report(view, missed)
            with suppress(Retryable):
                await self._log.refresh()
            if self.view(view.stream).epoch > view.epoch or loop.time() >= deadline_s:
                return
            await asyncio.sleep(backoff.delay_s(attempts, self._rng))
            attempts += 1

    async def _report(self, view: View, node_id: NodeId) -> None:
        report = pb.ReportChain(loglet_id=view.loglet, epoch=view.epoch, storage_node_id=node_id)
        try:
            await self._metadata.request(pb.Frame(report_chain=report), timeout_s=REPORT_S)
        except (Retryable, NotFound):
            pass  # it is heard from elsewhere, or it takes longer


T = TypeVar("T")


def _tell(waiting: asyncio.Future[T], result: T | Exception) -> None:
    if waiting.done():
        return
    if isinstance(result, Exception):
        waiting.set_exception(result)
    else:
        waiting.set_result(result)
