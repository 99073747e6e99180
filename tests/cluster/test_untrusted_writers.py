"""A `chained` log on servers that enforce permissions. Clients write to its replicas directly, but
cannot exceed their permissions: a writer can only write blocks for which it has the tickets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from chained_node_rig import block
from loglets_of import chains_of

from loomlog import columns
from loomlog.client.cluster import Cluster, connect
from loomlog.client.log import Log
from loomlog.client.loglets.chained import chains
from loomlog.client.loglets.chained.chains import ChainView
from loomlog.client.loglets.chained.fixed_append import append_fixed, reserve
from loomlog.client.loglets.chained.requests import resolve
from loomlog.client.loglets.contract import Fixed
from loomlog.core.chained.chain import Block, Replica, block_of, junk, placed
from loomlog.core.chained.messages import (
    Acknowledge,
    Answer,
    Done,
    Found,
    HandedOut,
    List,
    Listed,
    Missing,
    Next,
    Read,
    Refused,
    Request,
    Stored,
    Ticket,
    Write,
    Written,
)
from loomlog.core.chained.replica import REACH
from loomlog.core.requests import Ask, Service
from loomlog.errors import PermissionDenied
from loomlog.limits import POSITION_MAX
from loomlog.testing import LocalCluster
from loomlog.types import Glsn
from loomlog.wire import chained as codec
from loomlog.wire import loomlog_pb2 as pb

HOLE_S = 0.1


class Site:
    """A cluster that enforces permissions, with a chained log of two chains."""

    def __init__(self, local: LocalCluster, operator: Cluster) -> None:
        self.local = local
        self.operator = operator
        self.clients: list[Cluster] = []

    async def log(self, *allow: str) -> Log:
        """Return the log for a client with a token that allows this."""
        token = (await self.operator.create_token("user", allow)).text
        client = await connect(self.local.address, token=token, hole_timeout_s=HOLE_S)
        self.clients.append(client)
        return client.log("events")

    async def begin_epoch(self) -> None:
        """Restart the metadata repository: every leader begins with another epoch."""
        await self.local.stop_metadata(1)
        await self.local.start_metadata(1)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    local = LocalCluster(nodes=2)
    async with local as anybody, asyncio.timeout(60):
        await anybody.create_log("events", protocol="chained", streams=2, replicas=2)
        token = (await anybody.create_token("root", ["*:*", "*:loomlog.*"])).text
        operator = await connect(local.address, token=token)
        await operator.enforce_access(True)
        made = Site(local, operator)
        yield made
        for client in (*made.clients, operator):
            await client.close()


async def view_of(log: Log) -> ChainView:
    return await chains_of(log).learn((await log.describe()).active_streams[0].id)


async def ask(log: Log, replica: Replica, request: Request) -> Answer:
    return await chains_of(log).requests.ask_replica(await view_of(log), replica, request)


async def next_ticket(log: Log, count: int, *, proves: bool = True) -> Ticket:
    view = await view_of(log)
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    question = Ask(Service.SEQUENCER, Next(view.epoch, count, proves=proves))
    chains_of(log).requests.ask(view, question, partial(resolve, answered))
    answer = await answered
    assert isinstance(answer, HandedOut)
    return answer.ticket


async def write(log: Log, replica: Replica, wanted: Block, proof: bytes = b"") -> Answer:
    return await ask(log, replica, Write((await view_of(log)).epoch, wanted, proof))


async def write_everywhere(log: Log, wanted: Block, proof: bytes = b"") -> list[Answer]:
    replicas = (await view_of(log)).projection.replicas
    return [await write(log, replica, wanted, proof) for replica in replicas]


async def leave_half_way(log: Log, value: bytes) -> None:
    """Write a block to the head of its chain only."""
    ticket, view = await next_ticket(log, 1), await view_of(log)
    batch = columns.encode([value], timestamps_us=1, producer_id=7, sequence=1)
    half = placed(block_of(batch), view.stream, ticket.epoch, ticket.first)
    head = view.projection.chain_of(ticket.first)[0]
    assert await write(log, head, half, ticket.proof) == Stored()


async def reserve_place(log: Log, count: int = 1) -> Fixed:
    stream = (await log.describe()).active_streams[0].id
    return await reserve(chains_of(log), stream, count)


async def blocks_at(log: Log, position: Glsn) -> list[Answer]:
    """Return what each replica of the chain of a position has there."""
    view = await view_of(log)
    chain = view.projection.chain_of(position)
    return [await ask(log, replica, Read(view.epoch, position)) for replica in chain]


async def values(log: Log, last: Glsn) -> list[bytes]:
    return [bytes(entry.value) async for entry in log.subscribe(1, last)]


async def test_a_reader_adds_nothing_behind_what_was_handed_out(site: Site) -> None:
    writer, reader = await site.log("append:events"), await site.log("read:events")
    last = (await writer.append_many([b"one", b"two", b"three"]))[-1].position
    for first, count in ((last + 1, 1), (last + 7, 1000), (1 << 40, 1), (POSITION_MAX, 1)):
        for answer in await write_everywhere(reader, junk(first, count)):
            assert isinstance(answer, Refused)
    assert all(isinstance(a, Refused) for a in await write_everywhere(reader, block(last + 1)))
    await site.begin_epoch()
    assert (await writer.append(b"four")).position == last + 1
    assert await reader.tail() == last + 1
    assert await values(reader, last + 1) == [b"one", b"two", b"three", b"four"]


async def test_a_reader_does_not_tell_what_was_acknowledged(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas would say that a block is lost which was only in flight."""
    monkeypatch.setattr(chains, "TELL_S", 3600.0)
    both, reader = await site.log("append:events", "read:events"), await site.log("read:events")
    first = (await both.append(b"one")).position
    view = await view_of(reader)
    head = view.projection.chain_of(first)[0]
    note = Acknowledge(view.epoch, (first,))
    with pytest.raises(PermissionDenied):
        await ask(reader, head, note)
    there = await ask(reader, head, Read(view.epoch, first))
    assert isinstance(there, Found)
    again = there.block._replace(acknowledged=(first,))
    assert await write(reader, head, again) == Stored()  # it is there; nothing is written
    told = List(view.epoch, 1, 9, with_acknowledged=True)
    assert await ask(reader, head, told) == Listed([again.extent], more=False)
    assert await ask(both, head, note) == Done()


