"""A client's delivery, its `ordered` carrier and a model of the servers, without a cluster.

Nothing happens by itself: every step (a request arrives, an answer arrives, a connection breaks, an
epoch ends, a pause is over, a caller gives up, the client is closed, ...) is a choice, so that a
test can explore all orders. Delivery, OrderedCarrier and the rules of its Resolver are the real
ones; the loop, the connections and the streams are models.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from typing import Any, NamedTuple, cast

from loomlog.client.append.appender import CallerBatch, Producer
from loomlog.client.append.delivery import SILENT_S, Delivery, Stream
from loomlog.client.context import Client
from loomlog.client.loglets.ordered.carrier import OrderedAttempt, OrderedCarrier
from loomlog.client.loglets.ordered.resolver import Resolver
from loomlog.client.servers import CachedLog, Connections
from loomlog.config import ClientSettings
from loomlog.core import delivery as table
from loomlog.core.delivery import SETTLED, Rules
from loomlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LoomError,
    NotFound,
    Sealed,
    Unavailable,
)
from loomlog.protocol_names import ORDERED
from loomlog.types import Position
from loomlog.wire import loomlog_pb2 as pb

DEADLINE_S = 30.0
IN_FLIGHT_MAX = 2
NOTHING = memoryview(b"")
REFUSALS = {"refuse": Unavailable("not now"), "reject": InvalidArgument("not such a batch")}


class Violation(AssertionError):  # noqa: N818
    """Something happened that delivery must prevent."""


class Shape(NamedTuple):
    """How much may happen in one exploration."""

    batches: int = 1
    streams: int = 1
    cuts: int = 1  # connections that break
    refusals: int = 0  # requests that a stream refuses, for now
    rejections: int = 0  # ... or for good
    epochs: int = 1  # epochs of each stream that end
    forgotten: int = 0  # questions about a past epoch that no replica can answer
    cancels: int = 0  # callers that give up
    silences: int = 0  # long waits for an answer
    twice: bool = False  # batches may be stored twice: with retry="at-once"
    disconnected: bool = False  # the first connection is made only after a while


class Sent(NamedTuple):
    batch: int
    sequence: int
    epoch: int


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
        self.soon: list[Callable[[], None]] = []
        self.connecting: list[Coroutine[Any, Any, None]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, run: Callable[..., None], *args: object) -> None:
        self.soon.append(lambda: run(*args))

    def call_later(self, delay_s: float, run: Callable[..., None], *args: object) -> Timer:
        return Timer(lambda: run(*args))

    def create_task(self, work: Coroutine[Any, Any, None]) -> ManualTask:
        self.connecting.append(work)
        work.send(None)
        return ManualTask()


class ManualTask:
    def add_done_callback(self, done: Callable[..., object]) -> None:
        """Do nothing: the result is never used."""


class Pause:
    def __await__(self) -> Generator[None]:
        yield


class ModelConnection:
    """Takes requests to a stream, and answers back. When it breaks, answers are lost; requests may
    still arrive, or not."""

    congested = False

    def __init__(self, stream: ModelStream) -> None:
        self.stream = stream
        self.peer = stream.address
        self.closed = False
        self.requests: list[tuple[int, Sent]] = []  # on their way
        self.answers: list[tuple[int, pb.Frame | LoomError]] = []  # on their way
        self.open: dict[int, Callable[..., None]] = {}
        self._last_id = 0

    def call(self, frame: pb.Frame, payload: tuple[bytes], on_reply: Callable[..., None]) -> int:
        self._last_id += 1
        batch, sequence = map(int, payload[0].split())
        self.requests.append((self._last_id, Sent(batch, sequence, frame.append.seal_epoch)))
        self.open[self._last_id] = on_reply
        return self._last_id

    def forget(self, request_id: int) -> None:
        self.open.pop(request_id, None)

    async def drain(self) -> None:
        pass

    def answer(self, request_id: int, answer: pb.Frame | LoomError) -> None:
        if not self.closed:
            self.answers.append((request_id, answer))

    def deliver_answer(self) -> None:
        request_id, answer = self.answers.pop(0)
        on_reply = self.open.pop(request_id, None)
        if on_reply is not None:
            on_reply(answer, NOTHING)

    def cut(self) -> None:
        self.closed = True
        self.answers.clear()
        waiting, self.open = self.open, {}
        for on_reply in waiting.values():
            on_reply(Unavailable("the connection was lost"), NOTHING)


class ModelStream:
    """Takes batches, recognises repeats, commits, and drops what was not committed when its epoch
    ends; as node/ordered/ does."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"node-{number}"
        self.epoch = 1
        self.taken: list[tuple[Sent, ModelConnection, int]] = []  # and who waits for the answer
        self.stored: list[Sent] = []
        self.connections = [ModelConnection(self)]

    def arrive(self, connection: ModelConnection) -> None:
        request_id, sent = connection.requests.pop(0)
        if sent.epoch != self.epoch:
            connection.answer(request_id, Sealed("another epoch"))
        elif sent in self.stored:
            self._acknowledge(sent, connection, request_id)
        elif any(sent == taken for taken, _, _ in self.taken):
            self.taken.append((sent, connection, request_id))
        elif sent.sequence <= self._dropped():
            if not connection.closed:
                raise Violation(f"{sent} is too old for its stream to tell what became of it")
        else:
            self.taken.append((sent, connection, request_id))

    def _dropped(self) -> int:
        """Return the highest number that is forgotten: as many are known as may be under way."""
        taken = dict.fromkeys(sent for sent, _, _ in self.taken)
        known = [sent.sequence for sent in (*self.stored, *taken)]
        return max(known[:-IN_FLIGHT_MAX], default=0)

    def commit(self) -> None:
        first = self.taken[0][0]
        self.stored.append(first)
        waiting = [taken for taken in self.taken if taken[0] == first]
        self.taken = [taken for taken in self.taken if taken[0] != first]
        for sent, connection, request_id in waiting:
            self._acknowledge(sent, connection, request_id)

    def _acknowledge(self, sent: Sent, connection: ModelConnection, request_id: int) -> None:
        position = self.stored.index(sent) + 1
        place = pb.Appended(first_glsn=position, first_llsn=position)
        connection.answer(request_id, pb.Frame(appended=place))

    def end_epoch(self) -> None:
        for _, connection, request_id in self.taken:
            connection.answer(request_id, Sealed("the epoch is over"))
        self.taken.clear()
        self.epoch += 1


