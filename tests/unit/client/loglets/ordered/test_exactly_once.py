"""The outcome of appends without an answer is determined, and no entry is duplicated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_cluster import FakeCluster, FakeLog, Fault, cut, ignore, refuse, until

from loomlog import connect, errors, limits
from loomlog.client.append import stream as streams
from loomlog.client.log import Log
from loomlog.client.loglets.ordered import resolver
from loomlog.client.loglets.ordered.carrier import OrderedCarrier
from loomlog.types import Position
from loomlog.wire.link import Connection


@asynccontextmanager
async def events(
    streams: int = 1, nodes: int = 2, **settings: Any
) -> AsyncIterator[tuple[FakeCluster, FakeLog, Log]]:
    async with FakeCluster(nodes) as fake, await connect(fake.address, **settings) as cluster:
        yield fake, fake.add_log("events", streams), cluster.log("events")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed soon."""
    monkeypatch.setattr(streams, "SILENT_S", 0.05)
    monkeypatch.setattr(resolver, "PROBE_S", 0.05)


def sealing(log: FakeLog, fault: Fault) -> Fault:
    """The stream is sealed in the moment of the fault."""

    def at_once(connection: Connection) -> bool:
        log.streams[0].seal()
        return fault(connection)

    return at_once


async def test_an_append_that_never_arrived_is_sent_again() -> None:
    async with events() as (fake, _, client):
        fake.faults.append(cut)
        assert (await client.append(b"x")).position == 1
        assert (fake.appends, fake.sequences) == (2, [1])


async def test_an_append_whose_answer_was_lost_keeps_its_first_position() -> None:
    async with events() as (fake, _, client):
        await client.append(b"before")
        fake.answer_faults.append(cut)
        assert (await client.append(b"x")) == Position(2, 101, 2)
        assert (await client.append(b"after")).position == 3
        assert fake.sequences == [1, 2, 3]
        assert fake.appends == 4


async def test_many_answers_lost_at_once() -> None:
    async with events(streams=2) as (fake, log, client):
        await asyncio.gather(*(client.append(b"-", stream=101) for _ in range(3)))
        fake.answer_faults.extend([cut] * 5)
        appends = [client.append_many([b"%d" % n] * 2) for n in range(60)]
        positions = [at.position for many in await asyncio.gather(*appends) for at in many]
        assert sorted(positions) == list(range(log.tail - 119, log.tail + 1))


async def test_what_a_seal_kept_is_told_by_any_replica() -> None:
    async with events(streams=2) as (fake, log, client):
        fake.answer_faults.append(sealing(log, cut))
        assert (await client.append(b"x", stream=101)) == Position(1, 101, 1)
        assert log.tail == 1


async def test_what_a_seal_dropped_goes_to_another_stream() -> None:
    async with events(streams=2) as (fake, log, client):
        fake.faults.append(cut)
        append = asyncio.ensure_future(client.append(b"x"))
        await until(lambda: fake.appends == 1)
        for stream in log.streams:
            stream.seal()
        await until(lambda: fake.resolves > 0)
        log.streams[1].running = True
        assert (await append) == Position(1, 102, 1)
        assert log.tail == 1


async def test_what_was_dropped_for_a_named_stream_waits_for_that_stream() -> None:
    async with events(streams=2) as (fake, log, client):
        fake.faults.append(sealing(log, cut))
        append = asyncio.ensure_future(client.append(b"x", stream=101))
        await until(lambda: fake.resolves > 0)
        log.streams[0].running = True
        assert (await append) == Position(1, 101, 1)


async def test_a_replica_that_cannot_tell_yet_is_asked_again() -> None:
    async with events() as (fake, log, client):
        fake.resolve_faults.extend([refuse(errors.Unavailable("sealing"))] * 5)
        fake.answer_faults.append(sealing(log, cut))
        assert (await client.append(b"x")).position == 1
        assert fake.resolves > 5


