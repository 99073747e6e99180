"""Appends to logs whose metadata was restored from an older copy."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from poll import until

from loomlog.errors import AppendUnknown, RolledBack
from loomlog.testing import LocalCluster

SOON_S = 15.0  # half of what an append may take, on a slow machine


async def test_appends_fail_at_once_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    local = LocalCluster(nodes=3, directory=tmp_path / "cluster")
    vmr, copy = tmp_path / "cluster" / "vmr", tmp_path / "copy"
    async with local as cluster:
        log = await cluster.create_log("events", streams=2, replicas=3)
        await local.stop_metadata()
        shutil.copytree(vmr, copy)
        await local.start_metadata()
        await log.append(b"the copy lacks this")
        idle = await local.connect()
        await idle.log("events").append(b"and this")

        await local.stop_metadata()
        shutil.rmtree(vmr)
        shutil.copytree(copy, vmr)
        await local.start_metadata()
        async with asyncio.timeout(SOON_S), await local.connect() as newcomer:
            first, known = newcomer.log("events").append(b"x"), log.append(b"y")
            with pytest.raises(RolledBack, match="loom metadata catch-up"):
                await first
            with pytest.raises((RolledBack, AppendUnknown), match="went back in time"):
                await known  # its client knows the streams, and may have sent it
        await until(lambda: all(node._link.rolled_back for node in local.nodes.values()))
        async with asyncio.timeout(SOON_S):
            with pytest.raises(RolledBack, match="loom metadata catch-up"):
                await idle.log("events").append(b"z")  # a node refuses it
        await idle.close()


async def test_a_sequencer_that_works_takes_nothing_new(tmp_path: Path) -> None:
    local = LocalCluster(nodes=3, directory=tmp_path / "cluster")
    vmr, copy = tmp_path / "cluster" / "vmr", tmp_path / "copy"
    async with local as cluster:
        log = await cluster.create_log("events", "copyset", replicas=3)
        await local.stop_metadata()
        shutil.copytree(vmr, copy)
        await local.start_metadata()
        await log.append(b"the copy lacks the epoch of this")

        await local.stop_metadata()
        shutil.rmtree(vmr)
        shutil.copytree(copy, vmr)
        await local.start_metadata()
        await until(lambda: all(node._link.rolled_back for node in local.nodes.values()))
        async with asyncio.timeout(SOON_S):
            with pytest.raises(RolledBack, match="loom metadata catch-up"):
                await log.append(b"x")
