"""A node finds the metadata repository that leads, and leaves one that does not any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from poll import until

from loomlog import limits
from loomlog.errors import LoomError, NotLeader, RolledBack, Unauthorized
from loomlog.net.address import split_address
from loomlog.node.metadata_link import MetadataLink
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec, FrameWriter
from loomlog.wire.link import Connection, Frame, Server, Service

PATIENCE_S = 30.0


class PlayedRepository(Service):
    """Leads in an epoch, or (epoch 0) names the leader."""

    def __init__(self, epoch: int = 0) -> None:
        codec = Codec("vmr")
        super().__init__(codec, {"register": self._register, "ask_leader": self._ask})
        self.server = Server(codec, self)
        self.epoch = epoch
        self.leader = ""
        self.refusal: LoomError | None = None
        self.answers = True  # whether it says that it still leads
        self.others: list[str] = []
        self.order: pb.Frame | None = None  # sent right behind the answer
        self.registered = asyncio.Event()
        self.lost = asyncio.Event()

    async def _register(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        if self.refusal is not None:
            raise self.refusal
        if not self.epoch:
            raise NotLeader("not I", self.leader)
        self.registered.set()
        answer = pb.Registered(heartbeat_s=0.01, metadata=self.others)
        if self.order is not None:
            asyncio.get_running_loop().call_soon(connection.send, self.order)
        return pb.Frame(registered=answer, leader_epoch=self.epoch)

    def _ask(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        if self.answers:
            beat = pb.LeaderBeat(epoch=self.epoch, address=self.leader or self.server.address)
            connection.send(pb.Frame(id=frame.id, reply=True, leader_beat=beat))

    def connection_closed(self, connection: Connection, error: Exception) -> None:
        self.lost.set()


@asynccontextmanager
async def repositories(*epochs: int) -> AsyncIterator[list[PlayedRepository]]:
    found = [PlayedRepository(epoch) for epoch in epochs]
    for repository in found:
        await repository.server.start("127.0.0.1:0")
    try:
        yield found
    finally:
        for repository in found:
            await repository.server.stop()
            await repository.stop()


@asynccontextmanager
async def linked(
    *known: PlayedRepository,
    on_registered: Callable[[pb.Registered], None] = lambda answer: None,
    make_report: Callable[[], pb.GetReportResponse] = pb.GetReportResponse,
    make_short_report: Callable[[], pb.GetReportResponse] = pb.GetReportResponse,
    service: Service | None = None,
) -> AsyncIterator[MetadataLink]:
    link = MetadataLink(
        [repository.server.address for repository in known],
        Codec("vsn"),
        service or Service(Codec("vsn"), {}),
        lambda: pb.Register(storage_node_id=1),
        on_registered,
        make_report,
        make_short_report,
    )
    link.start()
    try:
        yield link
    finally:
        await link.stop()


async def happens(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE_S)


async def test_a_follower_names_the_leader() -> None:
    async with repositories(0, 3) as (follower, leader):
        follower.leader = leader.server.address
        async with linked(follower):
            await happens(leader.registered)


async def test_what_was_learnt_counts_when_the_leader_dies() -> None:
    async with repositories(3, 4) as (first, second):
        first.others = [second.server.address]
        async with linked(first):
            await happens(first.registered)
            await first.server.stop()
            await happens(second.registered)


async def test_the_node_knows_that_the_metadata_went_back_in_time_until_it_is_mended() -> None:
    async with repositories(0, 3) as (follower, leader):
        follower.leader = leader.server.address
        leader.refusal = RolledBack("it went back in time")
        async with linked(follower, leader) as link:
            await until(lambda: link.rolled_back is not None)
            leader.refusal = None
            await happens(leader.registered)
            await until(lambda: link.rolled_back is None)


async def test_an_older_leader_is_refused() -> None:
    async with repositories(5, 4) as (newer, older), linked(newer, older):
        await happens(newer.registered)
        newer.epoch, newer.leader = 0, older.server.address
        await newer.server.stop()
        await happens(older.lost)
        assert older.registered.is_set()
        older.registered.clear()
        older.epoch = 6
        await happens(older.registered)


async def test_a_new_leader_that_announces_itself_is_followed_at_once() -> None:
    async with repositories(3, 4) as (old, new), linked(old) as link:
        await happens(old.registered)
        link.leader_announced(pb.LeaderBeat(epoch=4, address=new.server.address))
        await happens(new.registered)
        await happens(old.lost)


async def test_one_that_announces_itself_again_is_not_turned_away_from() -> None:
    async with repositories(3, 9) as (leader, other), linked(leader, other) as link:
        await happens(leader.registered)
        leader.registered.clear()
        leader.epoch = 4  # it took over from itself
        link.leader_announced(pb.LeaderBeat(epoch=4, address=leader.server.address))
        await happens(leader.registered)
        assert not other.registered.is_set()


async def test_a_leader_that_says_that_another_leads_is_left() -> None:
    async with repositories(3, 4) as (old, new):
        old.others = [new.server.address]
        async with linked(old):
            await happens(old.registered)
            old.epoch, old.leader = 4, new.server.address
            await happens(new.registered)


async def test_a_silent_leader_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEADER_SILENCE_S", 0.2)
    async with repositories(3, 4) as (old, new):
        old.others = [new.server.address]
        async with linked(old):
            await happens(old.registered)
            old.answers = False
            await happens(old.lost)
            old.epoch = 0
            await happens(new.registered)


async def test_the_answer_is_taken_before_an_order_that_follows_it() -> None:
    """Otherwise an older state would replace a newer one."""
    taken: list[str] = []
    is_ordered = asyncio.Event()

    def order(connection: Connection, frame: Frame, payload: memoryview) -> None:
        taken.append("order")
        is_ordered.set()

    service = Service(Codec("vsn"), {"copyset_rebuild": order})
    async with repositories(3) as (leader,):
        leader.order = pb.Frame(copyset_rebuild=pb.CopysetRebuild(events=7))
        async with linked(leader, on_registered=lambda _: taken.append("answer"), service=service):
            await happens(is_ordered)
    assert taken == ["answer", "order"]


async def test_a_failure_that_nobody_expected_is_logged_and_it_registers_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A disk that is full, say: the node would be there and take no part forever."""
    answers = []

    def take(answer: pb.Registered) -> None:
        answers.append(answer)
        if len(answers) == 1:
            raise OSError("no space left")

    async with repositories(3) as (leader,), linked(leader, on_registered=take) as link:
        await happens(link.registered)
    assert len(answers) == 2
    assert any(record.exc_info for record in caplog.records)


