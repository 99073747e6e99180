"""The promises of a quorum round log beyond the port: on real disks, over real connections."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
from quorum_rig import QuorumRig

from loomlog.core.quorum.member import Configuration
from loomlog.errors import LoomError, NotLeader
from loomlog.metadata.rounds.quorum_round_log import QuorumRoundLog
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Handler

WAIT_S = 20.0


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[QuorumRig]:
    rig = QuorumRig(tmp_path)
    for member in rig.ids:
        await rig.start(member)
    yield rig
    await rig.close()


class Values:
    """The records that were appended to a log, and are done; also its snapshot."""

    def __init__(self, log: QuorumRoundLog) -> None:
        self.log = log
        self.done: list[bytes] = log.read()
        self.errors: list[BaseException] = []
        self._changed = asyncio.Event()
        log.begin(lambda: self.done)

    def append(self, record: bytes) -> None:
        def done(error: BaseException | None) -> None:
            if error is None:
                self.done.append(record)
            else:
                self.errors.append(error)
            self._changed.set()

        self.log.append(self.log.epoch, record, done)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def append_and_wait(self, *records: bytes) -> None:
        for record in records:
            self.append(record)
        await self.until(lambda: self.done[-1:] == [records[-1]])


async def come_true(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.01)


async def all_follow(log: QuorumRoundLog) -> None:
    await come_true(lambda: all(s.reachable and not s.lag for s in log.standing()))


async def test_a_member_that_is_away_delays_nobody_and_is_caught_up(rig: QuorumRig) -> None:
    values = Values(await rig.lead(1))
    await rig.stop(3)
    records = [b"%d" % number * 20 for number in range(100)]  # more than is kept for it
    await values.append_and_wait(*records)
    assert {s.member for s in values.log.standing() if s.lag} == {3}
    await rig.start(3)
    await all_follow(values.log)
    values.log.close()
    await rig.stop(1)
    await rig.stop(2)
    await rig.start(1)  # it knows no more than 3 does
    assert Values(await rig.lead(3)).done == records


async def test_without_a_majority_nothing_is_done_until_there_is_one(rig: QuorumRig) -> None:
    values = Values(await rig.lead(1))
    await rig.stop(2)
    await rig.stop(3)
    values.append(b"waits")
    confirming = asyncio.ensure_future(values.log.confirm())
    await come_true(lambda: rig.members[1].state.last_index == 2)  # the takeover was 1
    assert not values.done
    assert not confirming.done()
    await rig.start(2)
    await values.until(lambda: values.done == [b"waits"])
    await confirming


async def test_a_takeover_waits_for_a_majority(rig: QuorumRig) -> None:
    await rig.stop(2)
    await rig.stop(3)
    opening = asyncio.ensure_future(rig.lead(1))
    await come_true(lambda: rig.members[1].leader.epoch == 1)
    assert not opening.done()
    await rig.start(3)
    assert (await opening).read() == []
    giving_up = asyncio.ensure_future(rig.lead(1))
    await rig.stop(3)
    giving_up.cancel()
    await asyncio.gather(giving_up, return_exceptions=True)


async def test_a_leader_that_was_replaced_learns_it_and_can_do_nothing(rig: QuorumRig) -> None:
    old = Values(await rig.lead(1))
    await old.append_and_wait(b"by the old one")
    new = Values(await rig.lead(2))
    async with asyncio.timeout(WAIT_S):
        error = await old.log.lost
    assert "epoch 1 is over" in str(error)
    assert isinstance(error, NotLeader)
    assert error.leader == rig.addresses[2]
    with pytest.raises(NotLeader):
        old.append(b"too late")
    with pytest.raises(NotLeader):
        await old.log.confirm()
    await new.append_and_wait(b"by the new one")
    assert new.done == [b"by the old one", b"by the new one"]
    await new.log.confirm()
    assert not new.log.lost.done()


async def test_a_leader_learns_that_it_was_replaced_from_any_member(rig: QuorumRig) -> None:
    """The old leader's own member was not asked by the new one."""
    old = Values(await rig.lead(1))
    await come_true(lambda: rig.members[1].leader.epoch == 1)  # a majority was enough to lead
    configuration = Configuration(frozenset({2, 3}))
    await rig.lead(2, configuration)
    assert rig.members[1].leader.epoch == 1
    if not old.log.lost.done():  # else who was sealed by the new one first has said so
        old.append(b"too late")
        await old.until(lambda: bool(old.errors))
        assert isinstance(old.errors[0], NotLeader)
    assert old.log.lost.done()
    with pytest.raises(NotLeader):
        old.append(b"later still")


