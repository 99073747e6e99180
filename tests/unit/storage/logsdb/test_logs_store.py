"""The store of logs, on RocksDB and in memory: the same questions, the same answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
from copyset_node import CopysetNode
from logsdb_rig import COPYSET, LOG, ME, OTHER, SMALL, LogsRig, record
from memory_tables import MemoryLogs

from loomlog.batch import build
from loomlog.core.copyset.messages import (
    Amend,
    Clean,
    Delivered,
    Digest,
    Digested,
    Done,
    EpochEnd,
    EpochState,
    Forget,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Preempted,
    Purge,
    Read,
    Release,
    Seal,
    SealedAt,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.record import LSN_MAX, Kind, Record, make
from loomlog.core.copyset.storage import LogStanding, Put
from loomlog.errors import Corrupt
from loomlog.limits import MIB
from loomlog.storage.logsdb.recent import RecentBatch, RecentBatches
from loomlog.storage.logsdb.rocks_logs import RocksLogs
from loomlog.storage.logsdb.table import LogsTable, StoredLog


@pytest.fixture(params=["rocks", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogsTable]:
    opened: LogsTable
    opened = RocksLogs(str(tmp_path / "db"), 0, SMALL) if request.param == "rocks" else MemoryLogs()
    yield opened
    opened.close()


@pytest.fixture
def rig(table: LogsTable) -> LogsRig:
    return LogsRig(table)


# ---- records


def test_what_is_stored_is_read_in_order(rig: LogsRig) -> None:
    stored = [record(offset, 2) for offset in (5, 1, 9, 3, 7)]
    rig.put(*stored)
    assert rig.read() == sorted(stored)
    assert rig.read(4, 7) == [record(3, 2), record(5, 2), record(7, 2)]


def test_logs_do_not_see_each_other(rig: LogsRig) -> None:
    rig.put(record(1), record(2))
    rig.put(record(2, wave=5), log=OTHER)
    assert rig.read() == [record(1), record(2)]
    assert rig.read(log=OTHER) == [record(2, wave=5)]
    assert rig.store.logs() == [LOG, OTHER]


def test_an_amendment_keeps_the_batch(rig: LogsRig) -> None:
    rig.put(record(1, batch=b"small"), record(2, batch=bytes(100_000)))
    amended = [
        record(1, wave=2, batch=b"small")._replace(copyset=(1, 2)),
        record(2, wave=3, batch=bytes(100_000))._replace(copyset=(ME, 4)),
    ]
    assert [rig.amend(each) for each in amended] == [Stored(), Stored()]
    assert rig.read() == amended
    assert rig.amend(record(3, wave=2)) == NotHere()


def test_an_amendment_in_the_commit_of_the_store(rig: LogsRig) -> None:
    answers: list[NodeAnswer] = []
    rig.store.ask(Store(LOG, record(1)), answers.append)  # has a commit to itself
    rig.store.ask(Store(LOG, record(2)), answers.append)
    rig.store.ask(Amend(LOG, record(2, wave=2, batch=b"")), answers.append)
    rig.store.ask(Amend(LOG, record(1, wave=2, batch=b"")), answers.append)
    rig.work()
    assert answers == [Stored()] * 4
    assert rig.read() == [record(1, wave=2), record(2, wave=2)]


def test_recovery_overwrites_what_it_plugs(rig: LogsRig) -> None:
    rig.put(record(1, 3), record(4, 3), record(7, 2))
    assert rig.ask(Seal(LOG, 1)) == SealedAt(0, 0, [EpochState(1, 0, 8)])
    plug = record(3, 5, recovered=2, kind=Kind.HOLE)
    assert rig.ask(Store(LOG, plug)) == Stored()
    assert rig.read() == [plug]


def test_reads_without_batches(rig: LogsRig) -> None:
    rig.put(record(1, batch=bytes(9000)))
    rig.ask(Release(LOG, make(1, 5)))
    found = rig.ask(Read(LOG, 1, make(1, 5), 100, everything=True, batches=False))
    assert isinstance(found, Delivered)
    assert found.records == [record(1, batch=b"")]


def test_a_digest_is_of_one_epoch(rig: LogsRig) -> None:
    rig.put(record(1), record(2), record(1, epoch=2))
    rig.ask(Seal(LOG, 2))
    assert rig.ask(Digest(LOG, 1, 1, 2, MIB)) == Digested([record(2)], more=False)
    assert rig.ask(Digest(LOG, 1, 0, 2, 1)) == Digested([record(1)], more=True)
    assert rig.ask(Digest(LOG, 1, 0, 1, MIB)) == Preempted(2)


def test_what_is_not_committed_is_not_seen(rig: LogsRig) -> None:
    """A reader would show it to somebody, and a power loss would take it away here."""
    rig.ask(Release(LOG, make(1, 9)))
    answers: list[NodeAnswer] = []
    rig.store.ask(Store(LOG, record(1)), answers.append)
    rig.store.ask(Read(LOG, make(1, 1), make(1, 9), MIB, everything=True), answers.append)
    rig.look_ups.work()
    [found] = answers
    assert isinstance(found, Delivered)
    assert not found.records
    rig.work()
    assert answers[1] == Stored()


# ---- standings and ends


def test_standings_and_ends_are_kept(rig: LogsRig) -> None:
    end = EpochEnd(1, 3, 4, 1, 1, exact=False)
    rig.put(record(1)._replace(lng=3))
    assert rig.store.standing(LOG).lng_of(1) == 3
    rig.ask(Seal(LOG, 1))
    assert rig.table.look(LOG).end_of(1) is None
    assert rig.ask(Clean(LOG, 1, end)) == Done()
    assert rig.table.look(LOG).end_of(1) == end
    assert rig.store.standing(LOG).last_clean == 1


def test_a_store_behind_a_seal_in_the_same_commit_is_too_late(rig: LogsRig) -> None:
    answers: list[NodeAnswer] = []
    for request in (Store(LOG, record(1)), Seal(LOG, 1), Store(LOG, record(2))):
        rig.store.ask(request, answers.append)
    rig.work()
    assert answers == [Stored(), SealedAt(0, 0, [EpochState(1, 0, 1)]), Preempted(1)]


def test_a_purge_erases_what_recovery_did_not_keep(rig: LogsRig) -> None:
    rig.put(*(record(offset) for offset in range(1, 6)), record(1, epoch=2))
    assert rig.ask(Purge(LOG, EpochEnd(1, 2, 3, 1, 1))) == Done()
    assert rig.read() == [record(1), record(2)]


def test_a_forgotten_log_leaves_nothing(rig: LogsRig) -> None:
    rig.put(record(1), record(2))
    rig.put(record(1), log=OTHER)
    rig.ask(Purge(LOG, EpochEnd(1, 2, 3, 1, 1)))
    assert rig.ask(Forget(LOG)) == Done()
    assert rig.store.logs() == [OTHER]
    assert rig.store.standing(LOG) == LogStanding()
    assert rig.table.look(LOG).end_of(1) is None
    assert rig.store.stored_bytes(LOG) == 0
    rig.put(record(3))
    assert rig.read() == [record(3)]


def test_a_log_can_be_forgotten_and_begin_again_in_one_commit(rig: LogsRig) -> None:
    rig.put(record(1))
    answers: list[NodeAnswer] = []
    for request in (Seal(LOG, 0), Forget(LOG), Store(LOG, record(2))):
        rig.store.ask(request, answers.append)
    rig.work()
    assert answers[1:] == [Done(), Stored()]
    assert rig.read() == [record(2)]


def test_a_log_that_began_again_in_one_commit_is_there_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    rig = LogsRig(RocksLogs(path, 0, SMALL))
    rig.put(record(1))
    before = rig.store.standing(LOG)
    answers: list[NodeAnswer] = []
    for request in (
        Seal(OTHER, 0),
        Release(OTHER, 1),
        Forget(LOG),
        Store(LOG, record(1)),
    ):
        rig.store.ask(request, answers.append)
    rig.work()
    assert rig.store.standing(LOG) == before
    rig.table.close()
    again = LogsRig(RocksLogs(path, 0, SMALL))
    assert again.store.standing(LOG) == before
    assert again.read() == [record(1)]
    again.table.close()


def test_copies_with_a_damaged_log_are_not_opened(tmp_path: Path) -> None:
    rig = LogsRig(RocksLogs(str(tmp_path / "db"), 0, SMALL))
    for offset in range(1, 5):
        rig.put(record(offset))
    shutil.copytree(tmp_path / "db", tmp_path / "killed")
    rig.table.close()
    log = max((tmp_path / "killed").glob("*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    with pytest.raises(Corrupt, match=f"{log.name} is damaged at byte"):
        RocksLogs(str(tmp_path / "killed"), 0, SMALL)


def test_a_copy_takes_the_place_of_one_that_begins_there(table: LogsTable) -> None:
    """A copy does so even if it belongs to another partition."""
    rig = LogsRig(table)
    rig.put(record(1, at_s=1))
    rig.tend(20)
    other = record(1, 2, at_s=21, batch=b"another")
    table.commit([(LOG, Put(other))], sync=True)
    assert rig.read() == [other]


def test_a_trim_hides_what_ends_there(rig: LogsRig) -> None:
    rig.put(record(1, 3), record(4, 3), record(7))
    rig.trim(4)
    assert rig.read() == [record(4, 3), record(7)]
    rig.trim(6)
    rig.trim(2)
    assert rig.read() == [record(7)]
    assert rig.store.standing(LOG).trimmed == make(1, 6)
    rig.trim(7)
    assert rig.read() == []
    assert rig.ask(Store(LOG, record(5))) == Stored()
    assert rig.read() == []


def ages(rig: LogsRig, at_s: float) -> tuple[int, int]:
    found: list[object] = []
    rig.store.ages(LOG, int(at_s * 1e6), found.append)
    rig.work()
    [answer] = found
    assert isinstance(answer, tuple)
    return answer


# ---- times


def test_which_copies_are_older_than_a_time(rig: LogsRig) -> None:
    rig.put(*(record(offset, 2, at_s=offset) for offset in range(1, 40, 2)))
    rig.put(record(41, 9, kind=Kind.HOLE))
    assert ages(rig, 40) == (make(1, 49), LSN_MAX)
    older, young = ages(rig, 39)
    assert older < make(1, 39)
    assert make(1, 1) <= young <= make(1, 39)
    rig.put(record(51, at_s=9))  # times may fall
    assert ages(rig, 39) == (older, young)
    assert ages(rig, 0)[1] == make(1, 1)


def recent(rig: LogsRig, since_s: float, span_s: float = 0.0) -> object:
    found: list[object] = []
    rig.store.recent(LOG, int((since_s + span_s) * 1e6), int(span_s * 1e6), found.append)
    rig.work()
    [answer] = found
    return answer


def sent(offset: int, at_s: float) -> Record:
    batch = build(
        b"x",
        codec=0,
        flags=0,
        count=1,
        raw_size=1,
        producer_id=9,
        sequence=offset,
        min_timestamp_us=0,
        max_timestamp_us=0,
    )
    return record(offset, at_s=at_s, batch=bytes(batch))


def test_of_recent_batches_some_may_be_trimmed(rig: LogsRig) -> None:
    rig.put(*(sent(offset, at_s=10 * offset) for offset in (1, 2, 3)))
    batches = [RecentBatch(9, offset, make(1, offset)) for offset in (3, 2, 1)]
    assert recent(rig, 0) == RecentBatches(batches, complete=True)
    assert recent(rig, 15) == RecentBatches(batches[:2], complete=True)
    rig.trim(1)
    assert recent(rig, 15) == RecentBatches(batches[:2], complete=False)
    assert recent(rig, 25) == RecentBatches(batches[:1], complete=True), "all before 2 is older"
    rig.trim(3)
    assert recent(rig, 99) == RecentBatches([], complete=False)


def test_a_clock_that_is_ahead_does_not_make_recent_batches_old(rig: LogsRig) -> None:
    """Only the node's own requests after a restart can be so late."""
    rig.put(*(sent(offset, at_s=10 * offset) for offset in (1, 2, 3)))
    batches = [RecentBatch(9, offset, make(1, offset)) for offset in (3, 2, 1)]
    assert recent(rig, 86_400, span_s=15) == RecentBatches(batches[:2], complete=True)