async def test_a_repeat_that_is_refused_says_nothing_about_the_first_time() -> None:
    """A primary that sealed itself refuses; what it has may still be committed by the seal."""
    async with events(streams=2) as (fake, log, client):
        fake.answer_faults.append(cut)
        fake.faults.extend([lambda _: False, refuse(errors.Sealed("sealing"))])
        append = asyncio.ensure_future(client.append(b"x", stream=101))
        await until(lambda: fake.appends >= 2)
        log.streams[0].seal()
        assert (await append) == Position(1, 101, 1)
        assert log.tail == 1


async def test_only_what_could_not_be_resolved_in_time_is_unknown() -> None:
    async with events(append_timeout_s=0.3) as (fake, log, client):
        fake.resolve_faults.extend([refuse(errors.Unavailable("sealing"))] * 1000)
        fake.answer_faults.append(sealing(log, cut))
        with pytest.raises(errors.AppendUnknown, match=r"'events' stream 101.* lost"):
            await client.append(b"x")


async def test_too_old_to_tell_is_unknown_at_once() -> None:
    async with events() as (fake, log, client):
        fake.resolve_faults.append(refuse(errors.AppendUnknown("too old")))
        fake.answer_faults.append(sealing(log, cut))
        with pytest.raises(errors.AppendUnknown, match="too old"):
            await client.append(b"x")


async def test_a_log_deleted_meanwhile_leaves_the_outcome_unknown() -> None:
    async with events() as (fake, _, client):

        def delete(connection: Connection) -> bool:
            fake.logs.clear()
            return cut(connection)

        fake.answer_faults.append(delete)
        with pytest.raises(errors.AppendUnknown, match="create it first"):
            await client.append(b"x")


async def test_others_go_to_other_streams_meanwhile() -> None:
    async with events(streams=2) as (fake, log, client):
        fake.resolve_faults.extend([refuse(errors.Unavailable("sealing"))] * 1000)
        fake.answer_faults.append(sealing(log, cut))
        doubtful = asyncio.ensure_future(client.append(b"x", stream=101))
        await until(lambda: fake.resolves > 0)
        log.streams[0].running = True  # in the next epoch
        positions = await asyncio.gather(*(client.append_many([b"y"]) for _ in range(100)))
        assert {at.stream for (at,) in positions} == {102}
        assert not doubtful.done()
        fake.resolve_faults.clear()
        assert (await doubtful) == Position(1, 101, 1)


@pytest.mark.usefixtures("impatient")
async def test_no_answer_over_a_seal_is_asked_for() -> None:
    async with events() as (fake, log, client):
        fake.answer_faults.append(sealing(log, ignore))
        assert (await client.append(b"x")).position == 1
        assert fake.resolves > 0