async def test_closing_a_log_is_not_losing_it(rig: QuorumRig) -> None:
    values = Values(await rig.lead(1))
    values.append(b"under way")
    values.log.close()
    assert isinstance(values.errors[0], NotLeader)
    assert not values.log.lost.done()
    with pytest.raises(NotLeader):
        values.append(b"too late")


def _has_one_file(directory: Path) -> bool:
    return len(list(directory.glob("rounds-*"))) == 1


async def test_old_records_are_dropped_everywhere(rig: QuorumRig) -> None:
    log = await rig.lead(1)
    values = Values(log)
    log.begin(lambda: values.done[-1:])
    for number in range(300):
        await values.append_and_wait(b"%d" % number)
    await all_follow(log)
    for member in rig.ids:
        await come_true(partial(_has_one_file, rig.directory(member)))  # the one before goes last
        (path,) = rig.directory(member).glob("rounds-*")
        assert path.stat().st_size < 16 * 1024
    found = Values(await rig.lead(2)).done
    assert found == [b"%d" % number for number in range(300 - len(found), 300)]


async def test_a_member_that_lost_its_disk_is_filled_and_counts_again(rig: QuorumRig) -> None:
    values = Values(await rig.lead(1))
    await values.append_and_wait(b"before")
    await rig.stop(2)
    shutil.rmtree(rig.directory(2))
    await rig.start(2)
    was_lost = rig.members[2].state.lost
    assert was_lost
    await all_follow(values.log)
    await values.append_and_wait(b"after")
    assert not rig.members[2].state.lost
    values.log.close()
    await rig.stop(1)
    assert Values(await rig.lead(3)).done == [b"before", b"after"]


async def test_a_member_that_lost_its_disk_does_not_make_a_majority(rig: QuorumRig) -> None:
    await rig.stop(3)
    values = Values(await rig.lead(1))
    await values.append_and_wait(b"known to 1 and 2")
    values.log.close()
    await rig.stop(1)
    await rig.stop(2)
    shutil.rmtree(rig.directory(2))
    await rig.start(2)
    await rig.start(3)
    opening = asyncio.ensure_future(rig.lead(3))
    await come_true(lambda: all(rig.members[m].leader.epoch == 2 for m in (2, 3)))
    assert not opening.done()
    await rig.start(1)
    assert (await opening).read() == [b"known to 1 and 2"]


async def test_members_change_over_two_majorities(rig: QuorumRig) -> None:
    values = Values(await rig.lead(1))
    await values.append_and_wait(b"of 1, 2 and 3")
    await rig.start(4)
    before, after = frozenset({1, 2, 3}), frozenset({2, 3, 4})
    values = Values(await rig.lead(2, Configuration(after, before)))
    await values.append_and_wait(b"of both")
    await all_follow(values.log)
    await rig.stop(1)
    await rig.stop(2)
    values = Values(await rig.lead(4, Configuration(after)))
    assert values.done == [b"of 1, 2 and 3", b"of both"]


async def test_a_leader_may_be_alone(tmp_path: Path) -> None:
    rig = QuorumRig(tmp_path, members=1)
    values = Values(await rig.open())
    await values.append_and_wait(b"alone")
    await values.log.confirm()
    assert Values(await rig.open()).done == [b"alone"]
    await rig.close()


async def test_members_hear_what_their_leader_tells_them(rig: QuorumRig) -> None:
    log = await rig.lead(1)
    await all_follow(log)
    log.tell(pb.Frame(leader_beat=pb.LeaderBeat(epoch=1, leader=1)))
    await come_true(lambda: bool(rig.told[2] and rig.told[3]))
    assert rig.told[2][0].leader_beat.epoch == 1
    assert not rig.told[1]


async def test_a_way_to_a_member_that_fails_unexpectedly_ends_the_log(
    rig: QuorumRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the member would seem to be away, forever."""

    async def fail(address: str, handler: Handler) -> Connection:
        raise ZeroDivisionError

    with pytest.raises(LoomError, match="internal error"):
        await rig.lead(1, connect=fail)
    assert any(record.exc_info for record in caplog.records)