class ModelConnections:
    def __init__(self, streams: list[ModelStream], disconnected: bool) -> None:
        self._streams = {stream.address: stream for stream in streams}
        self._down = disconnected  # until somebody connects

    def get(self, address: str) -> ModelConnection | None:
        return None if self._down else self._newest(address)

    async def connect(self, address: str) -> ModelConnection:
        await Pause()
        self._down = False
        return self._newest(address)

    def _newest(self, address: str) -> ModelConnection:
        stream = self._streams[address]
        if stream.connections[-1].closed:
            stream.connections.append(ModelConnection(stream))
        return stream.connections[-1]


class DeliveryWorld:
    """One run. `choices` names what can happen next, `choose` lets it happen."""

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
        }
        self.streams = [ModelStream(number) for number in range(1, shape.streams + 1)]
        self.loop = ManualLoop()
        self.visited: set[tuple[table.State, table.Event]] = set()
        self._released = 0
        self._refused: set[int] = set()  # batches
        self.over = False
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        rng = random.Random(1)
        self.producer = Producer(rng, lambda: 0.0)
        client = Client(
            metadata=cast(Any, None),
            connections=cast(Connections, ModelConnections(self.streams, shape.disconnected)),
            producer=self.producer,
            settings=ClientSettings(
                appends_in_flight_max=IN_FLIGHT_MAX, append_timeout_s=DEADLINE_S
            ),
            rng=rng,
            loop=loop,
            spinning=cast(Any, None),
            subscriptions=cast(Any, None),
        )
        self.carriers: list[ModelCarrier] = []

        def make(outcomes: Any) -> ModelCarrier:
            self.carriers.append(ModelCarrier(client, outcomes))
            return self.carriers[-1]

        log = cast(CachedLog, type("Named", (), {"name": "events"})())
        self.delivery = Delivery(log, client, {ORDERED: make})
        self.delivery.release = self._release
        self.delivery._rules = Recorded(rules, self.visited)
        self.delivery.refresh_soon = lambda **_: None  # type: ignore[method-assign]
        self.learn()
        self.futures: list[asyncio.Future[Position]] = []
        self.batches: list[CallerBatch] = []
        for index in range(shape.batches):
            self._append(index)

    def _append(self, index: int) -> None:
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        lane = self.delivery.lanes.any

        def encode(sequence: int, **_: object) -> bytes:
            return b"%d %d" % (index, sequence)

        batch = CallerBatch(lane, 1, DEADLINE_S, 0, encode, 1, future)
        self.futures.append(future)
        self.batches.append(batch)
        self.delivery.enqueue(batch)

    def _release(self, size: int) -> None:
        self._released += size

    # ---- what can happen

    def choices(self) -> list[str]:
        if self.over:
            return []
        return [name for name, _ in self._steps()]

    def choose(self, name: str) -> None:
        for found, step in self._steps():
            if found == name:
                step()
                self._finish_turn()
                self.check()
                return
        raise LookupError(name)

    def _finish_turn(self) -> None:
        while self.loop.soon:
            self.loop.soon.pop(0)()

    def _steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for stream in self.streams:
            yield from self._steps_of(stream)
        for index, batch in enumerate(self.batches):
            if batch.retry is not None:
                yield f"rested {index}", cast(Timer, batch.retry).run
            if self.left["cancel"] and not self.futures[index].done():
                yield f"cancel {index}", lambda i=index: self._cancel(i)  # type: ignore[misc]
        for index, work in enumerate(self.loop.connecting):
            yield f"connected {index}", lambda w=work: self._connect(w)  # type: ignore[misc]
            for how in REFUSALS:
                if self.left[how]:
                    yield f"{how} {index}", lambda h=how, w=work: self._connect(w, h)  # type: ignore[misc]
        if self.left["silence"]:
            yield "silence", self._silence
        yield "overdue", self._overdue
        yield "close", self._close
        yield "log gone", self._log_gone
        if self.delivery.lanes.any.queue:
            yield "held", self._hold
        yield "rolled back", self._roll_back

    def _steps_of(self, stream: ModelStream) -> Iterator[tuple[str, Callable[[], None]]]:
        number = stream.number
        for index, connection in enumerate(stream.connections):
            name = f"{number}.{index}"
            if connection.requests:
                yield f"arrive {name}", lambda c=connection: stream.arrive(c)  # type: ignore[misc]
                for how in ("refuse", "reject"):
                    if self.left[how] and not connection.closed:
                        yield f"{how} {name}", lambda h=how, c=connection: self._refuse(h, c)  # type: ignore[misc]
            if connection.answers:
                yield f"answer {name}", connection.deliver_answer
            if not connection.closed and self.left["cut"]:
                yield f"cut {name}", lambda c=connection: self._cut(c)  # type: ignore[misc]
        if stream.taken:
            yield f"commit {number}", stream.commit
        if self.left["epoch"] and stream.epoch <= self.shape.epochs:
            yield f"epoch {number}", lambda: self._end_epoch(stream)
        target = self.target(stream)
        if target.epoch != stream.epoch:
            yield f"learn {number}", self.learn
        resolver = self.carriers[0].resolver_of(target)
        if resolver is not None:
            if resolver._of_past_epochs():
                yield f"ask {number}", lambda: self._ask(stream, resolver)
                if self.left["forget"]:
                    yield f"forget {number}", lambda: self._forget(resolver)
            elif any(resolver._unasked(attempt) for attempt in resolver._attempts()):
                yield f"repeat {number}", lambda: self._repeat(stream, resolver)

    def target(self, stream: ModelStream) -> Stream:
        return self.delivery._targets._streams[stream.number]

    # ---- how it happens

    def learn(self, *, held: bool = False, rolled_back: bool = False) -> None:
        """Let the client learn the epochs of the streams."""
        log = pb.Log(segments=[pb.Segment(loglet_id=1, protocol=ORDERED)])
        for stream in self.streams:
            log.streams.add(
                log_stream_id=stream.number,
                loglet_id=1,
                protocol=ORDERED,
                seal_epoch=stream.epoch,
                state=pb.SEALED if held or rolled_back else pb.RUNNING,
                held=held,
                rolled_back=rolled_back,
                replicas=[pb.Replica(address=stream.address)],
            )
        self.delivery._targets.adopt(log)
        self.delivery._streams_learned()

    def _refuse(self, how: str, connection: ModelConnection) -> None:
        self.left[how] -= 1
        request_id, sent = connection.requests.pop(0)
        self._refused.add(sent.batch)
        connection.answer(request_id, REFUSALS[how])

    def _cut(self, connection: ModelConnection) -> None:
        self.left["cut"] -= 1
        connection.cut()

    def _end_epoch(self, stream: ModelStream) -> None:
        self.left["epoch"] -= 1
        stream.end_epoch()

    def _ask(self, stream: ModelStream, resolver: Resolver) -> None:
        """Let a replica answer for the outcome of batches of an ended epoch."""
        for attempt in resolver._of_past_epochs():
            stored = [
                position
                for position, sent in enumerate(stream.stored, 1)
                if (sent.sequence, sent.epoch) == (attempt.sequence, attempt.epoch)
            ]
            if stored:
                self.delivery.appended(attempt, stored[0], stored[0])
            else:
                self.delivery.absent(attempt)

    def _forget(self, resolver: Resolver) -> None:
        self.left["forget"] -= 1
        for attempt in resolver._of_past_epochs():
            self.delivery.unknown(attempt, AppendUnknown("it is forgotten"))

    def _silence(self) -> None:
        self.left["silence"] -= 1
        self.loop.now_s += SILENT_S
        self.delivery._tick()

    def _repeat(self, stream: ModelStream, resolver: Resolver) -> None:
        connection = self.carriers[0].connections.get(stream.address)
        assert connection is not None
        for attempt in resolver._attempts():
            if resolver._unasked(attempt):
                attempt.transmit(connection)

    def _cancel(self, index: int) -> None:
        self.left["cancel"] -= 1
        self.futures[index].cancel()

    def _connect(self, work: Coroutine[Any, Any, None], failure: str = "") -> None:
        self.loop.connecting.remove(work)
        try:
            if failure:
                self.left[failure] -= 1
                work.throw(REFUSALS[failure])
            else:
                work.send(None)
        except StopIteration:
            return
        raise Violation("an attempt waits for more than its connection")

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
        for stream in self.streams:
            for connection in stream.connections:
                while connection.requests:
                    stream.arrive(connection)
            while stream.taken:
                stream.commit()

    # ---- what must be true

    def stored(self, index: int) -> list[tuple[int, int]]:
        return [
            (stream.number, position)
            for stream in self.streams
            for position, sent in enumerate(stream.stored, 1)
            if sent.batch == index
        ]

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
        self._check_order()
        self._check_books()

    def _check_order(self) -> None:
        """Check that batches that were never refused are in the order of their lane."""
        once = [i for i, batch in enumerate(self.batches) if not batch.progress.attempts]
        once = [index for index in once if index not in self._refused]
        for stream in self.streams:
            order = [sent.batch for sent in stream.stored if sent.batch in once]
            if order != sorted(order):
                raise Violation(f"batches are stored in the order {order}")

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

    # ---- two worlds that go on alike

    def fingerprint(self) -> object:
        """Return what tells this world from others. Numbers that only grow count by their order."""
        rank = {sequence: index for index, sequence in enumerate(sorted(self._sequences()))}
        return (
            tuple(self.left.values()),
            tuple(sorted(self._refused)),
            self.loop.now_s,
            self.over,
            tuple(self._batch_print(batch, rank) for batch in self.batches),
            tuple(outcome(future) for future in self.futures),
            tuple(self.batches.index(b) for b in self.delivery.lanes.any.queue),  # type: ignore[arg-type]
            len(self.loop.connecting),
            tuple(self._stream_print(stream, rank) for stream in self.streams),
        )

    def _stream_print(self, stream: ModelStream, rank: Mapping[int, int]) -> object:
        def plain(sent: Sent) -> tuple[int, int, int]:
            return sent.batch, rank[sent.sequence], sent.epoch

        ids: dict[tuple[int, int], int] = {}
        for index, connection in enumerate(stream.connections):
            known = {i for i, _ in connection.requests} | {i for i, _ in connection.answers}
            known |= {i for _, c, i in stream.taken if c is connection} | set(connection.open)
            ids |= {(index, known_id): order for order, known_id in enumerate(sorted(known))}
        return (
            stream.epoch,
            self.target(stream).epoch if self.delivery._targets.known else None,
            tuple(plain(sent) for sent in stream.stored),
            tuple(
                (plain(sent), at := stream.connections.index(connection), ids[at, i])
                for sent, connection, i in stream.taken
            ),
            tuple(
                (
                    connection.closed,
                    tuple((ids[at, i], plain(sent)) for i, sent in connection.requests),
                    tuple((ids[at, i], str(answer)) for i, answer in connection.answers),
                    tuple(ids[at, i] for i in connection.open),
                )
                for at, connection in enumerate(stream.connections)
            ),
        )

    def _sequences(self) -> set[int]:
        found = {batch.attempt.sequence for batch in self.batches if self._sends(batch)}  # type: ignore[union-attr]
        for stream in self.streams:
            found.update(sent.sequence for sent in stream.stored)
            found.update(sent.sequence for sent, _, _ in stream.taken)
            for connection in stream.connections:
                found.update(sent.sequence for _, sent in connection.requests)
        return found

    def _sends(self, batch: CallerBatch) -> bool:
        return isinstance(batch.attempt, OrderedAttempt)

    def _batch_print(self, batch: CallerBatch, rank: Mapping[int, int]) -> object:
        progress, attempt = batch.progress, batch.attempt
        state = progress.state, bool(progress.loss), bool(progress.attempts), batch.stalled
        if not isinstance(attempt, OrderedAttempt):
            return state
        stream = self.streams[attempt.target.id - 1]
        connection: object = attempt.connection
        at = [index for index, c in enumerate(stream.connections) if c is connection]
        return (
            state,
            stream.number,
            tuple(at),
            rank[attempt.sequence],
            attempt.epoch,
            attempt.doubtful,
        )


class ModelCarrier(OrderedCarrier):
    """Has no tasks that resolve: what a resolver would do is a choice."""

    def resolve(self, target: Stream) -> None:
        if target not in self._resolving:
            self._resolving[target] = cast(Any, Resolver(target, self._client, self.outcomes))

    def resolver_of(self, target: Stream) -> Resolver | None:
        return cast("Resolver | None", self._resolving.get(target))

    def tasks(self) -> list[asyncio.Task[None]]:
        return []


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


def explore(shape: Shape, rules: Rules) -> Exploration:
    """Try every order of everything that can happen. Raise Violation with the steps to it."""
    seen: set[object] = set()
    used: set[tuple[table.State, table.Event]] = set()
    outcomes: set[tuple[str, ...]] = set()
    paths: list[tuple[str, ...]] = [()]
    while paths:
        path = paths.pop()
        world = DeliveryWorld(shape, rules)
        try:
            for name in path:
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
