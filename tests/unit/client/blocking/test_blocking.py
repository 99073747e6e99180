"""The blocking client: the same names, from any thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from fake_cluster import FakeCluster

from loomlog import connect_sync, errors
from loomlog.codecs import JSON


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Servers in a thread of their own, since the test blocks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> FakeCluster:
        return await FakeCluster().__aenter__()

    cluster = asyncio.run_coroutine_threadsafe(start(), loop).result()
    yield cluster
    asyncio.run_coroutine_threadsafe(cluster.__aexit__(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_whole_surface_without_an_event_loop(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events", streams=2)
        assert log.append(b"hello", key=b"k").position == 1
        assert [at.position for at in log.append_many([b"a", b"b"])] == [2, 3]
        entry = log.read(1)
        assert (entry.value, entry.key) == (b"hello", b"k")
        assert (log.head(), log.tail()) == (1, 3)
        assert [e.value for e in log.subscribe(stop=3)] == [b"hello", b"a", b"b"]
        assert sum(found.num_rows for found in log.subscribe_arrow(stop=3)) == 3
        stream = log.describe().streams[0]
        by_llsn = log.subscribe_stream(stream.id, stop_llsn=stream.entries)
        assert len(list(by_llsn)) == stream.entries
        log.trim(2)
        with pytest.raises(errors.Trimmed):
            log.read(1)
        assert [found.name for found in cluster.logs()] == ["events"]
        assert cluster.status().cluster_id == "fake"
        cluster.delete_log("events")
        with pytest.raises(errors.NotFound):
            cluster.log("events").tail()


def test_only_documented_names_are_public(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        for each in (cluster, log, cluster._target, log._target):
            kind = type(each)
            names = {name for name in dir(each) if not name.startswith("_")}
            assert len(names) > 20
            documented = {name for name in names if inspect.getdoc(getattr(kind, name, None))}
            assert names - documented <= {"name"}, kind


def test_several_threads_append_at_once(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        with ThreadPoolExecutor(8) as threads:
            positions = list(threads.map(lambda n: log.append(b"%d" % n).position, range(200)))
        assert sorted(positions) == list(range(1, 201))


def test_following_is_a_plain_iterator_that_can_be_left(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        log.append_many([b"%d" % n for n in range(10_000)])
        entries = log.subscribe()
        assert [e.position for e in islice(entries, 9_000)] == list(range(1, 9_001))
        del entries
        assert log.append(b"still alive").position == 10_001


def test_another_thread_ends_a_consumer_that_waits(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        log.append(b"x")
        entries = log.subscribe()
        waits = threading.Event()

        def consume() -> list[bytes]:
            found = []
            for entry in entries:
                found.append(entry.value)
                waits.set()
            return found

        with ThreadPoolExecutor(1) as threads:
            consumed = threads.submit(consume)
            assert waits.wait(30)
            entries.close()
            assert consumed.result(30) == [b"x"]
        entries.close()
        assert list(entries) == []


def test_a_consumer_need_not_wait_for_ever(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        log.append(b"x")
        with log.subscribe(timeout_s=0.05) as entries:
            assert next(entries).value == b"x"
            with pytest.raises(errors.Timeout, match="nothing came for"):
                next(entries)


def patient(entries: Iterator[Any]) -> Any:
    """Return the next item, however long it takes."""
    while True:
        try:
            return next(entries)
        except errors.Timeout:
            pass


@pytest.mark.parametrize("codec", [None, JSON])
def test_a_subscription_continues_after_a_timeout(fake: FakeCluster, codec: Any) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        with cluster.log("events", codec).subscribe(timeout_s=0.05) as entries:
            again = iter(entries)
            for position in (1, 2, 3):
                with pytest.raises(errors.Timeout):
                    next(entries)
                with pytest.raises(errors.Timeout):
                    next(again)
                log.append(b"%d" % position)
                found = patient(entries if position < 3 else again)
                assert (found.position, int(found.value)) == (position, position)


def test_a_value_that_cannot_be_decoded_can_be_passed(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        cluster.create_log("events").append_many([b"1", b"{", b"3"])
        entries = cluster.log("events", JSON).subscribe(stop=3)
        assert next(entries).value == 1
        with pytest.raises(errors.Corrupt, match="position 2 of log 'events'"):
            next(entries)
        assert [entry.value for entry in entries] == [3]


def test_items_can_be_changed_several_times_and_half_way(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        log.append_many([b"1", b"2", b"3"])
        values = log.subscribe(stop=3).map(lambda entry: entry.value)
        assert next(values) == b"1"
        assert list(values.map(int).map(float)) == [2.0, 3.0]


def test_a_closed_subscription_hands_out_nothing_more(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        log.append_many([b"x"] * 100)
        entries = log.subscribe()
        assert next(entries).position == 1
        entries.close()
        assert list(entries) == []


def test_an_error_ends_a_subscription(fake: FakeCluster) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        log.append_many([b"x", b"y"])
        log.trim(1)
        entries = log.subscribe(1)
        with pytest.raises(errors.Trimmed):
            next(entries)
        assert list(entries) == []


@pytest.mark.parametrize("timeout_s", [0, -1, "x", float("nan"), True, 1e300])
def test_a_timeout_is_a_number_of_seconds(fake: FakeCluster, timeout_s: Any) -> None:
    with connect_sync(fake.address) as cluster:
        log = cluster.create_log("events")
        with pytest.raises(errors.InvalidArgument, match="timeout_s must be seconds"):
            log.subscribe(timeout_s=timeout_s)


def test_a_closed_client_says_so(fake: FakeCluster) -> None:
    cluster = connect_sync(fake.address)
    log = cluster.create_log("events")
    entries = log.subscribe()
    log.append(b"x")
    assert next(entries).position == 1
    cluster.close()
    cluster.close()
    with pytest.raises(errors.Unavailable):
        log.append(b"x")
    with pytest.raises(errors.Unavailable):
        next(entries)


def test_nobody_there_is_an_error_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(errors.Unavailable):
        connect_sync("127.0.0.1:1")
    assert threading.active_count() == before