def requests(random: Random) -> Callable[[], NodeRequest]:
    stored: list[Store] = []

    def store() -> Store:
        stored.append(Store(log(), copy(), draining=random.random() < 0.1))
        return stored[-1]

    def amend() -> Amend:
        asked = random.choice(stored[-20:] or [store()])
        return Amend(asked.log, asked.record._replace(wave=random.randint(2, 6), batch=b""))

    def copy() -> Record:
        kind = random.choice([Kind.DATA, Kind.DATA, Kind.DATA, Kind.HOLE, Kind.BRIDGE])
        epoch = random.randint(1, 4)
        return record(
            random.randint(1, 40),
            random.randint(1, 6),
            epoch=epoch,
            wave=random.randint(1, 4),
            at_s=random.randint(0, 60),
            recovered=random.choice([0, 0, epoch + 1, epoch + 2]),
            batch=bytes(random.choice([1, 300, 6000])),
            kind=kind,
        )._replace(lng=random.randint(0, 40), copyset=tuple(random.sample(COPYSET, 2)))

    def log() -> int:
        return random.choice([LOG, LOG, OTHER])

    def lsn() -> int:
        return make(random.randint(1, 4), random.randint(0, 45))

    def epoch() -> int:
        return random.randint(1, 4)

    makers: list[Callable[[], NodeRequest]] = [
        *[store] * 8,
        *[amend] * 4,
        *[lambda: Release(log(), lsn())] * 2,
        lambda: Seal(log(), random.randint(0, 2)),
        lambda: Clean(log(), random.randint(0, 2), EpochEnd(epoch(), 3, 9, 2, 1)),
        lambda: Purge(log(), EpochEnd(random.randint(1, 2), random.randint(0, 30), 30, 2, 1)),
        *[lambda: Read(log(), lsn(), lsn(), random.randint(1, 9000), everything=True)] * 6,
        *[lambda: Read(log(), lsn(), lsn(), 9000, frozenset([8]), batches=False)] * 2,
        *[lambda: Digest(log(), epoch(), random.randint(0, 30), random.randint(0, 2), 9000)] * 3,
        lambda: Trim(log(), lsn()) if random.random() < 0.1 else Release(log(), 1),
        lambda: Forget(OTHER) if random.random() < 0.1 else Release(log(), 1),
    ]
    return lambda: random.choice(makers)()


