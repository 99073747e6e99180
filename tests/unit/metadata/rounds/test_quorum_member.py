"""A member of the quorum round log on a disk: its writes, answers and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hand_worker import HandWorker

from loomlog.core.quorum.leader import Append, Install, Message, Read, Seal
from loomlog.core.quorum.member import NOBODY, Leader
from loomlog.errors import (
    Corrupt,
    InvalidArgument,
    LoomError,
    NotLeader,
    Unavailable,
    VersionMismatch,
)
from loomlog.metadata.rounds.quorum_member import QuorumMember, frame_of, records_in
from loomlog.storage.disk import RealFiles
from loomlog.wire import loomlog_pb2 as pb

ONE = Leader(1, 1, "one:7400")
TWO = Leader(2, 2, "two:7400")
Answers = list[tuple[pb.Frame | LoomError, Sequence[bytes]]]


class MemberRig:
    """A member whose disk works when the test lets it."""

    def __init__(self, directory: Path, *, create: bool = False, member_id: int = 1) -> None:
        self.worker = HandWorker()
        self._number = member_id
        self.member = QuorumMember.open(
            member_id, RealFiles(), str(directory), self.worker, create=create, file_bytes=4096
        )

    def ask(self, message: Message, leader: Leader = ONE, whom: int | None = None) -> Answers:
        """Return the list that its answers are added to."""
        answers: Answers = []
        frame, records = frame_of(message, leader, whom or self._number)
        payload = memoryview(b"".join(records))
        self.member.take(frame, payload, lambda reply, records: answers.append((reply, records)))
        return answers

    def work(self) -> None:
        while self.worker.jobs:
            steps, finished = self.worker.jobs.popleft()
            try:
                for step in steps:
                    step()
            except LoomError as error:
                finished(error)
            else:
                finished(None)

    def answer(self, message: Message, leader: Leader = ONE) -> pb.Frame:
        answers = self.ask(message, leader)
        self.work()
        ((reply, _),) = answers
        if isinstance(reply, LoomError):
            raise reply
        return reply

    def stored(self, message: Message, leader: Leader = ONE) -> int:
        return self.answer(message, leader).round_stored.last_index

    def sealed(self, leader: Leader = ONE) -> tuple[int, int, bool]:
        found = self.answer(Seal(), leader).round_sealed
        return found.file_epoch, found.last_index, found.lost

    def records(self, leader: Leader = ONE) -> list[bytes]:
        answers = self.ask(Read(), leader)
        self.work()
        ((reply, records),) = answers
        assert isinstance(reply, pb.Frame)
        return records_in(reply.round_tail, memoryview(b"".join(records)))

    def close(self) -> None:
        self.member.close()


def filled(directory: Path) -> MemberRig:
    """Return a member with a snapshot of two records at index 10, and the records 11 and 12."""
    rig = MemberRig(directory, create=True)
    assert rig.sealed() == (0, 0, False)
    assert rig.stored(Install(10, [b"a", b"b"])) == 10
    assert rig.stored(Append(11, [b"c"])) == 11
    assert rig.stored(Append(12, [b"d"])) == 12
    return rig


async def test_what_was_stored_is_found_again(tmp_path: Path) -> None:
    filled(tmp_path).close()
    rig = MemberRig(tmp_path)
    assert rig.member.leader == ONE
    assert rig.sealed(TWO) == (1, 12, False)
    assert rig.records(TWO) == [b"a", b"b", b"c", b"d"]
    rig.close()


async def test_a_promise_outlives_a_restart(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    rig.sealed(TWO)
    rig.close()
    rig = MemberRig(tmp_path)
    assert rig.member.leader == TWO
    for message in (Seal(), Read(), Append(13, [b"e"]), Install(13, [b"e"])):
        with pytest.raises(NotLeader, match="two:7400"):
            rig.answer(message)
    rig.close()


async def test_what_is_meant_for_another_member_is_refused(tmp_path: Path) -> None:
    rig = MemberRig(tmp_path, create=True, member_id=2)
    ((reply, _),) = rig.ask(Seal(), whom=3)
    assert isinstance(reply, InvalidArgument)
    assert rig.member.leader == NOBODY
    rig.close()


async def test_nothing_is_answered_before_it_is_durable(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    sealed = rig.ask(Seal(), TWO)
    assert not sealed
    assert rig.member.leader == ONE
    rig.worker.crash_after(1)  # written, not yet under its name
    rig.close()
    rig = MemberRig(tmp_path)
    assert rig.member.leader == ONE
    appended = rig.ask(Append(13, [b"e"]))
    rig.worker.crash_after(1)  # written, not synced
    assert not appended
    rig.close()


async def test_appends_that_wait_become_one_job(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    answers = [rig.ask(Append(13 + number, [b"%d" % number])) for number in range(5)]
    assert len(rig.worker.jobs) == 1
    rig.worker.work()
    assert [len(answer) for answer in answers] == [1, 0, 0, 0, 0]
    rig.worker.work()
    assert not rig.worker.jobs
    assert [reply.round_stored.last_index for ((reply, _),) in answers] == [13, 14, 15, 16, 17]  # type: ignore[union-attr]
    assert rig.records() == [b"a", b"b", b"c", b"d", b"0", b"1", b"2", b"3", b"4"]
    rig.close()


async def test_a_question_waits_for_what_came_before_it(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    appended, asked = rig.ask(Append(13, [b"e"])), rig.ask(Append(14, []))
    assert not asked
    rig.worker.work()
    assert appended
    assert asked
    rig.close()


async def test_what_does_not_follow_on_is_not_stored(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    assert rig.stored(Append(14, [b"f"])) == 12
    rig.sealed(TWO)
    assert rig.stored(Append(13, [b"e"]), TWO) == 0
    assert rig.records(TWO) == [b"a", b"b", b"c", b"d"]
    rig.close()


async def test_who_watches_is_told_of_newer_leaders(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    seen: list[Leader] = []
    unwatch = rig.member.watch(seen.append)
    rig.sealed()
    rig.sealed(TWO)
    assert seen == [TWO]
    unwatch()
    rig.sealed(Leader(3, 3, "three:7400"))
    assert seen == [TWO]
    rig.close()


@pytest.mark.parametrize("steps", range(5))
async def test_a_crash_at_any_step_of_an_installation_keeps_the_old_or_the_new(
    tmp_path: Path, steps: int
) -> None:
    rig = filled(tmp_path)
    rig.ask(Install(20, [b"new"]))
    assert len(rig.worker.jobs[0][0]) == 4
    rig.worker.crash_after(steps)
    rig.close()
    rig = MemberRig(tmp_path)
    found = rig.sealed()
    assert found == ((1, 12, False) if steps < 3 else (1, 20, False))
    assert rig.records() == ([b"a", b"b", b"c", b"d"] if steps < 3 else [b"new"])
    assert len(list(tmp_path.glob("rounds-*"))) == 1
    rig.close()


async def test_a_disk_that_fails_ends_it(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    rig.ask(Append(13, [b"e"]))
    rig.worker.fail_next(OSError(28, "No space left on device"))
    assert "No space left" in str(rig.member.failed.result())
    with pytest.raises(Unavailable, match="No space left"):
        rig.answer(Append(13, [b"e"]))
    rig.close()


# ---- what was lost


def is_lost(directory: Path) -> bool:
    rig = MemberRig(directory)
    lost = rig.sealed(TWO)[2]
    with pytest.raises(NotLeader):  # it keeps its new promise all the same
        rig.sealed(ONE)
    rig.close()
    assert (MemberRig(directory).member.state.lost, MemberRig(directory).member.leader) == (
        lost,
        TWO,
    )
    return lost


async def test_a_member_that_finds_nothing_is_lost_unless_it_is_new(tmp_path: Path) -> None:
    assert is_lost(tmp_path / "elsewhere")
    rig = MemberRig(tmp_path / "new", create=True)
    assert rig.sealed() == (0, 0, False)
    rig.close()


async def test_a_new_member_that_was_started_before_is_not_begun_again(tmp_path: Path) -> None:
    filled(tmp_path).close()
    rig = MemberRig(tmp_path, create=True)
    assert rig.sealed() == (1, 12, False)
    rig.close()


async def test_rounds_that_the_store_does_not_know_of_are_not_overwritten(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / "promise").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(Corrupt, match=r"4 of them.*does not know this member"):
        MemberRig(tmp_path, create=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


async def test_a_first_start_that_was_cut_short_is_repeated(tmp_path: Path) -> None:
    MemberRig(tmp_path, create=True).close()
    (tmp_path / "promise").unlink()
    rig = MemberRig(tmp_path, create=True)
    assert rig.sealed() == (0, 0, False)
    rig.close()


async def test_a_member_without_its_promise_or_its_file_is_lost(tmp_path: Path) -> None:
    filled(tmp_path / "1").close()
    (tmp_path / "1" / "promise").unlink()
    assert is_lost(tmp_path / "1")
    filled(tmp_path / "2").close()
    (tmp_path / "2" / "rounds-00000002.log").unlink()
    assert is_lost(tmp_path / "2")


@pytest.mark.parametrize("what", [b"a", b"c"])
async def test_a_record_that_was_durable_and_is_broken_makes_it_lost(
    tmp_path: Path, what: bytes
) -> None:
    filled(tmp_path).close()
    path = tmp_path / "rounds-00000002.log"
    content = bytearray(path.read_bytes())
    content[content.index(what + b"\0\0\0")] ^= 1
    path.write_bytes(content)
    assert is_lost(tmp_path)


async def test_a_damaged_promise_makes_it_lost(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = tmp_path / "promise"
    whole = path.read_bytes()
    for at in (0, 9, 17, 25, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        assert MemberRig(tmp_path).member.state.lost, at
    path.write_bytes(b"")
    assert MemberRig(tmp_path).member.state == (NOBODY, 0, 0, True)


@pytest.mark.parametrize("what", [b"c", b"d"])
async def test_damage_that_is_found_while_it_runs_makes_it_lost(
    tmp_path: Path, what: bytes
) -> None:
    rig = filled(tmp_path)
    path = tmp_path / "rounds-00000002.log"
    content = bytearray(path.read_bytes())
    content[content.index(what + b"\0\0\0")] ^= 1
    path.write_bytes(content)
    with pytest.raises(Unavailable, match="cannot be read"):
        rig.answer(Read())
    assert rig.sealed()[2]
    rig.close()


async def test_a_lost_member_is_whole_again_when_it_is_installed(tmp_path: Path) -> None:
    rig = MemberRig(tmp_path)
    assert rig.sealed() == (0, 0, True)
    assert rig.stored(Append(1, [b"x"])) == 0
    assert rig.stored(Install(30, [b"all"])) == 30
    assert rig.stored(Append(31, [b"x"])) == 31
    rig.close()
    rig = MemberRig(tmp_path)
    assert rig.sealed() == (1, 31, False)
    assert rig.records() == [b"all", b"x"]
    rig.close()


async def test_a_file_of_an_epoch_that_was_never_promised_makes_it_lost(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    promise = (tmp_path / "promise").read_bytes()
    rig.sealed(TWO)
    rig.stored(Install(20, [b"new"]), TWO)
    rig.close()
    (tmp_path / "promise").write_bytes(promise)  # an old copy was put back
    assert MemberRig(tmp_path).member.state.lost


async def test_a_directory_of_another_member_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with pytest.raises(InvalidArgument, match="member 1"):
        MemberRig(tmp_path, member_id=2)


async def test_a_newer_format_is_refused_and_not_lost(tmp_path: Path) -> None:
    from crc32c import crc32c

    filled(tmp_path).close()
    path = tmp_path / "promise"
    content = bytearray(path.read_bytes())
    content[12] = 99
    content[8:12] = crc32c(bytes(content[12:])).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(VersionMismatch, match="99"):
        MemberRig(tmp_path)
