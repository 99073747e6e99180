"""A cluster from memory: real servers on real sockets that speak the wire contract.

All nodes share one state, so any of them serves any stream; what they do wrong is scripted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from loomlog import batch
from loomlog.errors import AlreadyExists, LoomError, NotFound, Sealed, Trimmed, Unavailable
from loomlog.testing.ports import free_address
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Route, Server, Service

Fault = Callable[[Connection], bool]  # True: it took care of the request


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until something has happened."""
    while not condition():  # noqa: ASYNC110 - what happens is out in the servers
        await asyncio.sleep(0)


def refuse(error: LoomError) -> Fault:
    def fault(connection: Connection) -> bool:
        raise error

    return fault


def cut(connection: Connection) -> bool:
    """The request arrived; the connection breaks before anything is done."""
    connection.abort(Unavailable("cut by the test"))
    return True


def ignore(connection: Connection) -> bool:
    """The request arrived and is never answered."""
    return True


@dataclass
class Stream:
    id: int
    addresses: list[str]
    running: bool = True
    hangs: bool = False  # takes appends and does nothing
    epoch: int = 1
    held: bool = False
    rolled_back: str = ""  # why it takes nothing
    batches: list[bytearray] = field(default_factory=list)
    headers: list[batch.Header] = field(default_factory=list)

    def find(self, producer_id: int, sequence: int) -> batch.Header | None:
        for header in self.headers:
            if (header.producer_id, header.sequence) == (producer_id, sequence):
                return header
        return None

    def seal(self) -> None:
        self.running = False
        self.epoch += 1

    @property
    def entries(self) -> int:
        return self.headers[-1].last_llsn if self.headers else 0


@dataclass
class FakeLog:
    id: int
    name: str
    streams: list[Stream]
    head: int = 1
    tail: int = 0


class Subscriber:
    def __init__(self, connection: Connection, frame: Frame, stream: Stream) -> None:
        self.connection = connection
        self.id = frame.id
        self.stream = stream
        self.credit = frame.subscribe.credit_bytes
        self.at = 0
        wanted = frame.subscribe
        while self.at < len(stream.headers) and (
            stream.headers[self.at].last_position < wanted.first_glsn
            or stream.headers[self.at].last_llsn < wanted.first_llsn
        ):
            self.at += 1

    def push(self, watermark: int) -> None:
        while self.at < len(self.stream.batches) and self.credit > 0:
            content = self.stream.batches[self.at]
            self.at += 1
            self.credit -= len(content)
            self._send([content], watermark)
        if self.at == len(self.stream.batches):
            self._send([], watermark)

    def _send(self, payload: list[bytearray], watermark: int) -> None:
        data = pb.SubscriptionData(high_watermark=watermark)
        frame = pb.Frame(id=self.id, reply=True, subscription_data=data)
        self.connection.send(frame, payload)


