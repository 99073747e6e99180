"""A client's delivery and a carrier of one protocol, on models of servers, without a cluster.

Nothing happens by itself: every step (a request arrives, an answer arrives, a connection breaks, an
epoch ends, a pause is over, a caller gives up, the client is closed, ...) is a choice, so that a
test can explore all orders. Delivery and the carriers are the real ones; the loop, the connections
and the servers are models, in a world for each protocol: ordered_delivery.py, chained_delivery.py,
copyset_delivery.py.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, TypeAlias, cast

from violation import Violation

from loomlog.client.append.appender import CallerBatch, Producer
from loomlog.client.append.carriers import Carrier, Outcomes
from loomlog.client.append.delivery import Delivery
from loomlog.client.append.stream import SILENT_S, Stream
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.config import ClientSettings
from loomlog.core import delivery as table
from loomlog.core.delivery import AT_ONCE, SETTLED, Rules
from loomlog.errors import AppendUnknown, InvalidArgument, LoomError, NotFound, Unavailable
from loomlog.types import Glsn, Position, StreamId
from loomlog.wire import loomlog_pb2 as pb

DEADLINE_S = 30.0
IN_FLIGHT_MAX = 2
# Functions: an exception that is raised again keeps all that it was raised through before.
REFUSALS: dict[str, Callable[[], LoomError]] = {
    "refuse": lambda: Unavailable("not now"),
    "reject": lambda: InvalidArgument("not such a batch"),
}

Step: TypeAlias = tuple[str, Callable[[], None]]


class Shape(NamedTuple):
    """The bounds of one exploration."""

    batches: int = 1
    streams: int = 1
    cuts: int = 1  # connections that break, or answers that are lost
    refusals: int = 0  # requests that are refused, for now
    rejections: int = 0  # ... or for good
    epochs: int = 1  # epochs of each stream that end
    forgotten: int = 0  # questions about a past epoch that nobody can answer
    cancels: int = 0  # callers that give up
    silences: int = 0  # long waits for an answer
    fills: int = 0  # positions that a reader fills or completes
    ends: int = 0  # segments that end
    trims: int = 0
    twice: bool = False  # batches may be stored twice: with retry="at-once"
    conditional: bool = False  # each batch has to be the first one of the log
    disconnected: bool = False  # the first connection is made only after a while


class Timer:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """An event loop that only collects its work."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Timer] = []
        self.tasks: list[ManualTask] = []  # that wait for something

    def time(self) -> float:
        return self.now_s

    def call_soon(self, run: Callable[..., None], *args: object) -> Timer:
        self.soon.append(Timer(lambda: run(*args)))
        return self.soon[-1]

    def call_later(self, delay_s: float, run: Callable[..., None], *args: object) -> Timer:
        return Timer(lambda: run(*args))

    def create_task(self, work: Coroutine[Any, Any, None]) -> ManualTask:
        task = ManualTask(self, work)
        task.go_on()
        return task


class ManualTask:
    """A coroutine that continues when a test gives it a result."""

    def __init__(self, loop: ManualLoop, work: Coroutine[Any, Any, None]) -> None:
        self.waits_for: Any = None
        self._loop = loop
        self._work = work
        self._running = False

    def go_on(self, result: object = None, error: Exception | None = None) -> None:
        if self in self._loop.tasks:
            self._loop.tasks.remove(self)
        self._running = True
        try:
            self.waits_for = self._work.throw(error) if error else self._work.send(result)
        except StopIteration:
            self.waits_for = None
        else:
            self._loop.tasks.append(self)
        finally:
            self._running = False

    def cancel(self) -> None:
        if not self._running and self in self._loop.tasks:
            self._loop.tasks.remove(self)
            self._work.close()

    def add_done_callback(self, done: Callable[..., object]) -> None:
        """Do nothing: the result is never used."""

    @property
    def print(self) -> object:
        """Return where it is: all that tells how it continues, but for what its objects know."""
        found, at = [], cast(Any, self._work)
        while getattr(at, "cr_frame", None) is not None:
            hops = at.cr_frame.f_locals.get("hops")
            found.append((at.cr_code.co_name, at.cr_frame.f_lasti, hops))
            at = at.cr_await
        return tuple(found)