async def test_what_is_refused_while_replicas_are_asked_is_sent_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulation seed 1055: refused by its primary, then gone at a replica, and queued twice."""
    monkeypatch.setattr(streams, "SILENT_S", 0.05)
    async with events(streams=2) as (fake, log, client):
        waiting: list[Connection] = []
        fake.faults.append(lambda connection: waiting.append(connection) or True)  # type: ignore
        fake.resolve_faults.extend([waiting.append] * 100)  # type: ignore[list-item]
        fake.may_resolve.clear()
        append = asyncio.ensure_future(client.append(b"x"))
        await until(lambda: len(waiting) == 1)
        for stream in log.streams:
            stream.seal()
        await until(lambda: any(asking is not waiting[0] for asking in waiting))
        refusal = fake.codec.failure_frame(errors.Sealed("sealed"))
        refusal.id, refusal.reply = 1, True  # the append was the first request
        waiting[0].send(refusal)
        await asyncio.sleep(0.05)
        fake.may_resolve.set()
        await asyncio.sleep(0.05)
        log.streams[1].running = True
        assert (await append) == Position(1, 102, 1)
        await client.append(b"after")
        assert log.tail == 2


@pytest.mark.usefixtures("impatient")
async def test_a_connection_on_which_nothing_is_heard_is_made_anew() -> None:
    async with events() as (fake, _, client):
        fake.faults.append(ignore)
        fake.resolve_faults.append(ignore)
        assert (await client.append(b"x")).position == 1
        assert fake.sequences == [1]


@pytest.mark.usefixtures("impatient")
async def test_a_slow_server_that_answers_probes_is_left_alone() -> None:
    async with events(append_timeout_s=0.5) as (fake, _, client):
        fake.faults.append(ignore)
        with pytest.raises(errors.AppendUnknown, match=r"no answer within 0\.5 s"):
            await client.append(b"x")
        assert fake.resolves > 1
        assert fake.appends == 1


async def test_a_slow_stream_is_left_for_another() -> None:
    """Records that are still being collected leave it, too: they must not wait for its answers."""
    async with events(streams=2, append_timeout_s=2.0) as (fake, _, client):
        await client.append(b"connected", stream=101)
        fake.faults.extend([ignore] * 4)
        stuck = [client.append_many([b"x"], stream=101) for _ in range(4)]
        waiting = asyncio.gather(*stuck, return_exceptions=True)
        await until(lambda: fake.appends == 5)
        await asyncio.sleep(streams.SLOW_S + 0.1)
        async with asyncio.timeout(1.0):
            positions = [await client.append(b"y") for _ in range(30)]
        assert {at.stream for at in positions} == {102}
        assert {type(result) for result in await waiting} == {errors.AppendUnknown}


async def test_a_stream_that_turns_slow_does_not_hold_up_what_comes_after() -> None:
    """Records are collected while batches are under way: not while those of a slow stream are."""
    async with events(streams=2, append_timeout_s=2.0) as (fake, log, client):
        await client.append(b"connected", stream=101)
        log.streams[0].hangs = True
        many = [asyncio.ensure_future(client.append_many([b"x"])) for _ in range(40)]
        await until(lambda: fake.appends == 41)
        async with asyncio.timeout(1.0):
            assert (await client.append(b"y")).stream == 102
        answered = [append for append in many if append.done()]
        assert 0 < len(answered) < 37
        for append in many:
            append.cancel()


async def test_at_once_prefers_a_double_to_waiting() -> None:
    async with events(retry="at-once") as (fake, log, client):
        fake.answer_faults.append(cut)
        assert (await client.append(b"x")).position == 2
        assert log.tail == 2
        assert fake.resolves == 0


async def test_at_once_does_not_call_it_a_failure_when_time_is_over() -> None:
    async with events(retry="at-once", append_timeout_s=0.3) as (fake, log, client):
        fake.answer_faults.append(sealing(log, cut))
        with pytest.raises(errors.AppendUnknown):
            await client.append(b"x")


async def test_settings_that_would_break_the_promise_are_refused() -> None:
    for wrong in ({"retry": "never"}, {"appends_in_flight_max": limits.APPENDS_IN_FLIGHT_MAX + 1}):
        with pytest.raises(errors.InvalidArgument):
            await connect("127.0.0.1:1", **wrong)


async def test_an_answer_that_is_lost_as_a_resolver_ends_gets_another_one() -> None:
    """A resolver's task may have ended in this turn of the loop without anyone having noticed."""
    async with events() as (_, _, log):
        await log.append(b"connect")
        found = log._parts.appender._delivery
        [stream] = found._targets.streams()
        carrier = found._carriers[stream.protocol]
        assert isinstance(carrier, OrderedCarrier)
        carrier.resolve(stream)  # finds nothing to do
        [ending] = carrier.tasks()
        seen: list[asyncio.Task[None]] = []

        def lose_an_answer() -> None:
            assert ending.done()
            carrier.resolve(stream)
            seen.extend(carrier.tasks())

        asyncio.get_running_loop().call_soon(lose_an_answer)
        await until(lambda: bool(seen))
        assert seen != [ending]
