"""`loom node check` says what stopping nodes would cost, and is right."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from cli_rig import Loom, loom_up

from loomlog.errors import LoomError, NotFound
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing import LocalCluster

PROTOCOLS = [ORDERED, CHAINED, COPYSET]


def test_the_command_shows_a_table_and_an_exit_code(tmp_path: Path) -> None:
    with loom_up(tmp_path, "--nodes", "4", "--locations", "2", "--sync", "none") as up:
        loom = Loom(up.mr)
        for protocol in PROTOCOLS:
            loom.says("log", "create", protocol, "--protocol", protocol)
            loom.says("append", protocol, given="a\nb\n")
        assert "continue" in loom.says("node", "check", "1")
        fine = loom.json("node", "check", "1")
        assert (fine["nodes"], fine["stops"], fine["logs"]) == ([1], False, 3)
        refused = loom.run("node", "check", "1", "2", "3", "--json")
        found = json.loads(refused.stdout)
        assert (refused.returncode, found["stops"]) == (1, True)
        assert {log["log"] for log in found["affected"] if log["appends_stop"]} == set(PROTOCOLS)
        assert b"stop" in loom.run("node", "check", "1", "2", "3").stdout
        (rack,) = {node["location"] for node in loom.json("node", "list") if node["id"] == 1}
        by_location = json.loads(loom.run("node", "check", "--location", rack, "--json").stdout)
        assert by_location["nodes"] == [1, 3]
        assert "node 9" in loom.fails("node", "check", "9")
        assert "no node has the location" in loom.fails("node", "check", "--location", "moon")
        assert loom.json("node", "check")["affected"] == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_is_said_to_continue_continues_and_the_rest_stops(protocol: str) -> None:
    servers = LocalCluster(nodes=4, failure_detection_s=0.5)
    async with servers as cluster:
        impatient = await servers.connect()
        log = await cluster.create_log("events", protocol)
        await log.append(b"before")
        holders = {r.node for s in (await log.describe()).streams for r in s.replicas}
        for stopped in sorted(holders):
            outage = await cluster.check_nodes(stopped)
            assert not outage.stops
        outage = await cluster.check_nodes(1, 2, 3, 4)
        assert outage.stops
        assert outage.affected[0].copies_left == 0
        first, *others = sorted(holders)
        await servers.stop_node(first)
        async with asyncio.timeout(20):
            await log.append(b"meanwhile")
            while not (outage := await cluster.check_nodes(*others)).away:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert outage.away == (first,)
        assert outage.stops
        for node in others:
            await servers.stop_node(node)
        with pytest.raises((LoomError, TimeoutError)):
            async with asyncio.timeout(2):
                await impatient.log("events").append(b"never")


async def test_what_cannot_be_checked_is_refused() -> None:
    async with LocalCluster(nodes=1) as cluster:
        with pytest.raises(NotFound, match="node 2"):
            await cluster.check_nodes(2)
        assert (await cluster.check_nodes(1)).affected == ()
