"""Replicas that are removed while the journal of their volume still has to sync them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node_services import ordered_on

from loomlog.config import StorageSettings
from loomlog.storage.ordered.journal import Channel
from loomlog.testing import LocalCluster


async def test_a_volume_does_not_fail_when_a_replica_is_removed_before_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = StorageSettings(sync_interval_s=1000.0)
    local = LocalCluster(nodes=1, directory=tmp_path, sync="interval", storage=never)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"a", b"b"])
        stores = ordered_on(local.nodes[1])._stores
        [store] = stores.open.values()
        journal = stores._journal(store.path)
        remove = stores._paths.remove

        def remove_when_a_sync_is_due(stream: int) -> None:
            remove(stream)
            assert journal._dirty
            journal._sync_due = True

        monkeypatch.setattr(stores._paths, "remove", remove_when_a_sync_is_due)
        await stores.delete(store)
        synced = asyncio.get_running_loop().create_future()
        journal.call(Channel("after"), [], synced.set_result)
        assert await asyncio.wait_for(synced, 10) is None
        assert stores._disks.volume_of(store.path).works