class DeliveryWorld(ABC):
    """One run. `choices` names what can happen next, `choose` lets it happen."""

    protocol: str
    streams: tuple[StreamId, ...]

    def __init__(self, shape: Shape, rules: Rules) -> None:
        self.shape = shape
        self.left = {
            "cut": shape.cuts,
            "refuse": shape.refusals,
            "reject": shape.rejections,
            "epoch": shape.epochs * shape.streams,
            "forget": shape.forgotten,
            "cancel": shape.cancels,
            "silence": shape.silences,
            "fill": shape.fills,
            "end": shape.ends,
            "trim": shape.trims,
        }
        self.streams = tuple(range(1, shape.streams + 1))
        self.loop = ManualLoop()
        self.visited: set[tuple[table.State, table.Event]] = set()
        self.spins = 0  # batches for which the client does not sleep
        self._released = 0
        self.over = False
        rng = random.Random(1)
        self.client = Client(
            metadata=cast(Any, None),
            connections=self.connections(),
            producer=Producer(rng, lambda: 0.0),
            settings=ClientSettings(
                appends_in_flight_max=IN_FLIGHT_MAX,
                append_timeout_s=DEADLINE_S,
                retry="at-once" if rules is AT_ONCE else "exactly-once",
            ),
            rng=rng,
            loop=cast(asyncio.AbstractEventLoop, self.loop),
            spinning=cast(Any, self),
            subscriptions=cast(Any, None),
        )
        log = cast(CachedLog, type("Named", (), {"name": "events"})())
        self.delivery = Delivery(log, self.client, {self.protocol: self.carrier})
        self.delivery.release = self._release
        self.delivery._rules = Recorded(rules, self.visited)
        self.delivery.refresh_soon = lambda **_: None  # type: ignore[method-assign]
        self.learn()
        self.futures: list[asyncio.Future[Position]] = []
        self.batches: list[CallerBatch] = []
        for index in range(shape.batches):
            self._append(index)
        self._finish_turn()

    def _append(self, index: int) -> None:
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        lane = self.delivery.lanes.any

        def encode(sequence: int, **_: object) -> bytes | bytearray:
            return self.encode(index, sequence)

        batch = CallerBatch(lane, 1, DEADLINE_S, 0, encode, 1, future)
        batch.expected_tail = 0 if self.shape.conditional else None
        self.futures.append(future)
        self.batches.append(batch)
        self.delivery.enqueue(batch)

    def _release(self, size: int) -> None:
        self._released += size

    def began(self) -> None:
        self.spins += 1

    def ended(self) -> None:
        self.spins -= 1

    # ---- of each protocol

    def connections(self) -> Any:
        """Return what the carrier connects through; called before anything else."""
        return None

    @abstractmethod
    def carrier(self, outcomes: Outcomes) -> Carrier: ...

    @abstractmethod
    def encode(self, index: int, sequence: int) -> bytes | bytearray: ...

    @abstractmethod
    def server_steps(self) -> Iterator[Step]:
        """Yield what can happen to requests and servers."""

    @abstractmethod
    def described(self) -> Iterator[pb.LogStream]:
        """Yield the streams as the metadata repository describes them now."""

    @abstractmethod
    def arrive_all(self) -> None:
        """Let all requests in flight arrive at servers; called at the end."""

    def note(self) -> None:  # noqa: B027 - most worlds need not
        """Called after each step: note what is decided now."""

    @abstractmethod
    def stored(self, index: int) -> list[tuple[StreamId, Glsn]]:
        """Return where a batch stands in the log."""

    @abstractmethod
    def server_print(self) -> object:
        """Return what tells the servers, and the attempts, from those of other worlds."""

    # ---- what can happen

    def choices(self) -> list[str]:
        if self.over:
            return []
        return [name for name, _ in self._steps()]

    def choose(self, name: str, *, checked: bool = False) -> None:
        """Let something happen; `checked`: what follows was checked in another world before."""
        for found, step in self._steps():
            if found == name:
                step()
                self._finish_turn()
                self.note()
                if not checked:
                    self.check()
                return
        raise LookupError(name)

    def _finish_turn(self) -> None:
        while self.loop.soon:
            timer = self.loop.soon.pop(0)
            if not timer.cancelled:
                timer.run()

    def _steps(self) -> Iterator[Step]:
        yield from self.server_steps()
        for index, batch in enumerate(self.batches):
            if batch.retry is not None:
                yield f"rested {index}", cast(Timer, batch.retry).run
            if self.left["cancel"] and not self.futures[index].done():
                yield f"cancel {index}", lambda i=index: self._cancel(i)  # type: ignore[misc]
        if self.left["silence"]:
            yield "silence", self._silence
        yield "overdue", self._overdue
        yield "close", self._close
        yield "log gone", self._log_gone
        if self.delivery.lanes.any.queue:
            yield "held", self._hold
        yield "rolled back", self._roll_back

    def spend(self, what: str) -> None:
        self.left[what] -= 1

    def target(self, stream: StreamId) -> Stream:
        return self.delivery._targets._streams[stream]

    # ---- how it happens

    def learn(self, *, held: bool = False, rolled_back: bool = False) -> None:
        """Let the client learn the epochs of the streams."""
        log = pb.Log(segments=[pb.Segment(loglet_id=1, protocol=self.protocol)])
        for stream in self.described():
            stream.loglet_id, stream.protocol = 1, self.protocol
            stream.held, stream.rolled_back = held, rolled_back
            stream.state = pb.STREAM_SEALED if held or rolled_back else pb.RUNNING
            log.streams.append(stream)
        self.delivery._targets.adopt(log)
        self.delivery._streams_learned()

    def _silence(self) -> None:
        self.spend("silence")
        self.loop.now_s += SILENT_S
        self.delivery._tick()

    def _cancel(self, index: int) -> None:
        self.spend("cancel")
        self.futures[index].cancel()

    def _overdue(self) -> None:
        self.loop.now_s += DEADLINE_S
        self.delivery._tick()
        self._end()

    def _close(self) -> None:
        closing = self.delivery.close()
        try:
            closing.send(None)
        except StopIteration:
            pass
        self._end()

    def _log_gone(self) -> None:
        """Fail what is queued or in doubt; what was sent may still be answered."""
        self.delivery._log_gone(NotFound("no such log"))
        for index, batch in enumerate(self.batches):
            if batch.progress.state is table.QUEUED:
                raise Violation(f"batch {index} waits for a log that is gone")
        self._end(all_settled=False)

    def _hold(self) -> None:
        """Let an operator seal the streams: queued batches fail at once."""
        self.learn(held=True)
        self._end(all_settled=False)

    def _roll_back(self) -> None:
        """Let the log lose rounds: batches that are queued or in flight fail at once."""
        self.learn(rolled_back=True)
        for index, batch in enumerate(self.batches):
            if batch.progress.state in (table.QUEUED, table.SENT, table.DOUBTFUL):
                raise Violation(f"batch {index} waits for a log that lost rounds")
        self._end(all_settled=False)

    def _end(self, *, all_settled: bool = True) -> None:
        """End the client; requests in flight may still arrive at servers."""
        self.over = True
        if all_settled and self.delivery._outstanding:
            raise Violation("a batch was left without an outcome")
        if all_settled and self.spins:
            raise Violation("the client spins for nothing")
        self.arrive_all()

    # ---- what must be true

    def check(self) -> None:
        for index, future in enumerate(self.futures):
            stored = self.stored(index)
            if len(stored) > 1 and not self.shape.twice:
                raise Violation(f"batch {index} is stored twice: {stored}")
            if not future.done() or future.cancelled():
                continue
            error = future.exception()
            if error is None:
                place = future.result()
                if (place.stream, place.position) not in stored:
                    raise Violation(f"batch {index} was acknowledged at {place}, is at {stored}")
            elif not isinstance(error, AppendUnknown) and stored:
                raise Violation(f"batch {index} failed, and is stored: {error}")
        if (
            self.shape.conditional
            and sum(bool(self.stored(i)) for i in range(len(self.batches))) > 1
        ):
            raise Violation("two batches are stored, each as the first one")
        self._check_books()

    def _check_books(self) -> None:
        outstanding = [b for b in self.batches if b in self.delivery._outstanding]
        for batch in self.batches:
            if (batch.progress.state is SETTLED) == (batch in outstanding):
                raise Violation("a batch is settled and outstanding, or neither")
        lane = self.delivery.lanes.any
        if lane.under_way != len(outstanding) or self._released != len(self.batches) - len(
            outstanding
        ):
            raise Violation("settled batches are not accounted for")
        for stream in self.streams:
            target = self.target(stream) if self.delivery._targets.known else None
            if target is not None and target.doubtful != sum(a.doubtful for a in target.in_flight):
                raise Violation("doubts are not accounted for")
        if not outstanding and lane.stalled:
            raise Violation("the lane waits for batches that are settled")

    # ---- two worlds that continue alike

    def fingerprint(self) -> object:
        """Return what tells this world from others."""
        return (
            tuple(self.left.values()),
            self.loop.now_s,
            self.over,
            tuple(map(self._batch_print, self.batches)),
            tuple(outcome(future) for future in self.futures),
            tuple(self.batches.index(b) for b in self.delivery.lanes.any.queue),  # type: ignore[arg-type]
            self.server_print(),
        )

    def _batch_print(self, batch: CallerBatch) -> object:
        progress, attempt = batch.progress, batch.attempt
        state = progress.state, bool(progress.loss), bool(progress.attempts), batch.stalled
        return state if attempt is None else (*state, attempt.target.id, attempt.doubtful)


