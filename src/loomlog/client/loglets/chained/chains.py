"""The chains of one log: drives operations over connections and tracks the current projection.

Projections come with the log's metadata. After an interruption, all operations affected share one
request to the metadata repository, which also reports nodes that do not answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from loomlog.client.loglets.chained import requests
from loomlog.client.loglets.chained.requests import (
    Answered,
    PendingRequest,
    PendingRequests,
    RenewRequest,
    ReplicaRequest,
    SequencerRequest,
    resolve_future,
)
from loomlog.client.servers.backoff import BACKOFF
from loomlog.client.servers.metadata import CachedLog, Metadata
from loomlog.client.servers.nodes import Connections
from loomlog.core.chained.messages import Answer, ChainedAsk, Renew, Request, Steps
from loomlog.core.chained.outcomes import Interrupted
from loomlog.core.chained.projection import Projection, Replica
from loomlog.core.requests import Ask, Outcome, Service
from loomlog.errors import NotFound, Retryable, Trimmed, Unavailable
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb

REPORT_S: Final = 1.0  # for the metadata repository to accept a report and start a new epoch
NEWER_S: Final = 4.0  # how long to wait for a newer epoch before asking again
LOOK_S: Final = 0.2  # the same for an operation that may continue in the old epoch


class SegmentGoneError(Trimmed):
    """The segment was trimmed, or the log never had it."""


class View(NamedTuple):
    """The known state of a segment: the location of its blocks in one epoch."""

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
    """All chained segments of one log."""

    def __init__(
        self, log: CachedLog, metadata: Metadata, connections: Connections, rng: random.Random
    ) -> None:
        self._log = log
        self._metadata = metadata
        self._pending = PendingRequests(metadata, connections)
        self._rng = rng
        self._views: dict[StreamId, View] = {}
        self._adopted: pb.Log | None = None  # the metadata that the views were made of
        self._looking: dict[StreamId, asyncio.Task[None]] = {}
        self._closed = False

    async def close(self) -> None:
        """Fail operations that wait for a newer projection."""
        self._closed = True
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def view(self, stream: StreamId) -> View:
        """Return the newest known view; raise SegmentGoneError if there is no such stream. While
        the log is not known, because the metadata repository refused to describe it, the views
        stay as they were: that is no proof of a trim."""
        log = self._log.last_known
        if log is not None and log is not self._adopted:
            self._adopt(log)
        found = self._views.get(stream)
        if found is None:
            name = self._log.name
            if log is None:
                raise Unavailable(f"the segments of log {name!r} are not known now: try again")
            raise SegmentGoneError(f"the segment of stream {stream} of log {name!r} was trimmed")
        return found

    def _adopt(self, log: pb.Log) -> None:
        self._adopted = log
        known, self._views = self._views, {}
        for stream in log.streams:
            if stream.HasField("projection"):
                described = codec.projection_from_wire(stream.projection)
                view = View(stream.log_stream_id, *described)
                before = known.get(view.stream)
                if before is not None and before.epoch > view.epoch:
                    view = before
                self._pending.interrupt(view.stream, view.epoch)
                self._views[view.stream] = view

    async def learn(self, stream: StreamId) -> View:
        """Return the view of a stream, fetching the log's metadata if it is not known."""
        await self._log.cached()
        try:
            return self.view(stream)
        except SegmentGoneError:
            await self._log.fetch()  # a new request, not one already under way
            return self.view(stream)

    # ---- operations

    async def run(self, view: View, steps: Steps[Outcome]) -> Outcome:
        """Drive an operation to its end, starting in this view."""
        return await requests.run(LatestView(self, view).ask, steps)

    def ask(
        self, view: View, ask: ChainedAsk, answered: Answered, *, wait_ms: int = 0
    ) -> PendingRequest:
        """Send a request; `wait_ms` is how long a Fetch may wait for blocks."""
        target, request = ask
        if isinstance(target, Service):
            return SequencerRequest(self._pending, view.loglet, request, answered)
        return ReplicaRequest(self._pending, view, target, request, answered, wait_ms)

    async def ask_sequencer(self, view: View, request: Request) -> Answer:
        return await self._wait_for(view, Ask(Service.SEQUENCER, request))

    async def ask_replica(
        self, view: View, replica: Replica, request: Request, *, wait_ms: int = 0
    ) -> Answer:
        return await self._wait_for(view, Ask(replica, request), wait_ms)

    async def _wait_for(self, view: View, ask: ChainedAsk, wait_ms: int = 0) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        request = self.ask(view, ask, partial(resolve_future, answer), wait_ms=wait_ms)
        try:
            return await answer
        finally:
            request.cancel()

    # ---- after an interruption

    async def recover(self, view: View, interrupted: Interrupted, attempts: int) -> View:
        """Return the newest view; pause first if there is none newer than `view`."""
        self._check_open()
        newest = self.view(view.stream)
        if newest.epoch <= view.epoch:
            await self._look_together(view, wait=interrupted.epoch > view.epoch)
            newest = self.view(view.stream)
        if newest.epoch <= view.epoch:
            await asyncio.sleep(BACKOFF.delay_s(attempts, self._rng))
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
            looking.exception()  # marks it as retrieved: callers that waited got it

    async def _look(self, view: View, wait: bool) -> None:
        """Fetch the newest projection. Wait some time for a newer one if `wait` is set, or if a
        node did not answer, since a new epoch interrupts all other requests to that node."""
        loop = asyncio.get_running_loop()
        wait = wait or view.stream in self._pending.missed
        deadline_s = loop.time() + (NEWER_S if wait else 0.0)
        attempts = 0
        while True:
            missed = self._pending.missed.pop(view.stream, None)
            if missed is not None:
                await self._report(view, missed)
            with suppress(Retryable):
                await self._log.refresh()
            if self.view(view.stream).epoch > view.epoch or loop.time() >= deadline_s:
                return
            await asyncio.sleep(BACKOFF.delay_s(attempts, self._rng))
            attempts += 1

    async def _report(self, view: View, node_id: NodeId) -> None:
        report = pb.ReportChain(loglet_id=view.loglet, epoch=view.epoch, storage_node_id=node_id)
        try:
            await self._metadata.request(pb.Frame(report_chain=report), timeout_s=REPORT_S)
        except (Retryable, NotFound):
            pass  # another client reports it, or it takes longer


class LatestView:
    """The view in which an operation sends its requests; Renew replaces it by a newer one."""

    __slots__ = ("_chains", "_view")

    def __init__(self, chains: Chains, view: View) -> None:
        self._chains = chains
        self._view = view

    def ask(self, ask: ChainedAsk, answered: Answered) -> PendingRequest:
        if isinstance(ask.request, Renew):
            return RenewRequest(partial(self.renew, ask.request), answered)
        return self._chains.ask(self._view, ask, answered)

    async def renew(self, request: Renew) -> Projection:
        interrupted = Interrupted("", request.met)
        self._view = await self._chains.recover(self._view, interrupted, request.attempts)
        return self._view.projection