async def test_a_reader_hides_no_entry_behind_junk(site: Site) -> None:
    """A block of five positions lies on one chain. On the other one, nothing is in their places."""
    writer, reader = await site.log("append:events"), await site.log("read:events")
    many = await writer.append_many([b"%d" % number for number in range(5)])
    first, last = many[0].position, many[-1].position
    hole = (await reserve_place(writer)).above + 1
    after = (await writer.append(b"after")).position
    for answer in await write_everywhere(reader, junk(first + 1, 1)):
        assert isinstance(answer, Refused | Written)
    await write_everywhere(reader, junk(hole, 1000))
    assert (await reader.read(first + 1)).value == b"1"
    await site.begin_epoch()
    await write_everywhere(reader, junk(hole, 1000))
    assert await values(reader, after) == [*(b"%d" % number for number in range(5)), b"after"]
    assert hole == last + 1


async def test_a_reader_writes_nothing_to_a_tail_that_its_head_does_not_have(site: Site) -> None:
    writer, reader = await site.log("append:events"), await site.log("read:events")
    both = await site.log("append:events", "read:events")
    fixed = await reserve_place(writer)
    place = fixed.above + 1
    tail = (await view_of(reader)).projection.chain_of(place)[-1]
    assert await write(reader, tail, junk(place, 1)) == Stored()
    found = await blocks_at(reader, place)
    assert found == [Found(junk(place, 1))] * 2
    batch = columns.encode([b"late"], timestamps_us=1, producer_id=7, sequence=1)
    assert await append_fixed(chains_of(both), fixed, batch) == 0


@pytest.mark.parametrize("count", [1, 5])
async def test_a_reader_gets_past_the_hole_of_a_dead_writer(site: Site, count: int) -> None:
    writer, reader = await site.log("append:events"), await site.log("read:events")
    await writer.append(b"before")
    await reserve_place(writer, count)
    last = (await writer.append(b"after")).position
    denials = (await site.operator.status()).denials
    assert await values(reader, last) == [b"before", b"after"]
    assert (await site.operator.status()).denials == denials


