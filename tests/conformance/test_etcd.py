"""Metadata in etcd when etcd, or the way to it, fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from etcd_proxy import EtcdProxy
from poll import until

from loomlog.config import EtcdSettings, MetadataSettings
from loomlog.core.conditions import Condition, Kind
from loomlog.errors import Conflict, Fenced, InvalidArgument, NotLeader, SwapUnknown, Unavailable
from loomlog.metadata.data_directory import DataDirectory
from loomlog.metadata.leases import ClusterLeases
from loomlog.metadata.rounds.round_files import FILE_BYTES
from loomlog.metadata.store.contract import Fence, FencedStore, ItemChange, StoredItem
from loomlog.metadata.store.etcd import EtcdStore
from loomlog.metadata.store.etcd.connection import EtcdConnection, rpc
from loomlog.testing import LocalEtcd
from loomlog.wire import loomlog_pb2 as pb

TIMEOUT_S = 3.0  # five attempts of 0.6 s


@pytest.fixture(scope="session")
def etcd() -> Iterator[LocalEtcd]:
    with LocalEtcd() as etcd:
        yield etcd


@pytest.fixture(scope="session")
def three() -> Iterator[LocalEtcd]:
    with LocalEtcd(members=3) as etcd:
        yield etcd


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"test/{request.node.name}"


@pytest.fixture
async def direct(etcd: LocalEtcd, prefix: str) -> AsyncIterator[EtcdStore]:
    """A second store on the same metadata, which shows what really is in etcd."""
    async with opened(EtcdSettings(etcd.endpoints, prefix)) as store:
        yield store


@pytest.fixture
async def proxy(etcd: LocalEtcd) -> AsyncIterator[EtcdProxy]:
    async with EtcdProxy(etcd.endpoints[0]) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: EtcdProxy, prefix: str) -> AsyncIterator[EtcdStore]:
    async with opened(EtcdSettings((proxy.address,), prefix, timeout_s=TIMEOUT_S)) as store:
        yield store


@asynccontextmanager
async def opened(settings: EtcdSettings) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(settings)
    try:
        yield store
    finally:
        await store.close()


async def until_there(store: EtcdStore, key: str, there: bool = True) -> None:
    async with asyncio.timeout(30):
        while (await store.get(key) is not None) is not there:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# ---- answers that get lost


async def test_a_swap_whose_answer_was_lost_happened_once(
    proxy: EtcdProxy, store: EtcdStore, direct: EtcdStore
) -> None:
    first = await store.compare_and_swap("a", 0, b"one")
    proxy.keep_answers()
    swap = asyncio.create_task(store.compare_and_swap("a", first, b"two"))
    async with asyncio.timeout(30):
        while (found := await direct.get("a")) == StoredItem(b"one", first):
            pass
    proxy.reset()
    assert await direct.get("a") == found == StoredItem(b"two", await swap)


async def test_a_deletion_whose_answer_was_lost_is_known_to_be_ours(
    proxy: EtcdProxy, store: EtcdStore, direct: EtcdStore
) -> None:
    first = await store.compare_and_swap("a", 0, b"one")
    proxy.keep_answers()
    swap = asyncio.create_task(store.compare_and_swap("a", first, None))
    await until_there(direct, "a", there=False)
    later = await direct.compare_and_swap("b", 0, b"")
    proxy.reset()
    assert first < await swap < later


async def test_a_swap_is_known_to_be_ours_although_another_wrote_over_it(
    proxy: EtcdProxy, store: EtcdStore, direct: EtcdStore
) -> None:
    await store.compare_and_swap("other", 0, b"")
    proxy.keep_answers()
    swap = asyncio.create_task(store.compare_and_swap("a", 0, b"ours"))
    await until_there(direct, "a")
    found = await direct.get("a")
    assert found is not None
    await direct.compare_and_swap("a", found.version, None)
    proxy.reset()
    assert await swap == found.version
    assert await direct.get("a") is None


async def test_a_swap_that_never_arrived_is_sent_again(
    proxy: EtcdProxy, store: EtcdStore, direct: EtcdStore
) -> None:
    await store.compare_and_swap("other", 0, b"")
    proxy.keep_requests()
    swap = asyncio.create_task(store.compare_and_swap("a", 0, b"x"))
    await proxy.kept.wait()
    assert await direct.get("a") is None
    proxy.reset()
    version = await swap
    assert await direct.get("a") == StoredItem(b"x", version)


async def test_a_lost_swap_that_another_was_faster_than_is_a_conflict(
    proxy: EtcdProxy, store: EtcdStore, direct: EtcdStore
) -> None:
    await store.compare_and_swap("other", 0, b"")
    proxy.keep_requests()
    swap = asyncio.create_task(store.compare_and_swap("a", 0, b"ours"))
    await proxy.kept.wait()
    theirs = await direct.compare_and_swap("a", 0, b"theirs")
    proxy.reset()
    with pytest.raises(Conflict):
        await swap
    assert await direct.get("a") == StoredItem(b"theirs", theirs)


async def test_a_request_that_arrives_long_after_it_was_given_up_changes_nothing(
    etcd: LocalEtcd, proxy: EtcdProxy, direct: EtcdStore, prefix: str
) -> None:
    async with EtcdProxy(etcd.endpoints[0]) as other:
        other.shut()
        settings = EtcdSettings((proxy.address, other.address), prefix, timeout_s=TIMEOUT_S)
        async with opened(settings) as store:
            await store.compare_and_swap("before", 0, b"")
            proxy.keep_requests()
            other.reopen()
            keys = [f"late/{i}" for i in range(4)]
            swaps = (store.compare_and_swap(key, 0, b"x") for key in keys)
            versions = await asyncio.gather(*swaps)
            assert store.endpoint == other.address
            for key, version in zip(keys, versions, strict=True):
                await direct.compare_and_swap(key, version, None)
            proxy.pass_all()
            for i in range(20):  # the late ones are before or among these
                await direct.compare_and_swap(f"after/{i}", 0, b"")
            assert await direct.list("late/") == {}


async def test_a_transaction_is_refused_once_its_swap_is_over(
    etcd: LocalEtcd, direct: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeat the test above without chance: a request is sent again, by hand."""
    sent: list[Any] = []
    ask_once = direct._connection.ask_once

    async def recorded(method: Any, request: Any, deadline: float) -> Any:
        sent.append(request)
        return await ask_once(method, request, deadline)

    monkeypatch.setattr(direct._connection, "ask_once", recorded)
    version = await direct.compare_and_swap("a", 0, b"x")
    late = sent[-1]
    await direct.compare_and_swap("a", version, None)
    connection = EtcdConnection(EtcdSettings(etcd.endpoints))
    answer = await connection.ask_now(lambda endpoint: endpoint.kv.Txn, late)
    await connection.close()
    assert not answer.succeeded
    assert await direct.get("a") is None


