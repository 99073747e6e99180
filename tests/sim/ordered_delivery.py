"""The `ordered` carrier and a model of its streams. Its resolver's tasks are choices, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple, cast

from delivery_world import IN_FLIGHT_MAX, REFUSALS, DeliveryWorld, ManualTask, Step
from violation import Violation

from loomlog.client.append.carriers import Outcomes
from loomlog.client.append.stream import Stream
from loomlog.client.loglets.ordered.carrier import OrderedAttempt, OrderedCarrier
from loomlog.client.loglets.ordered.resolver import Resolver
from loomlog.errors import AppendUnknown, Conflict, LoomError, Sealed, Unavailable
from loomlog.protocol_names import ORDERED
from loomlog.wire import loomlog_pb2 as pb

NOTHING = memoryview(b"")


class Sent(NamedTuple):
    batch: int
    sequence: int
    epoch: int
    conditional: bool = False


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
        append = frame.append
        sent = Sent(batch, sequence, append.seal_epoch, append.HasField("expected_tail"))
        self.requests.append((self._last_id, sent))
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
        elif sent.conditional and (self.stored or self.taken):
            connection.answer(request_id, Conflict("it would not be the first one"))
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
        self._down = disconnected  # until a client connects

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


class OrderedWorld(DeliveryWorld):
    protocol = ORDERED

    def connections(self) -> Any:
        self.models = [ModelStream(number) for number in self.streams]
        self._refused: set[int] = set()  # batches
        return ModelConnections(self.models, self.shape.disconnected)

    def carrier(self, outcomes: Outcomes) -> ModelCarrier:
        self.own_carrier = ModelCarrier(self.client, outcomes)
        return self.own_carrier

    def encode(self, index: int, sequence: int) -> bytes:
        return b"%d %d" % (index, sequence)

    def described(self) -> Iterator[pb.LogStream]:
        for stream in self.models:
            yield pb.LogStream(
                log_stream_id=stream.number,
                seal_epoch=stream.epoch,
                replicas=[pb.Replica(address=stream.address)],
            )

    # ---- what can happen

    def server_steps(self) -> Iterator[Step]:
        for stream in self.models:
            yield from self._steps_of(stream)
        for index, task in enumerate(self.loop.tasks):
            yield f"connected {index}", lambda t=task: self._connect(t)  # type: ignore[misc]
            for how in REFUSALS:
                if self.left[how]:
                    yield f"{how} {index}", lambda h=how, t=task: self._connect(t, h)  # type: ignore[misc]

    def _steps_of(self, stream: ModelStream) -> Iterator[Step]:
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
        target = self.target(number)
        if target.epoch != stream.epoch:
            yield f"learn {number}", self.learn
        resolver = self.own_carrier.resolver_of(target)
        if resolver is not None:
            if resolver._of_past_epochs():
                yield f"ask {number}", lambda: self._ask(stream, resolver)
                if self.left["forget"]:
                    yield f"forget {number}", lambda: self._forget(resolver)
            elif any(resolver._unasked(attempt) for attempt in resolver._attempts()):
                yield f"repeat {number}", lambda: self._repeat(stream, resolver)

    # ---- how it happens

    def _refuse(self, how: str, connection: ModelConnection) -> None:
        self.spend(how)
        request_id, sent = connection.requests.pop(0)
        self._refused.add(sent.batch)
        connection.answer(request_id, REFUSALS[how]())

    def _cut(self, connection: ModelConnection) -> None:
        self.spend("cut")
        connection.cut()

    def _end_epoch(self, stream: ModelStream) -> None:
        self.spend("epoch")
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
        self.spend("forget")
        for attempt in resolver._of_past_epochs():
            self.delivery.unknown(attempt, AppendUnknown("it is forgotten"))

    def _repeat(self, stream: ModelStream, resolver: Resolver) -> None:
        connection = self.own_carrier.connections.get(stream.address)
        assert connection is not None
        for attempt in resolver._attempts():
            if resolver._unasked(attempt):
                attempt.transmit(connection)

    def _connect(self, task: ManualTask, failure: str = "") -> None:
        if failure:
            self.spend(failure)
            task.go_on(error=REFUSALS[failure]())
        else:
            task.go_on()
        if task in self.loop.tasks:
            raise Violation("an attempt waits for more than its connection")

    def arrive_all(self) -> None:
        for stream in self.models:
            for connection in stream.connections:
                while connection.requests:
                    stream.arrive(connection)
            while stream.taken:
                stream.commit()

    # ---- what must be true

    def stored(self, index: int) -> list[tuple[int, int]]:
        return [
            (stream.number, position)
            for stream in self.models
            for position, sent in enumerate(stream.stored, 1)
            if sent.batch == index
        ]

    def check(self) -> None:
        super().check()
        # Batches that were never refused stand in the order of their lane.
        once = [i for i, batch in enumerate(self.batches) if not batch.progress.attempts]
        once = [index for index in once if index not in self._refused]
        for stream in self.models:
            order = [sent.batch for sent in stream.stored if sent.batch in once]
            if order != sorted(order):
                raise Violation(f"batches are stored in the order {order}")

    # ---- two worlds that continue alike

    def server_print(self) -> object:
        """Return the state of all streams; numbers that only grow count by their order."""
        rank = {sequence: index for index, sequence in enumerate(sorted(self._sequences()))}
        return (
            tuple(sorted(self._refused)),
            len(self.loop.tasks),
            tuple(self._attempt_print(batch.attempt, rank) for batch in self.batches),
            tuple(self._stream_print(stream, rank) for stream in self.models),
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
            self.target(stream.number).epoch if self.delivery._targets.known else None,
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
        attempts = (batch.attempt for batch in self.batches)
        found = {a.sequence for a in attempts if isinstance(a, OrderedAttempt)}
        for stream in self.models:
            found.update(sent.sequence for sent in stream.stored)
            found.update(sent.sequence for sent, _, _ in stream.taken)
            for connection in stream.connections:
                found.update(sent.sequence for _, sent in connection.requests)
        return found

    def _attempt_print(self, attempt: object, rank: Mapping[int, int]) -> object:
        if not isinstance(attempt, OrderedAttempt):
            return None
        connection: object = attempt.connection
        connections = self.models[attempt.target.id - 1].connections
        at = [index for index, c in enumerate(connections) if c is connection]
        return tuple(at), rank[attempt.sequence], attempt.epoch


class ModelCarrier(OrderedCarrier):
    """A carrier without tasks that resolve: what a resolver would do is a choice."""

    def resolve(self, target: Stream) -> None:
        if target not in self._resolving:
            self._resolving[target] = cast(Any, Resolver(target, self._client, self.outcomes))

    def resolver_of(self, target: Stream) -> Resolver | None:
        return cast("Resolver | None", self._resolving.get(target))

    def tasks(self) -> list[asyncio.Task[None]]:
        return []
