"""Positions of copyset logs, given to commands as they are shown."""

from __future__ import annotations

import asyncio

from cli_rig import Loom

from loomlog.testing import LocalCluster


def story(loom: Loom) -> None:
    assert loom.says("tail", "events", "--from", "e1n4") == "4\n5\n"
    assert loom.says("tail", "events", "--from", "4,294,967,301") == "5\n"
    loom.says("checkpoint", "set", "events", "printer", "e1n4")
    assert loom.says("tail", "events", "--checkpoint", "printer") == "5\n"
    loom.says("log", "trim", "events", "e1n3", "--yes")
    assert loom.says("tail", "events") == "4\n5\n"


async def test_they_are_taken_as_they_are_shown() -> None:
    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol="copyset", replicas=1)
        await log.append_many([b"%d" % n for n in range(1, 6)])
        await asyncio.to_thread(story, Loom(servers.address))
