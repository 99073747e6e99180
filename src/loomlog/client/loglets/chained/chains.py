"""The chains of one log: drives operations over connections and tracks the current projection.

Projections come with the log's metadata. After an interruption, all operations affected share one
request to the metadata repository, which also reports nodes that do not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple

from loomlog.client.context import BACKOFF, Client, Retries
from loomlog.client.loglets.chained.requests import (
    Answered,
    PendingRequest,
    ReplicaRequest,
    SequencerRequest,
)
from loomlog.client.loglets.views import SegmentViews
from loomlog.client.servers import CachedLog
from loomlog.core.chained.chain import Projection, Replica
from loomlog.core.chained.messages import (
    Answer,
    ChainedAsk,
    InForce,
    Interrupted,
    Renew,
    Request,
    Steps,
)
from loomlog.core.requests import Ask, Lost, Outcome, Service
from loomlog.errors import NotFound, Retryable, Unavailable
from loomlog.types import NodeId, StreamId
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb

TICK_S: Final = 0.1  # the precision of timeouts: a timer for each request would cost too much
REPORT_S: Final = 1.0  # for the metadata repository to accept a report and start a new epoch
NEWER_S: Final = 4.0  # how long to wait for a newer epoch before asking again
LOOK_S: Final = 0.2  # the same for an operation that may continue in the old epoch

_NONE_YET: Final = Lost()


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
        self.metadata = client.metadata
        self.connections = client.connections
        self.missed: dict[StreamId, NodeId] = {}  # a node that did not answer
        self._rng = client.rng
        self._pending: dict[ReplicaRequest, bool] = {}  # all True, in the order of sending
        self._ticker: asyncio.TimerHandle | None = None
        self._looking: dict[StreamId, asyncio.Task[None]] = {}
        self._closed = False

    async def close(self) -> None:
        """Fail operations that wait for a newer projection."""
        self._closed = True
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _view_of(self, stream: pb.LogStream) -> ChainView | None:
        if not stream.HasField("projection"):
            return None
        view = ChainView(stream.log_stream_id, *codec.projection_from_wire(stream.projection))
        self._interrupt(view.stream, view.epoch)
        return view

    def _interrupt(self, stream: StreamId, epoch: int) -> None:
        """Give up requests of older epochs."""
        for request in list(self._pending):
            if request.view.stream == stream and request.view.epoch < epoch:
                # Deferred: the operation then asks for the view that is being adopted now.
                asyncio.get_running_loop().call_soon(request.give_up)

    # ---- operations

    async def run(self, view: ChainView, steps: Steps[Outcome]) -> Outcome:
        """Drive an operation to its end, starting in this view."""
        end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        drive = Drive(self, view, steps, partial(_resolve, end))
        drive.start()
        try:
            return await end
        finally:
            drive.cancel()

    def ask(
        self, view: ChainView, ask: ChainedAsk, answered: Answered, *, wait_ms: int = 0
    ) -> PendingRequest:
        """Send a request; `wait_ms` is how long a Fetch may wait for blocks."""
        target, request = ask
        if isinstance(target, Service):
            return SequencerRequest(self, view, request, answered)
        return ReplicaRequest(self, view, target, request, answered, wait_ms)

    async def ask_replica(
        self, view: ChainView, replica: Replica, request: Request, *, wait_ms: int = 0
    ) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answered = partial(_resolve, answer)
        pending = self.ask(view, Ask(replica, request), answered, wait_ms=wait_ms)
        try:
            return await answer
        finally:
            pending.cancel()

    # ---- requests without an answer

    def expect(self, request: ReplicaRequest) -> None:
        """Give up the request if it has no answer when it is due."""
        self._pending[request] = True
        if self._ticker is None:
            self._tick()

    def forget(self, request: ReplicaRequest) -> bool:
        """Wait for its answer no longer; return whether it had none yet."""
        return self._pending.pop(request, False)

    def _tick(self) -> None:
        self._ticker = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for request in [pending for pending in self._pending if pending.due_s <= now_s]:
            request.time_is_over()
        if self._pending and self._ticker is None:
            self._ticker = loop.call_later(TICK_S, self._tick)

    # ---- after an interruption

    def renew(
        self, view: ChainView, request: Renew, renewed: Callable[[ChainView | Exception], None]
    ) -> asyncio.Task[None]:
        """Call `renewed` with the newest view; after a pause if it is not newer than `view`."""

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
        wait = wait or view.stream in self.missed
        retries = Retries(self._rng, NEWER_S if wait else 0.0)
        while True:
            missed = self.missed.pop(view.stream, None)
            if missed is not None:
                await self._report(view, missed)
            with suppress(Retryable):
                await self.log.refresh()
            if self.view(view.stream).epoch > view.epoch or not await retries.pause():
                return

    async def _report(self, view: ChainView, node_id: NodeId) -> None:
        loglet = view.projection.log_id
        report = pb.ReportChain(loglet_id=loglet, epoch=view.epoch, storage_node_id=node_id)
        try:
            await self.metadata.request(pb.Frame(report_chain=report), timeout_s=REPORT_S)
        except (Retryable, NotFound):
            pass  # another client reports it, or it takes longer


class Drive(Generic[Outcome]):
    """Drives an operation of core/chained without a task: the last answer of a step sends the
    requests of the next one. Only the search for a newer view is a task."""

    __slots__ = (
        "_answers",
        "_chains",
        "_ended",
        "_missing",
        "_renewing",
        "_requests",
        "_steps",
        "_view",
    )

    def __init__(
        self,
        chains: Chains,
        view: ChainView,
        steps: Steps[Outcome],
        ended: Callable[[Outcome | Exception], None],
        renewing: Callable[[], None] | None = None,
    ) -> None:
        """`ended` is called with the outcome or an exception, `renewing` before a newer view is
        searched."""
        self._chains = chains
        self._view = view
        self._steps = steps
        self._ended = ended
        self._renewing = renewing
        self._requests: Sequence[PendingRequest | asyncio.Task[None]] = ()  # of the current step
        self._answers: list[Answer] = []
        self._missing = 0  # the number of answers outstanding

    def start(self) -> None:
        self._step(None)

    def cancel(self) -> None:
        """Stop; do nothing if it has ended."""
        self._steps.close()
        for request in self._requests:
            request.cancel()

    def _step(self, answers: list[Answer] | None) -> None:
        try:
            # The first step takes no answers, which Generator cannot say.
            asks = self._steps.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            self._end(end.value)
            return
        except Exception as error:
            self._end(error)
            return
        # A request may fail before `ask` returns, and begin the next step.
        requests: list[PendingRequest | asyncio.Task[None]] = []
        self._requests = requests
        if len(asks) > 1:
            self._missing = len(asks)
            self._answers = [_NONE_YET] * len(asks)
            for index, ask in enumerate(asks):
                answered = partial(self._one_answered, index)
                requests.append(self._chains.ask(self._view, ask, answered))
        elif isinstance(renew := asks[0].request, Renew):
            if self._renewing is not None:
                self._renewing()
            requests.append(self._chains.renew(self._view, renew, self._renewed))
        else:
            requests.append(self._chains.ask(self._view, asks[0], self._answered))

    def _answered(self, answer: Answer | Exception) -> None:
        if isinstance(answer, Exception):
            self._steps.close()
            self._end(answer)
        else:
            self._step([answer])

    def _one_answered(self, index: int, answer: Answer | Exception) -> None:
        if isinstance(answer, Exception):
            self.cancel()
            self._end(answer)
            return
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing:
            self._step(self._answers)

    def _renewed(self, view: ChainView | Exception) -> None:
        if isinstance(view, Exception):
            self._end(view)
        else:
            self._view = view
            self._step([InForce(view.projection)])

    def _end(self, end: Outcome | Exception) -> None:
        self._requests = ()
        ended, self._ended = self._ended, _ignore  # breaks the reference cycle with its maker
        ended(end)


def _ignore(end: object) -> None:
    pass


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    """Give a future its result, or the exception that took its place."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
