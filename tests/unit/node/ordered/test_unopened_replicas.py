"""A replica whose volume failed when its node started is not gone: it is served later."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from node_rig import PATIENCE_S, STREAM, Nodes
from node_services import ordered_on

from loomlog import limits
from loomlog.errors import Unavailable
from loomlog.storage.ordered.replica_paths import ReplicaPaths
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.wire import loomlog_pb2 as pb


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VOLUME_LOOK_FAILED_S", "VOLUME_FAILED_S", "REOPEN_S"):
        monkeypatch.setattr(limits, name, 0.05)


class BadDisk:
    """No replica can be opened until it is mended."""

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._attempts = 0
        self.was_tried_again = Event()  # in the thread of a worker

    def fail(self) -> None:
        self._patch.setattr(StreamStore, "open", self._open)

    def mend(self) -> None:
        self._patch.undo()

    def _open(self, *_: object) -> StreamStore:
        self._attempts += 1
        if self._attempts > 1:
            self.was_tried_again.set()
        raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def disk() -> Iterator[BadDisk]:
    disk = BadDisk()
    yield disk
    disk.mend()


async def start_unopened(nodes: Nodes, disk: BadDisk) -> int:
    """Start node 1 without its replica; return the last LLSN of that."""
    await nodes.add(1)
    await nodes.run_alone(1)
    last = await nodes.append(1, 1, 2)
    await nodes.metadata.until(lambda: nodes.metadata.committed(1) == last)
    nodes.metadata.reports.clear()
    disk.fail()
    await nodes.restart(1)
    assert not nodes.metadata.reports
    return last


async def test_nobody_who_asks_for_it_is_told_that_it_is_gone(
    tmp_path: Path, disk: BadDisk
) -> None:
    async with Nodes(tmp_path, 1) as nodes:
        last = await start_unopened(nodes, disk)
        client = await nodes.client(1)
        question = pb.FetchBatches(log_stream_id=STREAM, first_llsn=1, last_llsn=1)
        for asked in (
            nodes.seal(1, 2, last),
            nodes.trim(1, 1),
            nodes.remove(1),
            client.request(pb.Frame(fetch_batches=question)),
        ):
            with pytest.raises(Unavailable, match="does not serve its replica now"):
                await asked
        disk.mend()
        await nodes.metadata.until(lambda: nodes.metadata.committed(1) == last)
        await nodes.remove(1)
        assert not nodes.path(1).exists()


async def test_it_is_opened_though_that_failed_again_while_the_volume_worked(
    tmp_path: Path, disk: BadDisk
) -> None:
    async with Nodes(tmp_path, 1) as nodes:
        last = await start_unopened(nodes, disk)
        assert await asyncio.to_thread(disk.was_tried_again.wait, PATIENCE_S)
        disk.mend()
        await nodes.metadata.until(lambda: nodes.metadata.committed(1) == last)
        assert (await nodes.seal(1, 2, last)).state == pb.STREAM_SEALED


async def test_a_replica_that_comes_or_goes_is_no_data_that_cannot_be_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the metadata repository looks at all streams of the node for each such one."""
    async with Nodes(tmp_path, 1) as nodes:
        stores = ordered_on(nodes.nodes[1])._stores
        create, remove, seen = StreamStore.create, ReplicaPaths.remove, list[set[int]]()

        def create_slowly(*arguments: Any) -> StreamStore:
            seen.append(stores.unserved(()))
            return create(*arguments)

        def remove_slowly(*arguments: Any) -> None:
            seen.append(stores.unserved(()))
            remove(*arguments)

        monkeypatch.setattr(StreamStore, "create", create_slowly)
        monkeypatch.setattr(ReplicaPaths, "remove", remove_slowly)
        await nodes.add(1)
        assert stores.unserved(()) == {STREAM}
        assert stores.unserved({STREAM}) == set()
        await nodes.remove(1)
        assert seen == [set(), set()]
        assert stores.unserved(()) == set()