class FakeCluster:
    """`async with FakeCluster() as fake`: one repository, `nodes` storage nodes."""

    def __init__(self, nodes: int = 2) -> None:
        self.logs: dict[str, FakeLog] = {}
        self.faults: deque[Fault] = deque()  # each for one append
        self.answer_faults: deque[Fault] = deque()  # after it was appended
        self.resolve_faults: deque[Fault] = deque()
        self.may_resolve = asyncio.Event()
        self.may_resolve.set()
        self.read_faults: deque[Fault] = deque()
        self.metadata_faults: deque[Fault] = deque()
        self.leader_epoch = 0
        self.others: list[str] = []  # addresses of further metadata repositories
        self.appends = 0  # batches that arrived
        self.resolves = 0
        self.reads = 0
        self.registers: dict[str, bytes] = {}
        self.registers_read: list[str] = []
        self.describes = 0
        self.sequences: list[int] = []
        self.subscribers: list[Subscriber] = []
        self.connections: dict[int, set[Connection]] = {}
        codec = self.codec = Codec("vmr", cluster_id="fake")
        self._services = [Service(codec, self._metadata_routes())]
        self._services += [Service(codec, self._node_routes()) for _ in range(nodes)]
        self.vmr, *self.nodes = [Server(codec, service) for service in self._services]

    async def __aenter__(self) -> Self:
        for server in (self.vmr, *self.nodes):
            await server.start(free_address())
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (self.vmr, *self.nodes):
            await server.stop()
        for service in self._services:
            await service.stop()

    @property
    def address(self) -> str:
        return self.vmr.address

    def add_log(self, name: str, streams: int = 1) -> FakeLog:
        log = FakeLog(len(self.logs) + 1, name, [])
        self.logs[name] = log
        for _ in range(streams):
            self.add_stream(log)
        return log

    def add_stream(self, log: FakeLog) -> Stream:
        number = len(log.streams) + 1
        addresses = [node.address for node in self.nodes]
        stream = Stream(log.id * 100 + number, addresses[number - 1 :] + addresses[: number - 1])
        stream.addresses = stream.addresses or addresses
        log.streams.append(stream)
        return stream

    def store(self, log: FakeLog, stream: Stream, content: memoryview | bytearray) -> batch.Header:
        """Commit a batch."""
        kept = bytearray(content)
        batch.assign_llsn(kept, stream.id, stream.epoch, stream.entries + 1)
        batch.assign_position(kept, log.tail + 1)
        header = batch.check(kept)
        stream.batches.append(kept)
        stream.headers.append(header)
        log.tail = header.last_position
        self.push()
        return header

    def push(self) -> None:
        for subscriber in list(self.subscribers):
            subscriber.push(self._log_of(subscriber.stream.id)[0].tail)

    # ---- storage node

    def _node_routes(self) -> dict[str, Route]:
        return {
            "append": self._append,
            "resolve_append": self._resolve,
            "read": self._read,
            "subscribe": self._subscribe,
            "subscription_credit": self._credit,
            "cancel_subscription": self._cancel,
        }

    def _append(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self.appends += 1
        if self.faults and self.faults.popleft()(connection):
            return
        log, stream = self._log_of(frame.append.log_stream_id)
        if stream.hangs:
            return
        if not stream.running or stream.epoch != frame.append.seal_epoch:
            raise Sealed(f"stream {stream.id} is sealed")
        sent = batch.check(payload)
        header = stream.find(sent.producer_id, sent.sequence)
        if header is None:
            header = self.store(log, stream, payload)
            self.sequences.append(header.sequence)
        if self.answer_faults and self.answer_faults.popleft()(connection):
            return
        answer = pb.Appended(first_glsn=header.first_position, first_llsn=header.first_llsn)
        connection.send(pb.Frame(id=frame.id, reply=True, appended=answer))

    async def _resolve(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        self.resolves += 1
        asked = frame.resolve_append
        _, stream = self._log_of(asked.log_stream_id)
        if self.resolve_faults and self.resolve_faults.popleft()(connection):
            await asyncio.Event().wait()
        await self.may_resolve.wait()
        if stream.epoch <= asked.seal_epoch:
            raise Unavailable(f"stream {stream.id} is still in that epoch")
        answer = pb.AppendResolved()
        header = stream.find(asked.producer_id, asked.sequence)
        if header is not None:
            answer.appended = True
            answer.first_glsn, answer.first_llsn = header.first_position, header.first_llsn
        return pb.Frame(append_resolved=answer)

    def _read(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self.reads += 1
        if self.read_faults and self.read_faults.popleft()(connection):
            return
        log, stream = self._log_of(frame.read.log_stream_id)
        wanted = frame.read.glsn
        if wanted > log.tail:
            raise Unavailable("this replica does not know so much yet")
        if wanted < log.head:
            raise Trimmed(f"position {wanted} was trimmed")
        for header, content in zip(stream.headers, stream.batches, strict=True):
            if header.first_position <= wanted <= header.last_position:
                answer = pb.ReadResponse(high_watermark=log.tail)
                reply = pb.Frame(id=frame.id, reply=True, read_response=answer)
                connection.send(reply, [content])
                return
        raise NotFound(f"position {wanted} is not in stream {stream.id}")

    def _subscribe(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        log, stream = self._log_of(frame.subscribe.log_stream_id)
        subscriber = Subscriber(connection, frame, stream)
        self.subscribers.append(subscriber)
        subscriber.push(log.tail)

    def _credit(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        for subscriber in self._of(connection, frame.subscription_credit.subscription_id):
            subscriber.credit += frame.subscription_credit.bytes
        self.push()

    def _cancel(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        for subscriber in self._of(connection, frame.cancel_subscription.subscription_id):
            self.subscribers.remove(subscriber)

    def _of(self, connection: Connection, number: int) -> list[Subscriber]:
        return [s for s in self.subscribers if s.connection is connection and s.id == number]

    def _log_of(self, stream_id: int) -> tuple[FakeLog, Stream]:
        for log in self.logs.values():
            for stream in log.streams:
                if stream.id == stream_id:
                    return log, stream
        raise NotFound(f"no stream {stream_id} here")

    # ---- metadata repository

    def _metadata_routes(self) -> dict[str, Route]:
        answers = {
            "create_log": self._create,
            "describe_log": self._describe,
            "list_logs": self._list,
            "delete_log": self._delete,
            "trim_log": self._trim,
            "get_bounds": self._bounds,
            "get_status": self._status,
            "get_register": self._register,
            "list_registers": lambda _: pb.Frame(register_list=pb.RegisterList()),
        }
        return {kind: self._answering(answer) for kind, answer in answers.items()}

    def _answering(self, answer: Callable[[Frame], Frame]) -> Route:
        def route(connection: Connection, frame: Frame, payload: memoryview) -> None:
            if self.metadata_faults and self.metadata_faults.popleft()(connection):
                return
            reply = answer(frame)
            reply.id, reply.reply, reply.leader_epoch = frame.id, True, self.leader_epoch
            connection.send(reply)

        return route

    def _create(self, frame: Frame) -> Frame:
        wanted = frame.create_log
        if wanted.name in self.logs:
            raise AlreadyExists(f"there is a log {wanted.name!r}")
        return pb.Frame(log=_metadata_of(self.add_log(wanted.name, wanted.streams)))

    def _describe(self, frame: Frame) -> Frame:
        self.describes += 1
        described = _metadata_of(self._log(frame.describe_log.name))
        described.metadata.extend(self.others)
        return pb.Frame(log=described)

    def _list(self, frame: Frame) -> Frame:
        return pb.Frame(log_list=pb.LogList(logs=map(_metadata_of, self.logs.values())))

    def _delete(self, frame: Frame) -> Frame:
        del self.logs[self._log(frame.delete_log.name).name]
        return pb.Frame(done=pb.Done())

    def _trim(self, frame: Frame) -> Frame:
        log = self._log(frame.trim_log.name)
        log.head = frame.trim_log.position + 1
        return pb.Frame(bounds=pb.Bounds(head=log.head, tail=log.tail))

    def _bounds(self, frame: Frame) -> Frame:
        log = self._log(frame.get_bounds.name)
        return pb.Frame(bounds=pb.Bounds(head=log.head, tail=log.tail))

    def _status(self, frame: Frame) -> Frame:
        status = pb.Status(cluster_id="fake", metadata_address=self.address, rounds=7, uptime_s=1.5)
        status.logs.extend(map(_metadata_of, self.logs.values()))
        for number, node in enumerate(self.nodes, 1):
            status.nodes.add(
                storage_node_id=number, address=node.address, alive=True, sync_mode="none"
            )
        return pb.Frame(status=status)

    def _register(self, frame: Frame) -> Frame:
        name = frame.get_register.name
        self.registers_read.append(name)
        value = self.registers.get(name)
        found = pb.RegisterValue(name=name, value=value, version=int(value is not None))
        return pb.Frame(register_value=found)

    def _log(self, name: str) -> FakeLog:
        if name not in self.logs:
            raise NotFound(f"no log {name!r}; create it first")
        return self.logs[name]


def _metadata_of(log: FakeLog) -> pb.Log:
    found = pb.Log(
        log_id=log.id,
        name=log.name,
        protocol="ordered",
        replicas=2,
        head=log.head,
        tail=log.tail,
    )
    found.segments.add(loglet_id=log.id, protocol="ordered", start=1)
    for stream in log.streams:
        found.streams.add(
            log_stream_id=stream.id,
            loglet_id=log.id,
            protocol="ordered",
            state=pb.RUNNING if stream.running else pb.STREAM_SEALED,
            seal_epoch=stream.epoch,
            held=stream.held,
            rolled_back=bool(stream.rolled_back),
            condition=stream.rolled_back,
            entries=stream.entries,
            replicas=[
                pb.Replica(storage_node_id=number, address=address)
                for number, address in enumerate(stream.addresses, 1)
            ],
        )
    return found
