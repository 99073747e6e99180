"""One record is asked of single nodes first: which answers count, and which are not awaited."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from loomlog.batch import assign_place, build
from loomlog.client.cached_log import CachedLog
from loomlog.client.loglets.copyset import finder
from loomlog.client.loglets.copyset.finder import LikelyHolders
from loomlog.client.loglets.copyset.segments import Segments, View
from loomlog.client.servers import Connections, Metadata
from loomlog.core.copyset.messages import Delivered, LogState, Read
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import KnownNode, answer_to_wire, request_from_wire
from loomlog.wire.link import Connection, Frame, Server, Service

LOGLET, NODES, REPLICAS = 7, 5, 3
CONTENT = build(
    bytes(100),
    codec=0,
    flags=0,
    count=3,
    raw_size=100,
    producer_id=1,
    sequence=1,
    min_timestamp_us=1,
    max_timestamp_us=2,
)
assign_place(CONTENT, 1, 1, make(1, 10))
BATCH = Record(make(1, 10), 3, Kind.DATA, 1, (1, 2, 3), 1, 9, batch=CONTENT)
HOLE = Record(make(1, 10), 3, Kind.HOLE, 1, (1, 2, 3), 1, 9)


class PlayedNode(Service):
    """A node with one record, or none."""

    def __init__(self) -> None:
        super().__init__(Codec("vsn"), {"copyset_request": self._read})
        self.server = Server(Codec("vsn"), self)
        self.record: Record | None = None
        self.silent = False
        self.asked = 0

    def _read(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        request = request_from_wire(frame.copyset_request, payload)
        assert isinstance(request, Read)
        assert request.everything
        self.asked += 1
        if not self.silent:
            records = [] if self.record is None else [self.record]
            message, content = answer_to_wire(Delivered(records, request.until + 1, 0, make(1, 99)))
            connection.send(pb.Frame(id=frame.id, reply=True, copyset_answer=message), content)


class Stage:
    def __init__(self) -> None:
        rng, codec = random.Random(1), Codec("client")
        self.nodes = {number: PlayedNode() for number in range(1, NODES + 1)}
        self.connections = Connections(codec, rng, 5.0)
        metadata = Metadata(["nowhere:1"], self.connections, rng, 5.0)
        self.guessing = LikelyHolders(Segments(CachedLog("events", metadata), self.connections))

    def view(self, trimmed: int = 0) -> View:
        members = tuple(Member(number) for number in self.nodes)
        history = (EpochMetadata(1, members, REPLICAS),)
        known = {n: KnownNode(n, node.server.address, True) for n, node in self.nodes.items()}
        return View(1, LOGLET, LogState(1, 1, history, 0, 0, trimmed=trimmed), known)

    async def find(self, position: int, trimmed: int = 0) -> Record | None:
        async with asyncio.timeout(10):
            return await self.guessing.find(self.view(trimmed), position, 1000)

    @property
    def asked(self) -> int:
        return sum(node.asked for node in self.nodes.values())


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    for node in stage.nodes.values():
        await node.server.start("127.0.0.1:0")
        await stage.connections.connect(node.server.address)
    yield stage
    await stage.connections.close()
    for node in stage.nodes.values():
        await node.server.stop()
        await node.stop()


@pytest.mark.parametrize("position", range(BATCH.first, BATCH.last + 1))
async def test_wherever_it_lies_so_many_are_asked_that_one_has_it(
    stage: Stage, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "GUESS_S", 5.0)  # all answer, however busy the machine is
    for first in range(NODES):
        for number, node in stage.nodes.items():
            node.record = BATCH if (number - first) % NODES < REPLICAS else None
        found = await stage.find(position)
        assert found is not None
        assert (found.first, bytes(found.batch)) == (BATCH.first, bytes(CONTENT))
    assert NODES <= stage.asked < NODES * NODES


async def test_when_all_have_it_one_is_asked(stage: Stage) -> None:
    for node in stage.nodes.values():
        node.record = BATCH
    assert await stage.find(BATCH.first) is not None
    assert stage.asked == 1


async def test_nothing_follows_from_a_hole_nor_from_another_record(stage: Stage) -> None:
    for node, record in zip(stage.nodes.values(), [HOLE, BATCH, HOLE, BATCH, None], strict=True):
        node.record = record
    assert await stage.find(BATCH.last + 1) is None
    for node in stage.nodes.values():
        node.record = HOLE
    assert await stage.find(HOLE.first) is None


async def test_what_is_trimmed_or_of_an_unknown_epoch_is_not_asked_for(stage: Stage) -> None:
    assert await stage.find(BATCH.first, trimmed=BATCH.last) is None
    assert await stage.find(5) is None
    assert stage.asked == 0


async def test_who_is_silent_or_gone_is_not_asked_first_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "AVOIDED_S", 1000.0)
    for node in stage.nodes.values():
        node.record, node.silent = BATCH, True
    assert await stage.find(BATCH.first) is None
    asked = stage.asked
    assert await stage.find(BATCH.first) is None
    assert stage.asked == asked == finder.GUESSES_MAX


async def test_nobody_is_connected_to_for_it(stage: Stage) -> None:
    await stage.connections.close()
    assert await stage.find(BATCH.first) is None
    assert stage.asked == 0