async def test_what_nobody_can_know_is_said_and_the_next_swap_is_right_again(
    proxy: EtcdProxy, direct: EtcdStore, prefix: str
) -> None:
    async with opened(EtcdSettings((proxy.address,), prefix, timeout_s=1.0)) as store:
        await store.compare_and_swap("other", 0, b"")
        proxy.keep_answers()
        swap = asyncio.create_task(store.compare_and_swap("a", 0, b"x"))
        await until_there(direct, "a")
        proxy.shut()
        with pytest.raises(SwapUnknown, match="'a' may or may not"):
            await swap
        with pytest.raises(Unavailable):
            await store.compare_and_swap("b", 0, b"x")
        proxy.reopen()
        found = await store.get("a")
        assert found is not None
        await store.compare_and_swap("a", found.version, b"y")
        await store.compare_and_swap("b", 0, b"y")


async def test_a_cancelled_swap_leaves_no_trap_for_the_next(
    proxy: EtcdProxy, store: EtcdStore
) -> None:
    await store.compare_and_swap("other", 0, b"")
    proxy.keep_answers()
    swap = asyncio.create_task(store.compare_and_swap("a", 0, b"x"))
    await proxy.kept.wait()
    swap.cancel()
    await asyncio.gather(swap, return_exceptions=True)
    proxy.pass_all()
    version = await store.compare_and_swap("b", 0, b"x")
    assert await store.get("b") == StoredItem(b"x", version)


async def test_a_fence_that_fell_while_the_answer_was_lost_is_noticed(
    proxy: EtcdProxy, store: EtcdStore, direct: EtcdStore
) -> None:
    leads = await store.compare_and_swap("leader", 0, b"1")
    fenced = FencedStore(store, Fence("leader", leads))
    await fenced.compare_and_swap("other", 0, b"")
    proxy.keep_requests()
    swap = asyncio.create_task(fenced.compare_and_swap("a", 0, b"x"))
    await proxy.kept.wait()
    await direct.compare_and_swap("leader", leads, b"2")
    proxy.reset()
    with pytest.raises(NotLeader):
        await swap
    assert await direct.get("a") is None


