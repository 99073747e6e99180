"""A storage node serves chains: its answers to each peer, and its durable state."""

from __future__ import annotations

import asyncio
import errno
import re
import threading
from pathlib import Path
from struct import pack

import pytest
from chained_node_rig import EPOCH, LOGLET, ChainNodes, block, replica
from node_rig import PATIENCE_S
from node_services import chained_on
from poll import until

from loomlog import limits
from loomlog.config import StorageSettings
from loomlog.core.chained.chain import Extent, Replica
from loomlog.core.chained.messages import (
    Before,
    Check,
    Create,
    Done,
    EpochOver,
    Fetch,
    Fetched,
    Found,
    List,
    Listed,
    Missing,
    Pull,
    Pulled,
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
from loomlog.core.chained.replica import DAMAGED, NOT_HERE
from loomlog.core.requests import Lost
from loomlog.errors import InvalidArgument, LoomError, Unauthorized
from loomlog.limits import MIB, POSITION_MAX
from loomlog.node.chained import volumes
from loomlog.storage.chained.rocks_table import salvage_table
from loomlog.storage.files import Files
from loomlog.types import SyncMode
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import request_to_wire


async def test_blocks_are_written_read_and_trimmed(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        assert await nodes.ask(Write(EPOCH, block(1, 3))) == Stored()
        assert await nodes.ask(Write(EPOCH, block(1, 3))) == Stored()
        assert await nodes.ask(Write(EPOCH, block(1, 3, sequence=99))) == Written()
        large = block(6, 2, size=100_000)
        assert await nodes.ask(Write(EPOCH, large)) == Stored()
        assert await nodes.ask(Read(EPOCH, 2)) == Found(block(1, 3))
        assert await nodes.ask(Read(EPOCH, 4)) == Missing(0)
        assert await nodes.ask(Before(EPOCH, 5)) == Found(block(1, 3))
        assert await nodes.ask(List(EPOCH, 1, 9)) == Listed([Extent(1, 3), Extent(6, 2)], False)
        assert await nodes.ask(Fetch(EPOCH, 1, MIB)) == Fetched([block(1, 3), large], False)
        assert await nodes.ask(Check(EPOCH)) == Done()
        assert await nodes.order_chain(Trim(EPOCH, 3)) == Done()
        assert await nodes.ask(Read(EPOCH, 2)) == TrimmedTo(3)
        assert await nodes.order_chain(Seal(EPOCH + 1)) == SealedAt(8, 3)
        assert await nodes.ask(Write(EPOCH, block(9))) == EpochOver(EPOCH + 1)


@pytest.mark.parametrize(
    "order",
    [Seal(EPOCH), Create(), Pull(EPOCH, replica(2), 1, MIB), Trim(EPOCH, 1), Remove()],
    ids=repr,
)
async def test_an_order_is_taken_from_the_metadata_repository_only(
    tmp_path: Path, order: Request
) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        with pytest.raises(Unauthorized, match="metadata repository only"):
            await nodes.ask(order, replica(birth=2))


async def test_what_makes_no_sense_harms_nobody(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        client = await nodes.client(1)
        message, payload = request_to_wire(replica(), Write(EPOCH, block(1)))
        for bad in (b"no batch", bytes(payload)[:-1], bytes(block(2).batch)):
            with pytest.raises(InvalidArgument):
                await client.request(pb.Frame(chain_request=message), [bad])
        with pytest.raises(InvalidArgument):
            await client.request(pb.Frame(chain_request=pb.ChainRequest()))
        assert await nodes.ask(Write(EPOCH, block(1))) == Stored()


async def test_a_replica_that_is_not_here_says_so(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        for _ in range(2):
            assert isinstance(await nodes.ask(Read(EPOCH, 1)), Refused)
            assert isinstance(await nodes.order_chain(Seal(EPOCH)), Refused)
            assert await nodes.order_chain(Remove()) == Done()
            await nodes.create(replica(birth=2))
            assert isinstance(await nodes.order_chain(Create(), replica(birth=2)), Refused)
            assert await nodes.order_chain(Remove(), replica(birth=2)) == Done()


async def test_a_node_without_chains_pays_nothing_for_them(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        before = threading.active_count()
        assert isinstance(await nodes.ask(Read(EPOCH, 1)), Refused)
        await nodes.restart(1)
        assert threading.active_count() == before
        assert not nodes.chains().exists()
        await nodes.create()
        assert threading.active_count() > before
        assert nodes.chains().exists()


async def test_a_node_registers_with_the_replicas_that_it_has(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create(replica(chain=0), replica(chain=1), replica(chain=1, birth=8))
        assert await nodes.order_chain(Create(), replica(chain=2)) == Done()
        await nodes.ask(Write(EPOCH, block(1)))
        await nodes.order_chain(Seal(7), replica(chain=1))
        await nodes.order_chain(Remove(), replica(chain=1, birth=8))
        await nodes.restart(1)
        assert nodes.found() == [(LOGLET, 0, 1, EPOCH), (LOGLET, 1, 1, 7), (LOGLET, 2, 1, 0)]
        assert await nodes.ask(Read(EPOCH, 1)) == Found(block(1))


async def test_many_writes_at_once_are_all_stored(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        writes = [nodes.ask(Write(EPOCH, block(first))) for first in range(1, 201)]
        assert await asyncio.gather(*writes) == [Stored()] * 200
        assert await nodes.ask(List(EPOCH, 1, 999)) == Listed(
            [Extent(first, 1) for first in range(1, 201)], more=False
        )


async def test_chains_are_synced_whatever_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loomlog.storage.chained.rocks_table import RocksTable

    synced: list[bool] = []
    commit = RocksTable.commit

    def noted(self: RocksTable, changes: object, *, sync: bool) -> None:
        synced.append(sync)
        commit(self, changes, sync=sync)  # type: ignore[arg-type]

    monkeypatch.setattr(RocksTable, "commit", noted)
    async with ChainNodes(tmp_path, 1, StorageSettings(sync=SyncMode.NONE)) as nodes:
        await nodes.create()
        await nodes.ask(Write(EPOCH, block(1)))
    assert synced == [True, True, True]


# ---- disks that fail


async def test_chains_that_cannot_be_opened_do_not_stop_the_node(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        await nodes.stop(1)
        [manifest] = nodes.chains().glob("MANIFEST-*")
        manifest.rename(tmp_path / "away")
        await nodes.start(1)
        assert nodes.found() == []
        answer = await nodes.order_chain(Create(), replica(birth=2))
        assert isinstance(answer, Refused)
        assert "see the node's log" in answer.reason
        await nodes.add(1)  # other things work


async def test_a_replica_in_chains_that_cannot_be_opened_is_not_called_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REOPEN_S", 0.05)
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        await nodes.stop(1)
        [manifest] = nodes.chains().glob("MANIFEST-*")
        away = manifest.rename(tmp_path / "away")
        await nodes.start(1)
        for request in (Remove(), Seal(EPOCH, salvage=True)):
            answer = await nodes.order_chain(request)
            assert isinstance(answer, Refused)
            assert "cannot be opened" in answer.reason
        away.rename(manifest)
        async with asyncio.timeout(PATIENCE_S):
            while (await nodes.order_when_connected(Check(EPOCH))) != Done():
                pass
        assert await nodes.order_when_connected(Remove()) == Done()
        await nodes.restart(1)
        assert nodes.found() == []


async def test_a_disk_that_fails_refuses_and_the_node_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loomlog.storage.chained.rocks_table import RocksTable

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(limits, "VOLUME_FAILED_S", 0.1)
    monkeypatch.setattr(limits, "VOLUME_LOOK_FAILED_S", 0.02)
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()

        def unserved() -> bool:
            return chained_on(nodes.nodes[1])._volumes.are_unserved

        assert not unserved()
        with monkeypatch.context() as broken:
            broken.setattr(RocksTable, "commit", full)
            assert await nodes.ask(Write(EPOCH, block(1))) == Lost()
            assert unserved()
            # What reached the disk is unknown, so nothing is shown or promised any more.
            answer = await nodes.ask(Write(EPOCH, block(2)))
            assert isinstance(answer, Refused)
            assert answer.reason.endswith("/vsn-1 failed: no space left on device: free space")
            assert isinstance(await nodes.ask(Read(EPOCH, 1)), Refused)
            assert isinstance(await nodes.order_chain(Create(), replica(birth=2)), Refused)
            with pytest.raises(LoomError, match="no space left"):  # of whatever protocol
                await nodes.add(1)
        await nodes.until_stored(block(1))
        assert not unserved()
        assert await nodes.ask(Read(EPOCH, 1)) == Found(block(1))
        assert await nodes.order_chain(Create(), replica(birth=2)) == Done()


async def test_a_node_that_stops_while_its_disk_fails_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loomlog.storage.chained.rocks_table import RocksTable

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        with monkeypatch.context() as broken:
            broken.setattr(RocksTable, "commit", full)
            for expected in (Lost, Refused):  # the second makes it open the table again
                assert isinstance(await nodes.ask(Write(EPOCH, block(1))), expected)
            await nodes.stop(1)
        await nodes.start(1)
        await nodes.ask(Write(EPOCH, block(1)))


@pytest.mark.parametrize(("size", "where"), [(10_000, "*.blob"), (100_000, "batches/*/1")])
async def test_a_replica_that_cannot_be_read_says_that_it_is_not_fit(
    tmp_path: Path, size: int, where: str
) -> None:
    """The metadata repository hears of it, too, and may give the chain another replica."""
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        await nodes.ask(Write(EPOCH, block(1, size=size)))
        await nodes.ask(Write(EPOCH, block(2, size=size)))
        await nodes.restart(1)  # they are in a file now
        [file] = nodes.chains().glob(where)
        content = bytearray(file.read_bytes())
        content[1000] ^= 1
        file.write_bytes(content)
        assert await nodes.ask(Check(EPOCH)) == Done()
        assert isinstance(await nodes.ask(Read(EPOCH, 1)), Refused)
        assert isinstance(await nodes.ask(Read(EPOCH, 1)), Refused)
        await nodes.metadata.until(lambda: nodes.metadata.chains_reported)
        [report] = nodes.metadata.chains_reported
        assert (report.loglet_id, report.epoch, report.storage_node_id) == (LOGLET, EPOCH, 1)
        assert await nodes.ask(Check(EPOCH)) == DAMAGED
        # Until then it does what it can.
        assert await nodes.ask(Read(EPOCH, 2)) == Found(block(2, size=size))
        assert await nodes.ask(Write(EPOCH, block(3))) == Stored()


# ---- several volumes


async def test_new_replicas_go_where_the_fewest_are(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1, volumes=2) as nodes:
        await nodes.create(*(replica(chain=chain) for chain in range(4)))
        await nodes.ask(Write(EPOCH, block(1)), replica(chain=3))
        await nodes.restart(1)
        assert sorted(found[1] for found in nodes.found()) == [0, 1, 2, 3]
        assert await nodes.ask(Read(EPOCH, 1), replica(chain=3)) == Found(block(1))
        assert len(list(tmp_path.glob("*/cid=test/snid=1/chains"))) == 2


async def test_a_replica_may_be_on_a_volume_that_is_missing(tmp_path: Path) -> None:
    """Such a replica is neither lost nor removed: that is known when the volume is back."""
    async with ChainNodes(tmp_path, 1, volumes=2) as nodes:
        both = replica(chain=0), replica(chain=1)
        await nodes.create(*both)
        nodes.volumes = 1
        await nodes.restart(1)
        away = next(each for each in both if each[1:] not in {key[:3] for key in nodes.found()})
        for request in (Seal(EPOCH + 1, salvage=True), Check(EPOCH), Remove()):
            answer = await nodes.order_chain(request, away)
            assert isinstance(answer, Refused)
            assert answer != NOT_HERE
            assert f"volume {tmp_path / 'vsn-1+'} is missing" in answer.reason
        nodes.volumes = 2
        await nodes.restart(1)
        assert isinstance(await nodes.order_chain(Seal(EPOCH), away), SealedAt)


# ---- space


async def test_what_chains_take_is_reported(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        for first in range(1, 11):
            await nodes.ask(Write(EPOCH, block(first, size=100_000)))
        await nodes.metadata.until(lambda: nodes.metadata.loglet_bytes >= MIB * 9 // 10)


async def test_the_space_of_what_was_trimmed_and_removed_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loomlog.storage.chained.rocks_table import RocksTable

    loop = asyncio.get_running_loop()
    freed: asyncio.Queue[tuple[Replica, int]] = asyncio.Queue()

    def reclaim(_: RocksTable, found: Replica, position: int) -> None:
        loop.call_soon_threadsafe(freed.put_nowait, (found, position))

    monkeypatch.setattr(RocksTable, "reclaim", reclaim)
    monkeypatch.setattr(volumes, "RECLAIM_AFTER_S", 0.0)
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        await nodes.ask(Write(EPOCH, block(1, 9)))
        await nodes.order_chain(Trim(EPOCH, 4))
        async with asyncio.timeout(PATIENCE_S):
            assert await freed.get() == (replica(), 4)
            await nodes.order_chain(Remove())
            assert await freed.get() == (replica(), POSITION_MAX)


async def test_a_node_that_stops_does_not_wait_for_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loomlog.storage.chained.rocks_table import RocksTable

    under_way, given_up = threading.Event(), threading.Event()

    def reclaim(*_: object) -> None:
        under_way.set()
        assert given_up.wait(PATIENCE_S)

    monkeypatch.setattr(RocksTable, "reclaim", reclaim)
    monkeypatch.setattr(RocksTable, "interrupt", lambda _: given_up.set())
    monkeypatch.setattr(volumes, "RECLAIM_AFTER_S", 0.0)
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        await nodes.order_chain(Trim(EPOCH, 4))
        await asyncio.to_thread(under_way.wait, PATIENCE_S)
        await nodes.restart(1)
        assert given_up.is_set()


async def test_a_newcomer_pulls_from_another_node(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 2) as nodes:
        source, newcomer = replica(1), replica(2, birth=2)
        await nodes.create(source)
        assert await nodes.order_chain(Create(), newcomer) == Done()
        blocks = [block(1, 3), block(4, size=100_000), block(5)]
        for written in blocks:
            assert await nodes.ask(Write(EPOCH, written)) == Stored()
        first = await nodes.pull(source, newcomer, 1, 50_000)
        assert isinstance(first, Pulled)
        assert (first.end, first.more) == (5, True)
        assert first.size == sum(len(block.batch) for block in blocks[:2])
        assert await nodes.pull(source, newcomer, 5, MIB) == Pulled(
            6, len(blocks[2].batch), more=False
        )
        assert await nodes.pull(source, newcomer, 6, MIB) == Pulled(6, 0, more=False)
        assert await nodes.order_chain(Seal(EPOCH), newcomer) == SealedAt(6, 0)
        assert await nodes.ask(Fetch(EPOCH, 1, MIB), newcomer) == Fetched(blocks, more=False)


async def test_a_newcomer_tells_what_its_source_answers(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 2) as nodes:
        source, newcomer = replica(1), replica(2, birth=2)
        await nodes.create(source)
        assert await nodes.order_chain(Create(), newcomer) == Done()
        assert await nodes.ask(Write(EPOCH, block(1, 3))) == Stored()
        assert await nodes.order_chain(Trim(EPOCH, 3)) == Done()
        assert await nodes.pull(source, newcomer, 1, MIB) == TrimmedTo(3)
        assert await nodes.order_chain(Seal(EPOCH + 1)) == SealedAt(4, 3)
        assert await nodes.pull(source, newcomer, 4, MIB) == EpochOver(EPOCH + 1)
        assert await nodes.ask(Write(EPOCH + 1, block(4))) == Stored()
        unknown = await nodes.pull(source, replica(2, birth=9), 4, MIB, epoch=EPOCH + 1)
        assert isinstance(unknown, Refused)


async def test_a_source_that_is_gone_is_named(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 2) as nodes:
        source, newcomer = replica(1), replica(2, birth=2)
        await nodes.create(source)
        assert await nodes.order_chain(Create(), newcomer) == Done()
        assert await nodes.ask(Write(EPOCH, block(1))) == Stored()
        assert isinstance(await nodes.pull(source, newcomer, 1, MIB), Pulled)
        await nodes.stop(1)
        for _ in range(2):  # its connection, and then a new one
            answer = await nodes.pull(source, newcomer, 1, MIB)
            assert isinstance(answer, Refused)
            assert "node 1" in answer.reason


async def test_rows_that_a_reader_cannot_read_let_the_rest_be_salvaged(tmp_path: Path) -> None:
    """The replica is not served before the metadata repository knows that blocks may be missing."""
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        for first in range(1, 301):
            assert await nodes.ask(Write(EPOCH, block(first))) == Stored()
        await nodes.restart(1)  # now they are in a table
        await nodes.stop(1)
        table = max(nodes.chains().glob("*.sst"), key=lambda file: file.stat().st_size)
        content = bytearray(table.read_bytes())
        extents = [found.end() for found in re.finditer(b"E" + pack(">II", LOGLET, 0), content)]
        content[extents[len(extents) // 3]] ^= 1
        table.write_bytes(content)
        await nodes.start(1)
        aside = nodes.chains().with_name("chains.damaged")
        async with asyncio.timeout(PATIENCE_S):
            while not aside.exists():
                await nodes.order_when_connected(Fetch(EPOCH, 1, MIB))
            seal = Seal(EPOCH + 1, salvage=True)
            while not isinstance(await nodes.order_when_connected(seal), SealedAt):
                pass
        listed = await nodes.order_chain(List(EPOCH + 1, 1, 400))
        assert isinstance(listed, Listed)
        assert len(listed.extents) == 300, "what follows from blocks is made again"
        assert nodes.metadata.registrations[1].salvaged_chains == [0]


async def test_chains_are_salvaged_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def salvage_later(files: Files, path: str) -> str:
        attempts.append(path)
        if len(attempts) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return salvage_table(files, path)

    monkeypatch.setattr(volumes, "_salvage", salvage_later)
    monkeypatch.setattr(limits, "REOPEN_S", 0.05)
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        assert await nodes.ask(Write(EPOCH, block(1))) == Stored()
        await nodes.stop(1)
        (nodes.chains() / "CURRENT").write_text("no manifest\n")
        await nodes.start(1)
        await until(nodes.chains().with_name("chains.damaged").exists)
        assert len(attempts) == 2
