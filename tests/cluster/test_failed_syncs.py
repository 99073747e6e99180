"""Syncs fail on the disks of all replicas at once, as when one file system has them all."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from loomlog.storage.disk import RealFile
from loomlog.storage.files import UnsyncedError
from loomlog.testing import LocalCluster


def fail(file: RealFile) -> None:
    raise UnsyncedError(errno.EIO, "a sync failed")


async def test_a_log_goes_on_when_the_disks_of_all_replicas_are_well_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loomlog.limits.VOLUME_FAILED_S", 0.2)
    monkeypatch.setattr("loomlog.limits.VOLUME_LOOK_FAILED_S", 0.1)
    monkeypatch.setattr("loomlog.limits.FILLED_S", 0.5)
    local = LocalCluster(2, directory=tmp_path, sync="always")
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", streams=1, replicas=2)
        await log.append(b"before")
        with monkeypatch.context() as broken:
            broken.setattr(RealFile, "sync", fail)
            append = asyncio.ensure_future(log.append(b"meanwhile"))
            while (await log.describe()).streams[0].state == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await append).position == 2
        assert [e.value async for e in log.subscribe(1, 2)] == [b"before", b"meanwhile"]