def assert_alike(one: StoredLog, two: StoredLog) -> None:
    assert one.standing == two.standing
    everything = [one.load(head) for head in one.scan(0, LSN_MAX)]
    assert everything == [two.load(head) for head in two.scan(0, LSN_MAX)]
    assert list(one.scan_back(LSN_MAX)) == list(two.scan_back(LSN_MAX))
    assert [one.end_of(epoch) for epoch in range(6)] == [two.end_of(epoch) for epoch in range(6)]


def is_look_up(request: NodeRequest) -> bool:
    return isinstance(request, Read | Digest)


# ---- by chance


@pytest.mark.parametrize("seed", range(6))
def test_both_tables_answer_as_if_all_came_one_by_one(tmp_path: Path, seed: int) -> None:
    """Requests by chance, in groups; partitions begin and go, the process starts again."""
    random = Random(seed)
    next_request = requests(random)
    path = str(tmp_path / "db")
    node = CopysetNode(ME)
    rocks, memory = LogsRig(RocksLogs(path, 0, SMALL)), LogsRig(MemoryLogs())
    for round_ in range(250):
        group = [next_request() for _ in range(random.randint(1, 8))]
        group.sort(key=is_look_up)  # as the rig works: commits first
        expected = [node.answer(request) for request in group]
        for rig in (rocks, memory):
            answers: dict[int, NodeAnswer] = {}
            for index, request in enumerate(group):
                rig.store.ask(request, partial(answers.__setitem__, index))
            rig.work()
            assert [answers[index] for index in range(len(group))] == expected, group
            rig.settle()
        if random.random() < 0.1:
            rocks.tend(round_ / 4)
        if random.random() < 0.05:
            rocks.table.close()
            rocks = LogsRig(RocksLogs(path, 0, SMALL))
        for log in (LOG, OTHER) if round_ % 5 == 0 else ():
            assert_alike(rocks.table.look(log), memory.table.look(log))
            assert rocks.table.look(log).standing == node.records(log).standing
    rocks.table.close()
