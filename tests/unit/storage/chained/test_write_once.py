"""The write-once store, on RocksDB and in memory: the same questions, the same answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hand_worker import HandWorker
from memory_tables import MemoryTable
from write_once_rig import EPOCH, HERE, NODE, THERE, WriteOnceRig, batch

from loomlog.batch import build
from loomlog.core.chained.chain import Block, Extent, Replica, junk
from loomlog.core.chained.messages import (
    Acknowledge,
    Answer,
    Before,
    Check,
    Copy,
    Create,
    Done,
    EpochOver,
    Fetch,
    Fetched,
    Found,
    List,
    Listed,
    Measure,
    MeasuredBlocks,
    Missing,
    Read,
    Refused,
    Remove,
    Request,
    Seal,
    SealedAt,
    Stored,
    Trim,
    TrimmedTo,
    Write,
    Written,
)
from loomlog.core.chained.replica import Change
from loomlog.core.requests import Lost
from loomlog.errors import Busy
from loomlog.limits import MIB
from loomlog.storage import group_commit
from loomlog.storage.chained.block_table import BlockTable
from loomlog.storage.chained.rocks_table import RocksTable
from loomlog.storage.chained.write_once import WriteOnceStore
from loomlog.storage.group_commit import WAITING_BYTES_MAX


def test_what_is_large_is_never_written_on_the_loop() -> None:
    """However quick the commits before it were."""
    commits = HandWorker()
    store = WriteOnceStore(MemoryTable(), commits, HandWorker())
    large = bytes(group_commit.SHORT_BYTES_MAX + 1)
    for request in (Create(), Write(EPOCH, batch(1))):
        store.ask(HERE, request, lambda _: None)
        commits.work()
    assert commits.short == 2
    store.ask(HERE, Write(EPOCH, batch(2, content=large)), lambda _: None)
    assert (len(commits.jobs), commits.short) == (1, 2)


@pytest.fixture(params=["rocks", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockTable]:
    opened: BlockTable
    opened = RocksTable(str(tmp_path / "db"), NODE) if request.param == "rocks" else MemoryTable()
    yield opened
    opened.close()


@pytest.fixture
def rig(table: BlockTable) -> WriteOnceRig:
    return WriteOnceRig(table).sealed()


# ---- writing once


def test_a_block_is_written_once(rig: WriteOnceRig) -> None:
    assert rig.write(batch(10, 3)) == [Stored()]
    assert rig.ask(Write(EPOCH, batch(10, 3, sequence=2))) == Written()
    assert rig.ask(Write(EPOCH, junk(10, 3))) == Written()
    assert rig.ask(Read(EPOCH, 10)) == Found(batch(10, 3))


def test_the_same_block_may_come_again(rig: WriteOnceRig) -> None:
    rig.write(batch(10, 3), junk(13, 2))
    assert rig.write(batch(10, 3), junk(13, 2)) == [Stored(), Stored()]


@pytest.mark.parametrize("extent", [(9, 2), (11, 1), (12, 5), (8, 10), (10, 2)])
def test_blocks_do_not_overlap(rig: WriteOnceRig, extent: tuple[int, int]) -> None:
    rig.write(batch(10, 3))
    assert rig.ask(Write(EPOCH, batch(*extent, sequence=2))) == Written()


def test_blocks_of_one_commit_do_not_overlap(rig: WriteOnceRig) -> None:
    answers = rig.write(batch(10, 3), batch(12, 1, sequence=2), junk(13, 1), batch(10, 3))
    assert answers == [Stored(), Written(), Stored(), Stored()]
    assert rig.ask(List(EPOCH, 1, 10)) == Listed([Extent(10, 3), Extent(13, 1)], more=False)


def test_blocks_come_in_any_order_and_side_by_side(rig: WriteOnceRig) -> None:
    assert (
        rig.write(batch(30), batch(10, 20, sequence=2), batch(5, 5, sequence=3)) == [Stored()] * 3
    )


def test_replicas_do_not_see_each_other(table: BlockTable) -> None:
    rig = WriteOnceRig(table).sealed(HERE, THERE)
    rig.write(batch(10))
    assert rig.ask(Read(EPOCH, 10), THERE) == Missing(0)
    assert rig.ask(Before(EPOCH, 99), THERE) == Missing(0)
    assert rig.ask(Seal(EPOCH), THERE) == SealedAt(0, 0)
    assert list(rig.store.replicas) == [HERE, THERE]


@pytest.mark.parametrize(
    "request_",
    [
        Write(EPOCH, batch(0)),
        Write(EPOCH, batch(1, 0)),
        Write(EPOCH, batch(1 << 63)),
        Write(EPOCH, batch((1 << 64) - 1, 5)),
        Copy(junk(1, 1 << 32)),
        Trim(EPOCH, (1 << 64) - 1),
    ],
    ids=repr,
)
def test_nonsense_is_refused_and_harms_nobody(rig: WriteOnceRig, request_: Request) -> None:
    assert isinstance(rig.ask(request_), Refused)
    assert rig.write(batch(1)) == [Stored()]


# ---- looking


def test_a_position_is_found_by_the_block_that_covers_it(rig: WriteOnceRig) -> None:
    rig.write(batch(10, 3), junk(20, 2))
    assert [rig.ask(Read(EPOCH, position)) for position in (10, 12)] == [Found(batch(10, 3))] * 2
    assert rig.ask(Read(EPOCH, 21)) == Found(junk(20, 2))
    assert [rig.ask(Read(EPOCH, p)) for p in (9, 13, 19, 22)] == [Missing(0)] * 4


def test_the_block_before_a_position(rig: WriteOnceRig) -> None:
    rig.write(batch(10, 3), junk(20, 2))
    assert rig.ask(Before(EPOCH, 9)) == Missing(0)
    assert [rig.ask(Before(EPOCH, p)) for p in (10, 12, 19)] == [Found(batch(10, 3))] * 3
    assert [rig.ask(Before(EPOCH, p)) for p in (20, 99)] == [Found(junk(20, 2))] * 2


def stamped(first: int, count: int, latest_us: int) -> Block:
    content = build(
        b"body",
        codec=0,
        flags=0,
        count=count,
        raw_size=4,
        producer_id=9,
        sequence=first,
        min_timestamp_us=0,
        max_timestamp_us=latest_us,
    )
    return Block(first, count, 9, first, bytes(content))


def test_blocks_are_listed_as_far_as_they_are_older(rig: WriteOnceRig) -> None:
    rig.write(stamped(10, 3, 70), junk(20, 2), stamped(30, 1, 90), stamped(40, 1, 50))
    old, filled, young = Extent(10, 3), Extent(20, 2), 30
    assert rig.ask(List(EPOCH, 1, 9, 71)) == Listed([old, filled], more=False, young=young)
    assert rig.ask(List(EPOCH, 1, 9, 70)) == Listed([], more=False, young=10)
    assert rig.ask(List(EPOCH, 1, 1, 71)) == Listed([old], more=True)
    assert rig.ask(List(EPOCH, 35, 9, 71)) == Listed([Extent(40, 1)], more=False)
    rig.write(batch(50))  # no batch at all: nobody knows how old it is
    assert rig.ask(List(EPOCH, 35, 9, 71)) == Listed([Extent(40, 1)], more=False, young=50)


def test_lists_and_fetches_begin_with_the_block_that_covers(rig: WriteOnceRig) -> None:
    rig.write(batch(10, 3), junk(20, 2), batch(30, sequence=2))
    assert rig.ask(List(EPOCH, 12, 2)) == Listed([Extent(10, 3), Extent(20, 2)], more=True)
    assert rig.ask(List(EPOCH, 22, 2)) == Listed([Extent(30, 1)], more=False)
    assert rig.ask(Fetch(EPOCH, 12, 1)) == Fetched([batch(10, 3)], more=True)
    everything = [batch(10, 3), junk(20, 2), batch(30, sequence=2)]
    assert rig.ask(Fetch(EPOCH, 1, MIB)) == Fetched(everything, more=False)


def test_extents_are_listed_without_junk(rig: WriteOnceRig) -> None:
    rig.write(junk(1, 9), batch(10, 3), junk(13, 1), junk(14, 1), batch(20, 2))
    found = [Extent(10, 3), Extent(20, 2)]
    assert rig.ask(List(EPOCH, 1, 9, without_junk=True)) == Listed(found, more=False)
    assert rig.ask(List(EPOCH, 1, 2, without_junk=True)) == Listed(found, more=False)
    assert rig.ask(List(EPOCH, 1, 1, without_junk=True)) == Listed(found[:1], more=True)
    assert rig.ask(List(EPOCH, 13, 1, without_junk=True)) == Listed(found[1:], more=False)


def test_what_writers_tell_is_kept_with_blocks(rig: WriteOnceRig) -> None:
    """Beside them: a block that is read is as it was written."""
    rig.write(batch(10, 3), batch(20)._replace(acknowledged=(10, 13)), junk(30, 2))
    told = List(EPOCH, 1, 9, with_acknowledged=True)
    extents = [Extent(10, 3), Extent(20, 1), Extent(30, 2)]
    assert rig.ask(told) == Listed(extents, more=False, acknowledged=(10, 13))
    assert rig.ask(Fetch(EPOCH, 20, 1)) == Fetched([batch(20)], more=True)
    for _ in range(2):
        assert rig.ask(Acknowledge(EPOCH, (20, 21, 30, 10))) == Missing(0)  # those that are there
        assert rig.ask(told) == Listed(extents, more=False, acknowledged=(10, 10, 13, 20))
    assert rig.ask(Measure(EPOCH, 1, 25, 9)) == MeasuredBlocks(25, 2 * len(b"batch"))
    assert rig.ask(Trim(EPOCH, 12)) == Done()
    assert rig.ask(replace(told, position=13)) == Listed(
        extents[1:], more=False, acknowledged=(10, 13, 20)
    )


def test_a_block_and_what_is_told_of_it_may_be_in_one_commit(rig: WriteOnceRig) -> None:
    answers: list[Answer] = []
    for request in (
        Write(EPOCH, batch(1)._replace(acknowledged=(7,))),
        Acknowledge(EPOCH, (1,)),
        Acknowledge(EPOCH, (1,)),
    ):
        rig.store.ask(HERE, request, answers.append)
    rig.work()
    assert answers == [Stored(), Done(), Done()]
    told = rig.ask(List(EPOCH, 1, 9, with_acknowledged=True))
    assert told == Listed([Extent(1, 1)], more=False, acknowledged=(7, 1))


def test_what_a_block_tells_is_noted_if_it_is_there_already(rig: WriteOnceRig) -> None:
    """A reader may have completed it without that. Several notes may be in one commit."""
    rig.write(batch(1), batch(2))
    answers: list[Answer] = []
    again = batch(2)._replace(acknowledged=(1,))
    for request in (Write(EPOCH, again), Acknowledge(EPOCH, (2,)), Write(EPOCH, again)):
        rig.store.ask(HERE, request, answers.append)
    rig.work()
    assert answers == [Stored(), Done(), Stored()]
    told = rig.ask(List(EPOCH, 2, 9, with_acknowledged=True))
    assert told == Listed([Extent(2, 1)], more=False, acknowledged=(1, 2))
    assert rig.ask(Read(EPOCH, 2)) == Found(batch(2))
    assert rig.ask(Read(EPOCH, 2, with_acknowledged=True)) == Found(
        batch(2)._replace(acknowledged=(1, 2))
    )


def test_what_is_not_committed_is_not_seen(rig: WriteOnceRig) -> None:
    """A reader would carry it down the chain, and a power loss would take it away here."""
    answers: list[Answer] = []
    rig.store.ask(HERE, Write(EPOCH, batch(10)), answers.append)
    rig.store.ask(HERE, Read(EPOCH, 10), answers.append)
    rig.look_ups.work()
    assert answers == [Missing(0)]
    rig.work()
    assert answers == [Missing(0), Stored()]


# ---- epochs


def test_only_the_epoch_of_the_seal_is_served(rig: WriteOnceRig) -> None:
    rig.write(batch(10, 3))
    assert rig.ask(Seal(EPOCH + 1)) == SealedAt(13, 0)
    assert rig.ask(Write(EPOCH, batch(20))) == EpochOver(EPOCH + 1)
    assert rig.ask(Read(EPOCH, 10)) == EpochOver(EPOCH + 1)
    assert rig.ask(Seal(EPOCH)) == EpochOver(EPOCH + 1)
    assert isinstance(rig.ask(Check(EPOCH + 2)), Refused)
    assert rig.ask(Check(EPOCH + 1)) == Done()
    assert rig.ask(Seal(EPOCH + 1)) == SealedAt(13, 0)


def test_a_write_behind_a_seal_in_the_same_commit_is_too_late(rig: WriteOnceRig) -> None:
    answers: list[Answer] = []
    for request in (Write(EPOCH, batch(10)), Seal(EPOCH + 1), Write(EPOCH, batch(11))):
        rig.store.ask(HERE, request, answers.append)
    assert len(rig.commits.jobs) == 1
    rig.work()  # the first has a commit to itself
    assert answers == [Stored(), SealedAt(11, 0), EpochOver(EPOCH + 1)]


def test_a_replica_that_is_not_here_refuses_everything(rig: WriteOnceRig) -> None:
    other = HERE._replace(birth=6)
    for request in (Write(EPOCH, batch(1)), Read(EPOCH, 1), Seal(EPOCH), Copy(batch(1))):
        assert isinstance(rig.ask(request, other), Refused)
    assert isinstance(rig.ask(Create()), Refused)
    assert rig.ask(Remove(), other) == Done()  # said twice, perhaps


def test_a_copy_needs_no_epoch(table: BlockTable) -> None:
    rig = WriteOnceRig(table)
    assert rig.ask(Create()) == Done()
    assert rig.ask(Copy(batch(10, 3))) == Stored()
    assert rig.ask(Copy(junk(10, 1))) == Written()
    assert rig.ask(Seal(EPOCH)) == SealedAt(13, 0)


def test_a_removed_replica_leaves_nothing(rig: WriteOnceRig) -> None:
    rig.write(batch(10, 3))
    assert rig.ask(Remove()) == Done()
    assert rig.store.replicas == rig.table.replicas() == {}
    rig.sealed()
    assert rig.ask(List(EPOCH, 1, 10)) == Listed([], more=False)


# ---- trimming


def test_a_trim_keeps_the_block_that_it_cuts(rig: WriteOnceRig) -> None:
    rig.write(batch(1, 9), batch(10, 5, sequence=2), batch(15, sequence=3))
    assert rig.ask(Trim(EPOCH, 12)) == Done()
    assert rig.ask(Read(EPOCH, 12)) == TrimmedTo(12)
    assert rig.ask(List(EPOCH, 12, 9)) == TrimmedTo(12)
    assert rig.ask(Read(EPOCH, 13)) == Found(batch(10, 5, sequence=2))
    assert rig.ask(List(EPOCH, 13, 9)) == Listed([Extent(10, 5), Extent(15, 1)], more=False)
    assert rig.ask(Write(EPOCH, junk(9, 1))) == TrimmedTo(12)
    assert rig.ask(Write(EPOCH, batch(10, 5, sequence=2))) == Stored()


def test_a_trim_never_goes_back_and_counts_as_an_end(rig: WriteOnceRig) -> None:
    rig.write(batch(1, 9))
    rig.ask(Trim(EPOCH, 9))
    rig.ask(Trim(EPOCH, 4))
    assert rig.ask(Read(EPOCH, 11)) == Missing(9)
    assert rig.ask(Seal(EPOCH)) == SealedAt(10, 9)


class CountedBlockTable:
    """A table that counts its commits, or fails."""

    def __init__(self, table: BlockTable) -> None:
        self._table = table
        self.commits = 0
        self.broken = False
        self.replicas, self.look, self.close = table.replicas, table.look, table.close
        self.reclaim, self.interrupt = table.reclaim, table.interrupt
        self.stored_bytes, self.get_ready = table.stored_bytes, table.get_ready
        self.bytes_in_files = table.bytes_in_files

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        if self.broken:
            raise OSError("no space left on device")
        self.commits += 1
        self._table.commit(changes, sync=sync)


# ---- commits


def test_all_that_waits_shares_one_commit(table: BlockTable) -> None:
    counting = CountedBlockTable(table)
    rig = WriteOnceRig(counting).sealed()
    before = counting.commits
    answers = rig.write(*(batch(first, sequence=first) for first in range(1, 101)))
    assert answers == [Stored()] * 100
    assert counting.commits == before + 2  # the first at once, the others while it was under way
    rig.write(batch(1))
    assert counting.commits == before + 2  # nothing changes, nothing is synced


def test_after_a_failed_commit_nothing_is_acknowledged(table: BlockTable) -> None:
    counting = CountedBlockTable(table)
    rig = WriteOnceRig(counting).sealed()
    counting.broken = True
    answers: list[Answer] = []
    assert rig.ask(Write(EPOCH, batch(1))) == Lost(), "it may be on the disk"
    counting.broken = False
    for request in (Write(EPOCH, batch(2)), Read(EPOCH, 1), Seal(EPOCH + 1)):
        rig.store.ask(HERE, request, answers.append)
    assert [type(answer) for answer in answers] == [Refused] * 3


def test_what_waits_is_bounded(rig: WriteOnceRig) -> None:
    block = Block(1, 1, 9, 1, memoryview(bytes(WAITING_BYTES_MAX // 2 + 1)))
    answers: list[Answer] = []
    for first in (1, 2):  # one is under way, one waits
        rig.store.ask(HERE, Write(EPOCH, block._replace(first=first)), answers.append)
    with pytest.raises(Busy):
        rig.store.ask(HERE, Write(EPOCH, block._replace(first=3)), answers.append)
    rig.commits.jobs.clear()
    assert answers == []


def test_look_ups_that_wait_are_bounded(rig: WriteOnceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "LOOK_UPS_MAX", 2)
    answers: list[Answer] = []
    for _ in range(2):
        rig.store.ask(HERE, Read(EPOCH, 1), answers.append)
    with pytest.raises(Busy):
        rig.store.ask(HERE, Read(EPOCH, 1), answers.append)
    rig.work()
    rig.store.ask(HERE, Read(EPOCH, 1), answers.append)
    rig.work()
    assert answers == [Missing(0)] * 3


# ---- the disk


def test_a_replica_that_is_removed_and_made_again_in_one_commit_is_empty(table: BlockTable) -> None:
    rig = WriteOnceRig(table).sealed()
    rig.write(batch(1), batch(5))
    answers: list[Answer] = []
    rig.store.ask(HERE, Seal(EPOCH), answers.append)  # has a commit to itself
    for request in (Remove(), Create(), Seal(EPOCH), Write(EPOCH, batch(1, 9))):
        rig.store.ask(HERE, request, answers.append)
    rig.work()
    assert answers == [SealedAt(6, 0), Done(), Done(), SealedAt(0, 0), Stored()]
    assert rig.ask(List(EPOCH, 1, 10)) == Listed([Extent(1, 9)], more=False)