@pytest.mark.parametrize("restart", [False, True])
async def test_a_reader_gets_a_block_that_its_writer_left_half_way(
    site: Site, restart: bool
) -> None:
    """The block is on the head of its chain and not at the tail."""
    writer, reader = await site.log("append:events"), await site.log("read:events")
    await writer.append(b"before")
    await leave_half_way(writer, b"half")
    if restart:
        await site.begin_epoch()
    last = (await writer.append(b"after")).position
    assert await values(reader, last) == [b"before", b"half", b"after"]


async def test_a_writer_does_not_end_a_log_with_a_block_far_ahead(site: Site) -> None:
    writer = await site.log("append:events", "read:events")
    last = (await writer.append(b"one")).position
    for first in (last + 2 * REACH, POSITION_MAX):
        for wanted in (block(first), junk(first, 1)):
            assert all(isinstance(a, Refused) for a in await write_everywhere(writer, wanted))
    await site.begin_epoch()
    assert (await writer.append(b"two")).position == last + 1


async def at_other_chain(log: Log, position: Glsn) -> list[Answer]:
    """Return what the replicas of the chain behind that of a position have there."""
    view = await view_of(log)
    chain = view.projection.chain_of(position + 1)
    return [await ask(log, replica, Read(view.epoch, position)) for replica in chain]


async def test_a_writer_does_not_overlap_the_blocks_of_others(site: Site) -> None:
    """A block of five positions lies on one chain. On the other one nothing is in their places, and
    a block there would hide it, or show two values in one place."""
    writer = await site.log("append:events")
    attacker = await site.log("append:events", "read:events")
    many = await writer.append_many([b"%d" % number for number in range(5)])
    first, last = many[0].position, many[-1].position
    for wanted in (block(first + 1), block(first + 1, count=3), junk(first + 1, 1)):
        for answer in await write_everywhere(attacker, wanted):
            assert isinstance(answer, Refused | Written)
    assert all(isinstance(a, Missing) for a in await at_other_chain(attacker, first))
    await site.begin_epoch()
    after = (await writer.append(b"after")).position
    assert after == last + 1
    assert await values(attacker, after) == [*(b"%d" % number for number in range(5)), b"after"]


@pytest.mark.parametrize("count", [1, 3, 1000])
async def test_a_writer_stores_nothing_but_what_its_ticket_is_for(site: Site, count: int) -> None:
    """A longer block would cover tickets of others, and a shorter one leaves a place."""
    writer = await site.log("append:events")
    attacker = await site.log("append:events", "read:events")
    own = await next_ticket(attacker, 2)
    other = await reserve_place(writer, 5)
    for wanted in (block(own.first, count=count), junk(own.first, count)):
        for answer in await write_everywhere(attacker, wanted, own.proof):
            assert isinstance(answer, Refused | Written)
    for answer in await write_everywhere(attacker, block(other.above + 1, count=2), own.proof):
        assert isinstance(answer, Refused | Written)
    after = (await writer.append(b"after")).position
    assert after == other.above + 6
    assert await values(attacker, after) == [b"after"]


async def test_a_writer_writes_nothing_in_the_place_of_another(site: Site) -> None:
    """Not even on a replica behind the head, which takes what the head has. The place is decided,
    as for a reader."""
    writer = await site.log("append:events")
    attacker = await site.log("append:events", "read:events")
    place, mine = (await reserve_place(writer)).above + 1, await next_ticket(attacker, 1)
    tail = (await view_of(attacker)).projection.chain_of(place)[-1]
    assert await write(attacker, tail, block(place), mine.proof) == Written()
    assert await blocks_at(attacker, place) == [Found(junk(place, 1))] * 2


async def test_a_block_is_stored_on_the_chain_of_its_address_only(site: Site) -> None:
    """On another chain it would be in the way of those who fill its place, below a later epoch."""
    writer = await site.log("append:events")
    attacker = await site.log("append:events", "read:events")
    own = await next_ticket(attacker, 2)
    for replica in (await view_of(attacker)).projection.chain_of(own.first + 1):
        answer = await write(attacker, replica, block(own.first, count=2), own.proof)
        assert isinstance(answer, Refused | Written)
    assert all(isinstance(a, Missing) for a in await at_other_chain(attacker, own.first))
    await site.begin_epoch()
    after = (await writer.append(b"after")).position
    assert await values(attacker, after) == [b"after"]