# ---- members that fail


async def test_without_etcd_everything_is_unavailable_in_time_and_heals_by_itself(
    prefix: str,
) -> None:
    with LocalEtcd() as etcd:
        async with opened(EtcdSettings(etcd.endpoints, prefix, timeout_s=1.0)) as store:
            version = await store.compare_and_swap("a", 0, b"x")
            etcd.kill(1)
            async with asyncio.timeout(10):
                with pytest.raises(Unavailable, match=etcd.endpoints[0]):
                    await store.get("a")
                swaps = (store.compare_and_swap(f"{i}", 0, b"y") for i in range(40))
                failed = await asyncio.gather(*swaps, return_exceptions=True)
                assert {type(error) for error in failed} == {Unavailable}
                with pytest.raises(Unavailable):
                    await EtcdStore.open(EtcdSettings(etcd.endpoints, prefix, timeout_s=0.2))
            await back(etcd, 1)
            assert await store.get("a") == StoredItem(b"x", version)
            await store.compare_and_swap("a", version, b"y")


async def test_an_etcd_that_lost_its_majority_is_a_condition(
    three: LocalEtcd, prefix: str, tmp_path: Path
) -> None:
    """One lost member is none: nothing waits for it."""
    settings = MetadataSettings(
        cluster_id="c",
        directory=str(tmp_path),
        member_id=1,
        peers={1: "127.0.0.1:1", 2: "127.0.0.1:2", 3: "127.0.0.1:3"},
        etcd=EtcdSettings(three.endpoints, prefix, timeout_s=1.0),
    )
    directory = DataDirectory(settings, None, None, None, FILE_BYTES)
    store, _ = await directory.open_of_several()

    async def conditions() -> list[Condition]:
        await directory.look_at(store)
        return directory.conditions()

    try:
        three.kill(1)
        await until(conditions, lambda found: not found)  # the others elect a leader
        three.kill(2)
        (condition,) = await conditions()
        assert condition.kind is Kind.METADATA_STORE
        assert "cannot be changed" in condition.text
        assert three.endpoints[0] in condition.text
        for member in (1, 2):
            await asyncio.to_thread(three.start, member)
        await until(conditions, lambda found: not found)
    finally:
        await directory.close()
    for member in (1, 2, 3):
        await asyncio.to_thread(three.wait_healthy, member)


async def test_without_a_majority_of_etcd_nothing_is_read_or_written_until_it_is_back(
    three: LocalEtcd, prefix: str
) -> None:
    async with opened(EtcdSettings(three.endpoints, prefix, timeout_s=1.0)) as store:
        version = await store.compare_and_swap("a", 0, b"x")
        for member in (1, 2):
            three.kill(member)
        with pytest.raises(Unavailable):
            await store.get("a")
        with pytest.raises(SwapUnknown):  # a member took it, and may yet pass it on
            await store.compare_and_swap("b", 0, b"x")
        with pytest.raises(Unavailable):
            await store.compare_and_swap("c", 0, b"x")
        for member in (1, 2):
            await asyncio.to_thread(three.start, member)
        for member in (1, 2, 3):
            await asyncio.to_thread(three.wait_healthy, member)
    async with opened(EtcdSettings(three.endpoints, prefix)) as store:
        await store.compare_and_swap("c", 0, b"x")
        assert await store.get("a") == StoredItem(b"x", version)


def member_at(etcd: LocalEtcd, address: str) -> int:
    return 1 + etcd.endpoints.index(address)


async def test_another_member_takes_over_from_one_that_is_killed(
    three: LocalEtcd, prefix: str
) -> None:
    async with opened(EtcdSettings(three.endpoints, prefix)) as store:
        version = await store.compare_and_swap("a", 0, b"1")
        killed = member_at(three, store.endpoint)
        three.kill(killed)
        version = await store.compare_and_swap("a", version, b"2")
        assert await store.get("a") == StoredItem(b"2", version)
        assert member_at(three, store.endpoint) != killed
    await back(three, killed)