class Recorded(dict[tuple[table.State, table.Event], tuple[table.State, table.Action]]):
    """A table of rules that records which of them were used."""

    def __init__(self, rules: Rules, used: set[tuple[table.State, table.Event]]) -> None:
        super().__init__(rules)
        self._used = used

    def __getitem__(self, key: tuple[table.State, table.Event]) -> tuple[table.State, table.Action]:
        self._used.add(key)
        return super().__getitem__(key)


class Exploration(NamedTuple):
    worlds: int
    used: set[tuple[table.State, table.Event]]
    outcomes: set[tuple[str, ...]]


def explore(make: type[DeliveryWorld], shape: Shape, rules: Rules) -> Exploration:
    """Try every order of everything that can happen. Raise Violation with the steps to it."""
    seen: set[object] = set()
    used: set[tuple[table.State, table.Event]] = set()
    outcomes: set[tuple[str, ...]] = set()
    paths: list[tuple[str, ...]] = [()]
    while paths:
        path = paths.pop()
        world = make(shape, rules)
        try:
            for name in path[:-1]:
                world.choose(name, checked=True)
            for name in path[-1:]:
                world.choose(name)
            while (state := world.fingerprint()) not in seen:
                seen.add(state)
                outcomes.add(tuple(outcome(future) for future in world.futures))
                choices = world.choices()
                if not choices:
                    break
                paths.extend((*path, name) for name in choices[1:])
                path = (*path, choices[0])
                world.choose(choices[0])
        except (Violation, LookupError, AssertionError) as error:
            raise Violation(f"{', '.join(path)}: {error!r}") from error
        finally:
            used |= world.visited
    return Exploration(len(seen), used, outcomes)


def outcome(future: asyncio.Future[Position]) -> str:
    if not future.done():
        return "none"
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return "appended" if error is None else type(error).__name__