async def test_a_block_with_its_ticket_is_stored_by_whoever_may_append(site: Site) -> None:
    writer = await site.log("append:events", "read:events")
    ticket = await next_ticket(writer, 2)
    wanted = block(ticket.first, count=2)
    chain = (await view_of(writer)).projection.chain_of(ticket.first)
    for replica in chain:
        assert await write(writer, replica, wanted, ticket.proof) == Stored()
    assert await blocks_at(writer, ticket.first) == [Found(wanted)] * 2


async def test_a_client_of_the_release_before_appends_with_tickets_alone(site: Site) -> None:
    """Without proofs, others can take the places of its tickets, and no more than these."""
    old = await site.log("append:events", "read:events")
    attacker = await site.log("append:events", "read:events")
    tickets = [await next_ticket(old, 2, proves=False) for _ in range(3)]
    assert not any(ticket.proof for ticket in tickets)
    for ticket in tickets[:2]:
        for replica in (await view_of(old)).projection.chain_of(ticket.first):
            assert await write(old, replica, block(ticket.first, count=2)) == Stored()
    second = tickets[2].first
    for wanted in (block(second, count=1), block(second, count=3), block(second + 1, count=1)):
        for answer in await write_everywhere(attacker, wanted):
            assert isinstance(answer, Refused | Written)


async def test_a_client_of_the_release_before_appends_as_it_did(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_wire = codec.sequencer_request_to_wire

    def older(loglet: int, request: Request, into: pb.SequencerRequest) -> pb.SequencerRequest:
        message = to_wire(loglet, request, into)
        message.ClearField("proves")
        return message

    monkeypatch.setattr(codec, "sequencer_request_to_wire", older)
    old = await site.log("append:events", "read:events")
    placed = [(await old.append(b"%d" % number)).position for number in range(3)]
    placed += [each.position for each in await old.append_many([b"3", b"4"])]
    assert placed == [1, 2, 3, 4, 5]  # nothing was overtaken
    await site.begin_epoch()
    assert (await old.append(b"5")).position == 6
    assert await values(old, 6) == [b"%d" % number for number in range(6)]


async def test_a_writer_that_reads_completes_and_fills_what_others_left(site: Site) -> None:
    writer = await site.log("append:events")
    reader = await site.log("append:events", "read:events")
    await reserve_place(writer, 3)
    await leave_half_way(writer, b"half")
    last = (await writer.append(b"after")).position
    denials = (await site.operator.status()).denials
    assert await values(reader, last) == [b"half", b"after"]
    assert (await site.operator.status()).denials == denials


async def test_reserved_places_are_written_by_who_reserved_them(site: Site) -> None:
    writer = await site.log("append:events", "read:events")
    fixed = await reserve_place(writer)
    batch = columns.encode([b"mine"], timestamps_us=1, producer_id=7, sequence=1)
    for _ in range(2):
        assert await append_fixed(chains_of(writer), fixed, bytearray(batch)) == fixed.above + 1
    assert await values(writer, fixed.above + 1) == [b"mine"]


async def test_transactions_decide_with_the_proof_of_their_cell(site: Site) -> None:
    async with site.operator.transaction() as first:  # makes the log of decisions
        first.append("events", b"one")
    decisions = ("append:loomlog.transactions", "read:loomlog.transactions")
    log = await site.log("append:events", "read:events", *decisions)
    async with site.clients[-1].transaction() as both:
        both.append("events", b"two")
    assert await values(log, both.positions["events"][0].position) == [b"one", b"two"]
    assert both.positions["events"][0].position == 2  # at the first attempt


async def test_appends_continue_when_rules_begin_and_end(site: Site) -> None:
    writer = await site.log("append:events", "read:events")
    placed = []
    for enforced in (True, False, True):
        await site.operator.enforce_access(enforced)
        placed += [(await writer.append(b"x")).position for _ in range(2)]
        other = await site.log("append:events", "read:events")  # with connections of its own
        placed.append((await other.append(b"x")).position)
    assert placed == list(range(1, 10))  # nothing was overtaken