async def test_another_member_takes_over_from_one_that_is_frozen(
    three: LocalEtcd, prefix: str
) -> None:
    async with opened(EtcdSettings(three.endpoints, prefix)) as store:
        heard: list[ItemChange] = []
        store.watch("", heard.append)
        version = await store.compare_and_swap("a", 0, b"1")
        await until(lambda: len(heard) == 1)
        frozen = member_at(three, store.endpoint)
        three.pause(frozen)
        try:
            version = await store.compare_and_swap("a", version, b"2")
            assert await store.get("a") == StoredItem(b"2", version)
            await until(lambda: len(heard) == 2)
        finally:
            three.resume(frozen)
    await asyncio.to_thread(three.wait_healthy, frozen)


async def test_writers_and_watchers_see_one_story_while_leaders_of_etcd_die(
    three: LocalEtcd, prefix: str
) -> None:
    """A counter that two writers move on, each swap exactly once, told once and in order."""
    heard: list[ItemChange] = []
    async with (
        opened(EtcdSettings(three.endpoints, prefix)) as watching,
        opened(EtcdSettings(three.endpoints, prefix)) as one,
        opened(EtcdSettings(three.endpoints, prefix)) as other,
    ):
        watching.watch("counter", heard.append)
        stop = asyncio.Event()
        writers = [asyncio.create_task(count(store, stop)) for store in (one, other)]
        for _ in range(2):
            before = len(heard)
            leader = await asyncio.to_thread(three.leader)
            three.kill(leader)
            async with asyncio.timeout(30):
                while len(heard) < before + 20:  # noqa: ASYNC110 - it happens in etcd
                    await asyncio.sleep(0.01)
            await back(three, leader)
        stop.set()
        versions = sorted(version for done in await asyncio.gather(*writers) for version in done)
        await until(lambda: len(heard) >= len(versions))
    assert [change.item.version for change in heard if change.item] == versions
    assert [int(change.item.value) for change in heard if change.item] == [
        *range(1, len(versions) + 1)
    ]


async def count(store: EtcdStore, stop: asyncio.Event) -> list[int]:
    """Add one to the counter again and again; the versions of what was written."""
    written = []
    while not stop.is_set():
        found = await store.get("counter") or StoredItem(b"0", 0)
        value = str(int(found.value) + 1).encode()
        try:
            written.append(await store.compare_and_swap("counter", found.version, value))
        except Conflict:
            pass
    return written


async def back(etcd: LocalEtcd, member: int) -> None:
    await asyncio.to_thread(etcd.start, member)
    await asyncio.to_thread(etcd.wait_healthy, member)


# ---- watching


async def test_a_watcher_misses_nothing_while_it_is_cut_off(
    proxy: EtcdProxy, store: EtcdStore, direct: EtcdStore
) -> None:
    heard: list[ItemChange] = []
    store.watch("", heard.append)
    first = await direct.compare_and_swap("a", 0, b"1")
    await until(lambda: len(heard) == 1)
    proxy.shut()
    second = await direct.compare_and_swap("a", first, b"2")
    await direct.compare_and_swap("a", second, None)
    proxy.reopen()
    await until(lambda: len(heard) == 3)
    third = await direct.compare_and_swap("b", 0, b"3")
    await until(lambda: len(heard) == 4)
    assert heard == [
        ItemChange("a", StoredItem(b"1", first)),
        ItemChange("a", StoredItem(b"2", second)),
        ItemChange("a", None),
        ItemChange("b", StoredItem(b"3", third)),
    ]


async def test_a_watcher_is_told_the_differences_if_etcd_forgot_the_changes(
    etcd: LocalEtcd, proxy: EtcdProxy, store: EtcdStore, direct: EtcdStore
) -> None:
    same = await direct.compare_and_swap("same", 0, b"")
    gone = await direct.compare_and_swap("gone", 0, b"")
    changed = await direct.compare_and_swap("changed", 0, b"1")
    await store.get("changed")
    heard: list[ItemChange] = []
    store.watch("", heard.append)
    mark = await direct.compare_and_swap("mark", 0, b"")
    await until(lambda: len(heard) == 1)
    proxy.shut()
    for value in (b"2", b"3"):
        changed = await direct.compare_and_swap("changed", changed, value)
    await direct.compare_and_swap("gone", gone, None)
    new = await direct.compare_and_swap("new", 0, b"")
    await compact(etcd, new)
    proxy.reopen()
    await until(lambda: len(heard) == 4)
    last = await direct.compare_and_swap("same", same, b"!")
    await until(lambda: len(heard) == 5)
    assert heard == [
        ItemChange("mark", StoredItem(b"", mark)),
        ItemChange("gone", None),
        ItemChange("changed", StoredItem(b"3", changed)),
        ItemChange("new", StoredItem(b"", new)),
        ItemChange("same", StoredItem(b"!", last)),
    ]