async def test_a_report_that_cannot_be_made_does_not_end_the_heartbeat() -> None:
    beats = asyncio.Semaphore(0)
    errors: list[Any] = []

    def fail() -> pb.GetReportResponse:
        beats.release()
        raise ZeroDivisionError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    async with repositories(3) as (leader,), linked(leader, make_report=fail):
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                await beats.acquire()
    assert {type(error) for error in errors} == {ZeroDivisionError}


async def test_heartbeats_are_short_while_nothing_changes() -> None:
    beats: list[str] = []
    more = asyncio.Semaphore(0)

    def note(kind: str) -> pb.GetReportResponse:
        beats.append(kind)
        more.release()
        # Clock and scrubbing differ each time; denials do up to the fourth heartbeat.
        at, scrub = len(beats), pb.ScrubStatus(last_pass_s=len(beats))
        return pb.GetReportResponse(clock_us=at, scrub=scrub, denials=min(at, 4))

    async with (
        repositories(3) as (leader,),
        linked(
            leader,
            make_report=lambda: note("long"),
            make_short_report=lambda: note("short"),
        ),
        asyncio.timeout(PATIENCE_S),
    ):
        for _ in range(11):
            await more.acquire()
    assert beats[:11] == ["long"] * 5 + ["short", "short", "long"] * 2


# ---- what answers at the address of a metadata repository may be anything


class Impostor(asyncio.Protocol):
    """Says the same to everybody, then closes if it is meant to."""

    def __init__(self, words: bytes, met: asyncio.Event) -> None:
        self._words = words
        self._met = met

    def connection_made(self, transport: Any) -> None:
        transport.write(self._words)
        transport.close()
        self._met.set()


def in_frames(*said: pb.Frame) -> bytes:
    encode = FrameWriter().encode
    return b"".join(part for frame in said for part in encode(frame))


def _other_version() -> pb.Frame:
    hello = Codec("vmr").greeting()
    hello.hello.protocol_version = hello.hello.oldest_version = 99
    return hello


def _goodbye() -> pb.Frame:
    return pb.Frame(error=pb.Error(code=pb.UNAUTHORIZED, message="go away"))


@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        in_frames(_other_version()),
        in_frames(_goodbye()),
        in_frames(Codec("vmr").greeting(), _goodbye()),
        in_frames(Codec("vmr").greeting())[:30],
        in_frames(pb.Frame(register=pb.Register())),
        b"",
    ],
    ids=["http", "version", "goodbye", "late goodbye", "cut", "no hello", "silence"],
)
async def test_a_node_outlasts_whatever_answers_at_the_address(words: bytes) -> None:
    async with repositories(3) as (leader,):
        address = leader.server.address
        await leader.server.stop()
        met = asyncio.Event()
        host, port = split_address(address)
        impostor = await asyncio.get_running_loop().create_server(
            lambda: Impostor(words, met), host, port
        )
        async with linked(leader) as link:
            await happens(met)
            met.clear()
            await happens(met)  # it tries again
            assert not link.refused.done()
            impostor.close()
            await impostor.wait_closed()
            await leader.server.start(address)
            await happens(leader.registered)


async def test_a_leader_at_a_bad_address_is_passed_over() -> None:
    async with repositories(0, 3) as (follower, leader):
        follower.leader = "nowhere"
        leader.others = ["", "no port:x", leader.server.address]
        async with linked(follower, leader) as link:
            await happens(leader.registered)
            link.leader_announced(pb.LeaderBeat(epoch=9, address="host:http"))
            await asyncio.sleep(0.05)
            assert not link.refused.done()
            assert not leader.lost.is_set()


async def test_a_refusal_of_this_very_node_ends_it() -> None:
    async with repositories(3) as (leader,), linked(leader) as link:
        await happens(link.registered)
        leader.refusal = Unauthorized("another cluster's data")
        await leader.server.stop()
        await leader.server.start(leader.server.address)
        error = await asyncio.wait_for(asyncio.shield(link.refused), PATIENCE_S)
        assert "another cluster" in str(error)
