"""Clients write blocks to replicas: the metadata repository is asked about those of readers, and
about those that are far ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from chained_node_rig import EPOCH, LOGLET, block, replica

from loomlog.core.chained.chain import Block, Replica, junk
from loomlog.core.chained.messages import (
    Answer,
    Beyond,
    EpochOver,
    HandedOut,
    Refused,
    Request,
    Seal,
    Stored,
    Ticket,
    Write,
    Written,
)
from loomlog.core.chained.replica import REACH, Put, Standing, decide
from loomlog.errors import Busy, InvalidArgument, LoomError, PermissionDenied, Unavailable
from loomlog.limits import POSITION_MAX
from loomlog.node.chained import client_writes
from loomlog.node.chained.client_writes import ClientWrites
from loomlog.storage.chained.block_table import MemoryBlocks
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import TicketProofs, sequencer_answer_to_wire
from loomlog.wire.permissions import BLOCK_WRITE

PROOFS = TicketProofs("secret")


class Session:
    def __init__(self, *, reader: bool) -> None:
        self.lesser = {(BLOCK_WRITE, LOGLET)} if reader else set()


class Peer:
    def __init__(self, *, reader: bool) -> None:
        self.session = Session(reader=reader)


class Rig:
    """One replica in memory, and a metadata repository that answers as a test wants."""

    def __init__(self, answer: Callable[[pb.Frame], pb.Frame] | None = None) -> None:
        self.blocks = MemoryBlocks()
        self.standing = Standing(EPOCH)
        self.answer = answer or self._unexpected
        self.asked: list[pb.Frame] = []
        self.writes = ClientWrites(self._ask, self._end_of, self._request)

    def _unexpected(self, frame: pb.Frame) -> pb.Frame:
        raise AssertionError(f"nobody should ask {frame}")

    def _ask(self, target: Replica, request: Request, done: Callable[[Answer], None]) -> None:
        answer, changes = decide(request, self.standing, self.blocks)
        for change in changes:
            if isinstance(change, Put):
                self.blocks.put(change.block)
            elif isinstance(change, Standing):
                self.standing = change
        done(answer)

    def _end_of(self, target: Replica) -> int:
        last = self.blocks.last()
        if target != replica():
            return 0
        return last.end if last else 1

    async def _request(self, frame: pb.Frame) -> pb.Frame:
        self.asked.append(frame)
        return self.answer(frame)

    async def write(self, wanted: Block, proof: bytes = b"", *, reader: bool = False) -> Answer:
        answers: list[Answer] = []
        peer: Any = Peer(reader=reader)
        later: Awaitable[Answer] | None
        later = self.writes.take(peer, replica(), Write(EPOCH, wanted, proof), answers.append)
        return answers[0] if later is None else await later


def handed_out(end: int) -> Callable[[pb.Frame], pb.Frame]:
    return lambda frame: pb.Frame(sequencer_answer=sequencer_answer_to_wire(Beyond(end)))


def refusing(error: LoomError) -> Callable[[pb.Frame], pb.Frame]:
    def answer(frame: pb.Frame) -> pb.Frame:
        raise error

    return answer


async def test_a_writer_within_reach_is_not_held_up() -> None:
    rig = Rig()
    assert await rig.write(block(1)) == Stored()
    assert await rig.write(junk(REACH - 10, 1)) == Stored()


async def test_a_block_far_ahead_is_confirmed_once() -> None:
    start = 1 << 41
    rig = Rig(handed_out(start + 2))
    assert await rig.write(block(start)) == Stored()
    assert await rig.write(block(start + 1)) == Stored()
    assert await rig.write(block(start + 2)) == Stored()  # handed out since
    assert len(rig.asked) == 1


@pytest.mark.parametrize("wanted", [block(3 * REACH), junk(POSITION_MAX, 1), block(POSITION_MAX)])
async def test_a_block_far_behind_the_end_of_the_log_is_refused(wanted: Block) -> None:
    rig = Rig(handed_out(5))
    for _ in range(3):
        assert isinstance(await rig.write(wanted), Refused)
    assert rig.blocks.last() is None


async def test_blocks_that_nobody_confirmed_do_not_extend_the_reach() -> None:
    rig = Rig(handed_out(5))
    assert await rig.write(block(REACH - 100)) == Stored()
    assert isinstance(await rig.write(block(REACH + 100)), Refused)


@pytest.mark.parametrize("error", [Unavailable("away"), TimeoutError()])
async def test_without_a_confirmation_it_is_refused(error: Any) -> None:
    rig = Rig(refusing(error))
    assert isinstance(await rig.write(block(2 * REACH)), Refused)


@pytest.mark.parametrize("error", [InvalidArgument("unknown"), PermissionDenied("no")])
async def test_an_older_metadata_repository_confirms_nothing(error: LoomError) -> None:
    rig = Rig(refusing(error))
    assert await rig.write(block(2 * REACH)) == Stored()
    assert await rig.write(junk(5, 1), reader=True) == Stored()
    assert isinstance(await rig.write(block(7), reader=True), Refused)  # it never could do that


async def test_replicas_that_are_not_here_are_not_remembered() -> None:
    rig = Rig()
    for birth in range(5):
        unknown = replica()._replace(birth=1000 + birth)
        peer: Any = Peer(reader=False)
        for position in (1, 2 * REACH):
            later = rig.writes.take(peer, unknown, Write(EPOCH, block(position)), lambda _: None)
            assert later is None  # the answer is that it is not here: nobody has to be asked
    assert rig.writes.reach == {}


async def test_a_replica_that_is_removed_while_a_block_is_confirmed_is_forgotten() -> None:
    def remove(frame: pb.Frame) -> pb.Frame:
        rig.writes.forget(replica())
        return handed_out(2 * REACH)(frame)

    rig = Rig(remove)
    assert await rig.write(block(2 * REACH)) == Stored()  # or whatever the replica answers
    assert rig.writes.reach == {}


async def test_what_a_reader_writes_is_not_stored() -> None:
    rig = Rig(refusing(Unavailable("position 5 is not handed out")))
    for wanted in (junk(5, 1), block(5), junk(0, 1), junk(POSITION_MAX, 9)):
        assert isinstance(await rig.write(wanted, reader=True), Refused)
    assert rig.blocks.last() is None
    assert {frame.decide_position.position for frame in rig.asked} == {5}


@pytest.mark.parametrize("decided", [junk(5, 1), junk(5, 3), block(5)])
async def test_a_reader_learns_what_was_decided(decided: Block) -> None:
    def decide_it(frame: pb.Frame) -> pb.Frame:
        assert (frame.decide_position.loglet_id, frame.decide_position.epoch) == (LOGLET, EPOCH)
        rig.blocks.put(decided)
        return pb.Frame(done=pb.Done())

    for wanted in (junk(5, 1), block(5)):
        rig = Rig(decide_it)
        expected = Stored() if wanted == decided else Written()
        assert await rig.write(wanted, reader=True) == expected
        assert await rig.write(wanted, reader=True) == expected
        assert len(rig.asked) == 1  # what is here is known


async def test_a_reader_learns_of_another_epoch() -> None:
    rig = Rig()
    rig._ask(replica(), Seal(EPOCH + 1), lambda answer: None)
    assert await rig.write(junk(5, 1), reader=True) == EpochOver(EPOCH + 1)


async def test_questions_of_readers_do_not_keep_writers_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_writes, "ASKING_MAX", 1)

    async def request(frame: pb.Frame) -> pb.Frame:
        if frame.HasField("decide_position"):
            asked.set()
            await asyncio.Event().wait()
        return handed_out(2 * REACH + 1)(frame)

    rig, asked = Rig(), asyncio.Event()
    rig.writes = ClientWrites(rig._ask, rig._end_of, request)
    reading = asyncio.create_task(rig.write(junk(5, 1), reader=True))
    await asked.wait()
    with pytest.raises(Busy):
        await rig.write(junk(5, 1), reader=True)
    assert await rig.write(block(2 * REACH)) == Stored()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_few_questions_are_asked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_writes, "ASKING_MAX", 0)
    with pytest.raises(Busy):
        await Rig().write(junk(5, 1), reader=True)


# ---- proofs of tickets


def proof_of(block: Block) -> bytes:
    return PROOFS.make(LOGLET, 0, EPOCH, block.first, block.count)


def proving(answer: Callable[[pb.Frame], pb.Frame] | None = None) -> Rig:
    rig = Rig(answer)
    rig.writes.proofs = PROOFS
    return rig


def sequencing(ticket: Ticket, decided: Block, rig: Callable[[], Rig]) -> Any:
    """Return answers of a metadata repository that knows of a ticket, and how it is decided."""

    def answer(frame: pb.Frame) -> pb.Frame:
        if frame.HasField("decide_position"):
            rig().blocks.put(decided)
            return pb.Frame(done=pb.Done())
        assert frame.sequencer_request.kind == pb.SequencerRequest.HOLDING
        return pb.Frame(sequencer_answer=sequencer_answer_to_wire(HandedOut(ticket)))

    return answer


@pytest.mark.parametrize("wanted", [block(5), block(5, count=9), block(9 * REACH), junk(5, 2)])
async def test_a_block_with_the_proof_of_its_ticket_is_just_stored(wanted: Block) -> None:
    rig = proving()
    assert await rig.write(wanted, proof_of(wanted)) == Stored()
    assert rig.blocks.last() == wanted.extent


@pytest.mark.parametrize("ticket", [block(5, count=2), block(4, count=3), block(5, count=4)])
async def test_a_block_with_the_proof_of_another_ticket_is_decided(ticket: Block) -> None:
    rig = proving(sequencing(Ticket(5, 3, EPOCH), junk(5, 3), lambda: rig))
    assert await rig.write(block(5, count=3), proof_of(ticket)) == Written()
    assert rig.blocks.last() == junk(5, 3).extent
    assert await rig.write(junk(5, 3), proof_of(ticket)) == Stored()  # it is there


async def test_a_proof_does_not_help_a_reader() -> None:
    rig = proving(refusing(Unavailable("not now")))
    assert isinstance(await rig.write(block(5), proof_of(block(5)), reader=True), Refused)
    assert rig.blocks.last() is None


async def test_nothing_can_be_proven_of_a_block_that_cannot_be() -> None:
    rig = proving()
    for wanted in (junk(0, 1), junk(5, 0), junk(POSITION_MAX, 9)):
        assert isinstance(await rig.write(wanted, proof_of(wanted)), Refused)
    assert rig.blocks.last() is None


async def test_a_writer_that_cannot_show_its_proof_is_asked_for_nothing() -> None:
    """The sequencer gives it to the node."""
    ticket = Ticket(5, 3, EPOCH, proof_of(block(5, count=3)))
    rig = proving(sequencing(ticket, junk(5, 3), lambda: rig))
    assert await rig.write(block(5, count=3)) == Stored()
    assert [frame.WhichOneof("body") for frame in rig.asked] == ["sequencer_request"]


@pytest.mark.parametrize("wanted", [block(5), block(5, count=4), junk(5, 3), block(6, count=2)])
async def test_the_ticket_of_such_a_writer_is_for_nothing_else(wanted: Block) -> None:
    ticket = Ticket(5, 3, EPOCH, proof_of(block(5, count=3)))
    decided = junk(wanted.first, 8 - wanted.first)
    rig = proving(sequencing(ticket, decided, lambda: rig))
    expected = Stored() if wanted == decided else Written()
    assert await rig.write(wanted) == expected
    assert rig.blocks.last() == decided.extent


@pytest.mark.parametrize("error", [Unavailable("away"), TimeoutError(), PermissionDenied("no")])
async def test_without_an_answer_nothing_is_stored_that_is_not_proven(error: Any) -> None:
    rig = proving(refusing(error))
    for wanted in (block(5), block(5, count=2)):
        assert isinstance(await rig.write(wanted), Refused)
    assert rig.blocks.last() is None


async def test_an_older_metadata_repository_proves_nothing() -> None:
    rig = Rig()
    assert await rig.write(block(5), b"of another one") == Stored()
