"""The beginning of a time in a replica is found by headers, in any order of timestamps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from storage_rig import SMALL, StorageRig, WatchedFiles, batch

from loomlog.errors import Corrupt


@pytest.fixture
def rig(tmp_path: Path) -> StorageRig:
    return StorageRig(str(tmp_path / "lsid=7"))


def store(rig: StorageRig, times_us: list[int], count: int = 1) -> None:
    """One committed batch of `count` entries for each time; LLSN = GLSN."""
    for latest_us in times_us:
        llsn = rig.next_llsn
        one = batch(llsn, 300, count=count, latest_us=latest_us)
        rig.store.append([memoryview(one)], llsn, llsn + count - 1, rig.done)
        rig.commit(llsn, count)
    rig.settle()


def expected(times_us: list[int], wanted_us: int, first: int = 1) -> int | None:
    kept = enumerate(times_us[first - 1 :], first)
    return next((llsn for llsn, time_us in kept if time_us >= wanted_us), None)


def test_the_first_batch_of_that_time_or_later(rig: StorageRig) -> None:
    times_us = [1000 * n for n in range(1, 101)]
    store(rig, times_us)
    for replica in rig.twice():
        for wanted_us in (1, 1000, 1001, 50_000, 50_001, 100_000):
            assert replica.find_time(wanted_us, 1) == expected(times_us, wanted_us)
        assert replica.find_time(100_001, 1) is None


def test_it_is_the_first_one_also_where_timestamps_jump(rig: StorageRig) -> None:
    rng = random.Random(7)
    times_us = [rng.randrange(1, 1_000_000) for _ in range(200)]
    store(rig, times_us)
    for replica in rig.twice():
        for wanted_us in (1, 500_000, 990_000, max(times_us), max(times_us) + 1):
            for first in (1, 17, 150):
                assert replica.find_time(wanted_us, first) == expected(times_us, wanted_us, first)


def test_a_start_inside_a_batch_is_the_answer_if_the_batch_is(rig: StorageRig) -> None:
    store(rig, [10, 20, 30], count=5)
    assert rig.store.find_time(15, 1) == 6
    assert rig.store.find_time(15, 8) == 8
    assert rig.store.find_time(25, 15) == 15
    assert rig.store.find_time(35, 1) is None


def test_what_is_not_committed_does_not_count(rig: StorageRig) -> None:
    store(rig, [10, 20])
    rig.store.append([memoryview(batch(3, latest_us=99))], 3, 3, rig.done)
    assert rig.store.find_time(50, 1) is None
    rig.settle()
    assert rig.store.find_time(50, 1) is None
    rig.commit(3, 1)
    assert rig.store.find_time(50, 1) == 3


def test_what_was_cut_does_not_count_any_more(rig: StorageRig) -> None:
    store(rig, [10, 20])
    rig.store.append([memoryview(batch(3, latest_us=99))], 3, 3, rig.done)
    rig.settle()
    rig.store.truncate(2, rig.done)
    rig.settle()
    store(rig, [30])
    assert rig.store.find_time(50, 1) is None
    assert rig.store.find_time(25, 1) == 3


def test_only_headers_near_the_place_are_read(tmp_path: Path) -> None:
    files = WatchedFiles()
    rig = StorageRig(str(tmp_path / "lsid=7"), SMALL, files)
    store(rig, [1000 * n for n in range(1, 301)])
    stored = sum(len(batch(n, 300)) for n in range(1, 301))
    files.log.bytes_read.clear()
    assert rig.store.find_time(250_000, 1) == 250
    assert sum(files.log.bytes_read.values()) < stored / 50


def test_a_broken_header_is_an_error_not_an_answer(rig: StorageRig) -> None:
    store(rig, [10, 20, 30])
    name = next(n for n in rig.files.list(f"{rig.path}/data") if n.endswith(".seg"))
    rig.files.open(f"{rig.path}/data/{name}").write([b"\xff"], len(batch(1, 300)) + 8)
    with pytest.raises(Corrupt):
        rig.store.find_time(15, 1)


def test_batches_are_measured_where_they_begin(rig: StorageRig) -> None:
    store(rig, [10] * 100, count=5)
    size = len(batch(1, 300, count=5, latest_us=10))
    for replica in rig.twice():
        for first, end in ((1, 501), (1, 6), (2, 6), (2, 7), (250, 300), (6, 6), (1, 1)):
            begun = sum(first <= llsn < end for llsn in range(1, 501, 5))
            assert replica.size(first, end) == begun * size, (first, end)