async def compact(etcd: LocalEtcd, revision: int) -> None:
    connection = EtcdConnection(EtcdSettings(etcd.endpoints))
    request = rpc.CompactionRequest(revision=revision, physical=True)
    await connection.ask_now(lambda endpoint: endpoint.kv.Compact, request)
    await connection.close()


async def test_a_watcher_that_fails_is_told_the_next_change_all_the_same(
    store: EtcdStore, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[ItemChange] = []

    def changed(change: ItemChange) -> None:
        heard.append(change)
        raise RuntimeError("a mistake")

    store.watch("", changed)
    await store.compare_and_swap("a", 0, b"")
    await store.compare_and_swap("b", 0, b"")
    await until(lambda: len(heard) == 2)
    assert "a mistake" in caplog.text


# ---- what is shared, what is left behind


async def test_clusters_with_other_prefixes_do_not_see_each_other(etcd: LocalEtcd) -> None:
    async with (
        opened(EtcdSettings(etcd.endpoints, "clusters/a")) as a,
        opened(EtcdSettings(etcd.endpoints, "clusters/a2")) as b,
    ):
        heard: list[ItemChange] = []
        b.watch("", heard.append)
        await a.compare_and_swap("k", 0, b"a")
        version = await b.compare_and_swap("k", 0, b"b")
        assert [item.value for item in (await a.list("")).values()] == [b"a"]
        await until(lambda: bool(heard))
        assert heard == [ItemChange("k", StoredItem(b"b", version))]


async def test_a_store_that_is_closed_leaves_only_its_data(etcd: LocalEtcd, prefix: str) -> None:
    async with opened(EtcdSettings(etcd.endpoints, prefix)) as store:
        await asyncio.gather(*(store.compare_and_swap(f"{i}", 0, b"") for i in range(4)))
    connection = EtcdConnection(EtcdSettings(etcd.endpoints))
    everything = rpc.RangeRequest(key=f"{prefix}/".encode(), range_end=f"{prefix}0".encode())
    answer = await connection.ask_now(lambda endpoint: endpoint.kv.Range, everything)
    await connection.close()
    assert [item.key for item in answer.kvs] == [f"{prefix}/data/{i}".encode() for i in range(4)]


async def test_a_lane_that_etcd_cleared_is_replaced(
    etcd: LocalEtcd, direct: EtcdStore, prefix: str
) -> None:
    """The lease in etcd expires while the store does not notice, as on a suspended machine."""
    await direct.compare_and_swap("a", 0, b"x")
    lease = rpc.LeaseRevokeRequest(ID=direct._swaps._lease)
    connection = EtcdConnection(EtcdSettings(etcd.endpoints))
    await connection.ask_now(lambda endpoint: endpoint.lease.LeaseRevoke, lease)
    await connection.close()
    version = await direct.compare_and_swap("b", 0, b"x")
    assert await direct.get("b") == StoredItem(b"x", version)


async def test_leases_of_loomlog_live_in_etcd(direct: EtcdStore) -> None:
    leases = await ClusterLeases.load(direct)
    ours = pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, name="site", holder="one", ttl_s=60)
    held = await leases.change(ours)
    assert (held.holder, held.epoch) == ("one", 1)
    successor = await ClusterLeases.load(direct)  # another metadata repository that took over
    theirs = pb.ChangeLease(action=pb.ChangeLease.ACQUIRE, name="site", holder="two", ttl_s=60)
    assert (await successor.change(theirs)).holder == "one"
    again = await successor.change(ours)
    assert again.epoch > held.epoch
    with pytest.raises(Fenced):
        await successor.change(
            pb.ChangeLease(action=pb.ChangeLease.RENEW, name="site", holder="one", epoch=held.epoch)
        )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (EtcdSettings(()), "at least one endpoint"),
        (EtcdSettings(("etcd",)), "host:port"),
        (EtcdSettings(prefix="/"), "prefix"),
        (EtcdSettings(user="loomlog"), "password"),
        (EtcdSettings(cert="c.pem", key="k.pem"), "CA"),
        (EtcdSettings(ca="/nowhere/ca.pem"), "/nowhere/ca.pem"),
    ],
)
async def test_settings_that_cannot_work_are_refused_at_once(
    settings: EtcdSettings, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await EtcdStore.open(settings)
