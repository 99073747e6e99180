"""The chains of one log: tracks the current projections, in which operations are driven.

Projections come with the log's metadata. After an interruption, all operations affected share one
request to the metadata repository, which also reports nodes that do not answer.

Later blocks report acknowledged blocks to the replicas; if none follow, a request does. If replicas
have forgotten such blocks, the client informs the metadata repository. It retries until this is
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from loomlog.client.cached_log import CachedLog
from loomlog.client.context import BACKOFF, Client, Retries
from loomlog.client.loglets.chained.requests import (
    ANSWER_S,
    ChainRequests,
    Drive,
    ReplicaRequest,
    resolve,
)
from loomlog.client.loglets.views import SegmentGoneError, SegmentViews
from loomlog.core.backoff import Backoff
from loomlog.core.chained.append import ChainKey, UnreportedBlocks
from loomlog.core.chained.chain import Chain, Projection
from loomlog.core.chained.messages import (
    Acknowledge,
    Done,
    EpochOver,
    Interrupted,
    Missing,
    Renew,
    Steps,
)
from loomlog.core.requests import Outcome
from loomlog.errors import (
    InvalidArgument,
    LoomError,
    NotFound,
    PermissionDenied,
    Retryable,
    Unavailable,
)
from loomlog.types import Glsn, NodeId, StreamId
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb

REPORT_S: Final = 1.0  # for the metadata repository to accept a report and start a new epoch
NEWER_S: Final = 4.0  # how long to wait for a newer epoch before asking again
LOOK_S: Final = 0.2  # the same for an operation that may continue in the old epoch
PROOFS_MAX: Final = 10_000  # of reserved positions; without one, another is reserved
TELL_S: Final = 0.5  # until blocks are reported as acknowledged; at most twice as long
TELL_AGAIN: Final = Backoff(0.1, 5.0)
TELLING_MAX: Final = 1000  # pending reports; older blocks are left out
TELL_LAST_S: Final = 0.3  # for the remaining reports when the client is closed
FORGOTTEN_S: Final = 15.0  # for the metadata repository to record a loss


class ChainView(NamedTuple):
    """The known state of a segment: the location of its blocks in one epoch."""

    stream: StreamId
    projection: Projection
    addresses: Mapping[NodeId, str]

    @property
    def epoch(self) -> int:
        return self.projection.epoch

    @property
    def age(self) -> int:
        return self.epoch


class Chains(SegmentViews[ChainView]):
    """All chained segments of one log."""

    def __init__(self, log: CachedLog, client: Client) -> None:
        super().__init__(log)
        self.requests = ChainRequests(client.metadata, client.connections, self._report_late)
        self._metadata = client.metadata
        self._rng = client.rng
        self._looking: dict[StreamId, asyncio.Task[None]] = {}
        self._reporting: dict[tuple[StreamId, NodeId], asyncio.Task[None]] = {}
        self.proofs: dict[tuple[StreamId, int, Glsn], bytes] = {}  # by epoch and position
        self.unreported = UnreportedBlocks(self._watch)
        self._watching: asyncio.TimerHandle | None = None
        self._telling: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self._closed = False

    async def close(self) -> None:
        """Fail operations that wait for a newer projection. Send the pending reports."""
        if self._watching is not None:
            self._watching.cancel()
        self._tell_soon(self.unreported.take_all())
        if self._telling:
            await asyncio.wait(self._telling, timeout=TELL_LAST_S)
        self._closed = True
        tasks = [*self._looking.values(), *self._reporting.values(), *self._telling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _view_of(self, stream: pb.LogStream) -> ChainView | None:
        if not stream.HasField("projection"):
            return None
        view = ChainView(stream.log_stream_id, *codec.projection_from_wire(stream.projection))
        self.requests.interrupt(view.stream, view.epoch)
        return view

    async def run(self, view: ChainView, steps: Steps[Outcome]) -> Outcome:
        """Drive an operation to its end, starting in this view."""
        end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        drive = Drive(self, view, steps, partial(resolve, end))
        drive.start()
        try:
            return await end
        finally:
            drive.cancel()

    def keep_proof(self, ticket: tuple[StreamId, int, Glsn], proof: bytes) -> None:
        """Remember the proof of a ticket for a block that is written later."""
        self.proofs[ticket] = proof
        if len(self.proofs) > PROOFS_MAX:
            del self.proofs[next(iter(self.proofs))]

    # ---- what was acknowledged

    def _watch(self) -> None:
        if not self._closed:
            self._watching = asyncio.get_running_loop().call_later(TELL_S, self._look_untold)

    def _look_untold(self) -> None:
        self._tell_soon(self.unreported.take_idle())
        if self.unreported:
            self._watch()
        else:
            self.unreported.is_watched = False

    def _tell_soon(self, unreported: Iterable[tuple[ChainKey, tuple[Glsn, ...]]]) -> None:
        for chain, addresses in unreported:
            if len(self._telling) >= TELLING_MAX:
                oldest = next(iter(self._telling))
                del self._telling[oldest]
                oldest.cancel()
            telling = asyncio.get_running_loop().create_task(self._tell(*chain, addresses))
            self._telling[telling] = None
            telling.add_done_callback(lambda done: self._telling.pop(done, None))

    async def _tell(
        self, stream: StreamId, epoch: int, chain: int, addresses: tuple[Glsn, ...]
    ) -> None:
        """Report to all replicas of a chain in force, and inform the metadata repository of blocks
        that they have forgotten; retry until this is done."""
        attempts = 0
        while True:
            try:
                view = self.view(stream)
                if await self._tell_once(view, view.projection.chains[chain], addresses):
                    return
            except (SegmentGoneError, NotFound, InvalidArgument, PermissionDenied):
                return  # it was trimmed, or the request is unknown or not allowed there
            except LoomError:
                pass
            await asyncio.sleep(TELL_AGAIN.delay_s(attempts, self._rng))
            attempts += 1

    async def _tell_once(self, view: ChainView, chain: Chain, addresses: tuple[Glsn, ...]) -> bool:
        request = Acknowledge(view.epoch, addresses)
        asks = (self.requests.ask_replica(view, replica, request) for replica in chain)
        answers = await asyncio.gather(*asks)
        if not all(isinstance(answer, Done | Missing) for answer in answers):
            met = max((a.epoch for a in answers if isinstance(a, EpochOver)), default=0)
            await self.recover(view, Interrupted("", met), 0)
            return False
        if not all(isinstance(answer, Done) for answer in answers):
            loglet = view.projection.log_id
            report = pb.ReportForgotten(loglet_id=loglet, addresses=addresses)
            await self._metadata.request(pb.Frame(report_forgotten=report), timeout_s=FORGOTTEN_S)
        return True

    # ---- late nodes

    def _report_late(self, request: ReplicaRequest) -> None:
        """Report a node while requests still wait for it: a new epoch without it ends them."""
        key = request.view.stream, request.node_id
        if not request.reported and key not in self._reporting:
            reporting = asyncio.get_running_loop().create_task(self._renew_without(*key))
            self._reporting[key] = reporting
            reporting.add_done_callback(lambda done: self._reporting.pop(key))
        request.reported = True

    async def _renew_without(self, stream: StreamId, node: NodeId) -> None:
        with suppress(LoomError):
            await self._report(self.view(stream), node, ANSWER_S)
            await self.log.refresh()
            self.view(stream)  # interrupts requests of older epochs

    # ---- after an interruption

    def renew(
        self, view: ChainView, request: Renew, renewed: Callable[[ChainView | Exception], None]
    ) -> asyncio.Task[None]:
        """Call `renewed` with the newest view, after a pause if it is not newer than `view`."""

        async def look() -> None:
            interrupted = Interrupted("", request.met)
            try:
                newest = await self.recover(view, interrupted, request.attempts)
            except Exception as error:
                renewed(error)
            else:
                renewed(newest)

        return asyncio.get_running_loop().create_task(look())

    async def recover(self, view: ChainView, interrupted: Interrupted, attempts: int) -> ChainView:
        """Return the newest view; pause first if there is none newer than `view`."""
        self._check_open()
        newest = self.view(view.stream)
        if newest.epoch <= view.epoch:
            await self._look_together(view, wait=interrupted.epoch > view.epoch)
            newest = self.view(view.stream)
        if newest.epoch <= view.epoch:
            await asyncio.sleep(BACKOFF.delay_s(attempts, self._rng))
        return newest

    async def _look_together(self, view: ChainView, *, wait: bool) -> None:
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

    async def _look(self, view: ChainView, wait: bool) -> None:
        """Fetch the newest projection. Wait some time for a newer one if `wait` is set, or if a
        node did not answer, since a new epoch interrupts all other requests to that node."""
        wait = wait or view.stream in self.requests.missed
        retries = Retries(self._rng, NEWER_S if wait else 0.0)
        while True:
            missed = self.requests.missed.pop(view.stream, None)
            if missed is not None:
                await self._report(view, missed, REPORT_S)
            with suppress(Retryable):
                await self.log.refresh()
            if self.view(view.stream).epoch > view.epoch or not await retries.pause():
                return

    async def _report(self, view: ChainView, node_id: NodeId, timeout_s: float) -> None:
        loglet = view.projection.log_id
        report = pb.ReportChain(loglet_id=loglet, epoch=view.epoch, storage_node_id=node_id)
        try:
            await self._metadata.request(pb.Frame(report_chain=report), timeout_s=timeout_s)
        except (Retryable, NotFound):
            pass  # another client reports it, or it takes longer
