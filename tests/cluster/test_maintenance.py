"""`loom maintenance` restarts all servers while logs are written, and no append fails."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_rig import environment, program
from number_writer import NumberWriter

import loomlog
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing.ports import free_address
from loomlog.types import SyncMode

PROTOCOLS = [ORDERED, CHAINED, COPYSET]
PATIENCE_S = 150.0


def plan(directory: Path, nodes: int = 4, metadata: int = 1) -> ClusterPlan:
    return ClusterPlan(
        directory=directory,
        nodes=nodes,
        metadata=metadata,
        port=int(free_address().rpartition(":")[2]) if metadata == 1 else 0,
        sync=SyncMode.NONE,
        heartbeat_timeout_s=1.5,
    )


@asynccontextmanager
async def maintenance(cluster: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *program("loom", "maintenance", "--json", "--cluster", cluster, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def roll(servers: LocalProcesses) -> list[dict[str, Any]]:
    """Do as the command says, and return its events."""
    events = []
    async with maintenance(servers.address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        async for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "restart":
                await servers.end(events[-1]["server"], signal.SIGTERM)
                await servers.start_again(events[-1]["server"])
        assert await process.wait() == 0, (await process.stderr.read()).decode()
    return events


@pytest.mark.parametrize(("nodes", "metadata"), [(3, 1), (4, 3)])
async def test_a_rolling_restart_of_all_servers_fails_no_append(
    tmp_path: Path, nodes: int, metadata: int
) -> None:
    async with (
        running(plan(tmp_path, nodes, metadata)) as servers,
        await loomlog.connect(servers.address) as client,
    ):
        writers = [NumberWriter(await client.create_log(name, name)) for name in PROTOCOLS]
        idle = [await client.create_log(f"idle-{name}", name) for name in PROTOCOLS]
        ats = [await log.append(b"before") for log in idle]
        leader = (await client.status()).leader
        async with asyncio.timeout(PATIENCE_S):
            events = await roll(servers)
            for writer in writers:
                await writer.stop()
                await writer.check()
            for log, at in zip(idle, ats, strict=True):
                assert (await log.read(at.position)).value == b"before"
        restarted = [event["server"] for event in events if event["event"] == "back"]
        others = [f"vmr-{n}" for n in range(1, metadata + 1) if n != leader]
        stores = [f"vsn-{n}" for n in range(1, nodes + 1)]
        assert restarted == [*stores, *others, f"vmr-{leader}"]
        assert events[-1] == {"event": "finished", "servers": nodes + metadata}
        assert (await client.check_nodes()).affected == ()


async def test_a_command_restarts_the_servers(tmp_path: Path) -> None:
    """The command leaves a note, and this test restarts what it names, as systemd would."""
    notes = tmp_path / "notes"
    notes.mkdir()
    script = f"import pathlib, sys; pathlib.Path({str(notes)!r}, sys.argv[1]).touch()"
    command = f'{sys.executable} -c "{script}" {{kind}}-{{id}}'
    async with running(plan(tmp_path / "data")) as servers:
        options = ("--restart-command", command, "--nodes", "2")
        async with asyncio.timeout(60), maintenance(servers.address, *options) as process:
            while not (notes / "vsn-2").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await servers.end("vsn-2", signal.SIGTERM)
            await servers.start_again("vsn-2")
            out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        events = [json.loads(line)["event"] for line in out.splitlines()]
        assert events == ["restarts", "back", "whole", "finished"]


async def test_a_server_that_does_not_come_back_ends_it_with_a_message(tmp_path: Path) -> None:
    async with running(plan(tmp_path)) as servers:
        options = ("--timeout", "1", "--restart-command", "true")
        async with asyncio.timeout(60), maintenance(servers.address, *options) as process:
            _, err = await process.communicate()
        assert process.returncode == 1
        assert b"vsn-1 did not come back within 1 s" in err
        failing = ("--restart-command", "false")
        async with asyncio.timeout(60), maintenance(servers.address, *failing) as process:
            _, err = await process.communicate()
        assert b"the command for vsn-1 ended with code 1" in err


async def test_it_begins_only_when_all_is_well_and_asks_about_logs_that_pause(
    tmp_path: Path,
) -> None:
    async with (
        running(plan(tmp_path)) as servers,
        await loomlog.connect(servers.address) as client,
    ):
        await (await client.create_log("alone", replicas=1)).append(b"a")
        async with asyncio.timeout(60), maintenance(servers.address) as process:
            _, err = await process.communicate()
        assert process.returncode == 2
        assert b"1 logs need every one of their nodes (alone)" in err
        await servers.end("vsn-3", signal.SIGKILL)
        async with asyncio.timeout(60):
            while not (await client.check_nodes()).away:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        async with asyncio.timeout(60), maintenance(servers.address) as process:
            _, err = await process.communicate()
        assert process.returncode == 1
        assert b"node 3 is away: start it first" in err
