"""Operators add, remove, fill and choose for logs of every protocol while they are written, on real
processes: nothing that was acknowledged is lost, and the order stays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cli_rig import Loom, Up, loom_up
from poll import until, wait_until

import loomlog
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

pytestmark = pytest.mark.timeout(240)

PROTOCOLS = (ORDERED, CHAINED, COPYSET)
WAIT = ("--wait", "--timeout", "60")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Run five nodes, which are not replaced when they die."""
    data = tmp_path_factory.mktemp("cluster")
    times = ("--heartbeat-timeout", "1", "--replace-after", "600")
    with loom_up(data, "--nodes", "5", "--sync", "none", "--restart", *times) as running:
        yield running


@pytest.fixture
def loom(up: Up) -> Loom:
    return Loom(up.mr)


@asynccontextmanager
async def written(up: Up, name: str) -> AsyncIterator[list[bytes]]:
    """Append one entry after the other. In the end, the log has exactly these, in order."""
    acknowledged: list[bytes] = []
    stop = False

    async def write() -> None:
        while not stop:
            value = b"%d" % len(acknowledged)
            positions.append((await log.append(value)).position)
            acknowledged.append(value)
            await asyncio.sleep(0.002)

    positions: list[int] = []
    async with await loomlog.connect(up.mr) as client:
        log = client.log(name)
        task = asyncio.create_task(write())
        try:
            await until(lambda: len(acknowledged) > 20)
            yield acknowledged
            before = len(acknowledged)
            await until(lambda: len(acknowledged) > before + 20)
        finally:
            stop = True
            await task
        found = [entry.value async for entry in log.subscribe(1, positions[-1])]
    assert found == acknowledged


async def run(command: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(command, *arguments)


def create(loom: Loom, name: str, protocol: str) -> None:
    more = ("--nodeset", "3") if protocol == COPYSET else ()
    loom.says("log", "create", name, "--protocol", protocol, "--replicas", "2", *more)


def active(loom: Loom, name: str) -> dict[str, Any]:
    """The streams of the active segment of a log, as one."""
    streams = loom.json("stream", "list", "--log", name)
    running = [s for s in streams if s["state"] == "running"]
    nodes = [[r["node"] for r in s["replicas"]] for s in running]
    if running[-1]["chains"]:
        nodes = running[-1]["chains"]
    return {"id": str(running[-1]["id"]), "sets": nodes}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_log_gets_more_and_less_while_it_is_written(
    up: Up, loom: Loom, protocol: str
) -> None:
    name = f"more-{protocol}"
    create(loom, name, protocol)
    before = active(loom, name)
    used = {node for nodes in before["sets"] for node in nodes}
    chosen = sorted({1, 2, 3, 4, 5} - used)[-2:]
    async with written(up, name):
        added = await run(
            loom.json, "stream", "add", name, "--nodes", ",".join(map(str, chosen)), *WAIT
        )
        wider = active(loom, name)
        assert added["stream"] == int(wider["id"])
        if protocol == COPYSET:
            assert set(wider["sets"][0]) == used.union(chosen)
            less: tuple[str, ...] = ("--nodes", str(chosen[0]))
        else:
            assert wider["sets"] == [*before["sets"], chosen]
            less = ("--part", "0") if protocol == CHAINED else ()
        going = before["id"] if protocol == ORDERED else wider["id"]
        await run(loom.says, "stream", "remove", going, "--yes", *less)
        left = active(loom, name)["sets"]
        if protocol == COPYSET:
            assert set(left[0]) == used.union(chosen[1:])
        else:
            assert left == [chosen]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_node_is_chosen_and_a_choice_taken_back(up: Up, loom: Loom, protocol: str) -> None:
    name = f"first-{protocol}"
    create(loom, name, protocol)
    async with written(up, name):
        stream, nodes = active(loom, name)["id"], active(loom, name)["sets"][0]
        await run(loom.says, "stream", "primary", stream, "--node", str(nodes[-1]), *WAIT)
        described = loom.json("stream", "describe", stream)["replicas"]
        (first,) = [r["node"] for r in described if is_first(r["role"])]
        assert first == nodes[-1]
        if protocol == COPYSET:
            said = await run(loom.says, "stream", "primary", stream, "--any")
            assert "any node may sequence" in said
        else:
            said = await run(loom.fails, "stream", "primary", stream, "--any")
            assert "is not chosen for good" in said


def is_first(role: str) -> bool:
    return any(word in role for word in ("primary", "head", "sequencer"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_node_is_filled_from_another_one(up: Up, loom: Loom, protocol: str) -> None:
    name = f"filled-{protocol}"
    create(loom, name, protocol)
    async with written(up, name):
        stream, nodes = active(loom, name)["id"], active(loom, name)["sets"][0]
        source, target = map(str, nodes[:2])
        done = await run(
            loom.json, "stream", "sync", stream, "--from", source, "--to", target, *WAIT
        )
        assert done["finished"]
        said = await run(loom.fails, "stream", "sync", stream, "--from", source, "--to", source)
        assert "cannot be filled from itself" in said


async def test_a_missing_replica_of_a_chain_is_filled_where_an_operator_wants_it(
    up: Up, loom: Loom
) -> None:
    loom.says("log", "create", "short", "--protocol", CHAINED, "--replicas", "3")
    stream, (chain,) = active(loom, "short")["id"], active(loom, "short")["sets"]
    target = max({1, 2, 3, 4, 5}.difference(chain))
    async with written(up, "short"):
        os.kill(up.pids[f"vsn-{chain[2]}"], signal.SIGSTOP)
        try:
            left = [chain[:2]]
            await until(lambda: run(active, loom, "short"), lambda now: now["sets"] == left)
            sync = ("stream", "sync", stream, "--from", str(chain[0]), "--to", str(target))
            await run(loom.says, *sync, *WAIT)
            assert active(loom, "short")["sets"] == [[*chain[:2], target]]
            assert "already" in await run(loom.says, *sync)
        finally:
            os.kill(up.pids[f"vsn-{chain[2]}"], signal.SIGCONT)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bad_argument_gets_a_line_and_changes_nothing(loom: Loom, protocol: str) -> None:
    name = f"wrong-{protocol}"
    create(loom, name, protocol)
    stream = active(loom, name)["id"]
    before = loom.json("stream", "list", "--log", name)
    for arguments, match in (
        (("add", name, "--nodes", "1,9"), "there is no node 9"),
        (("add", name, "--nodes", "1,1"), "different nodes"),
        (("add", "nothing"), "no log 'nothing'"),
        (("remove", "999", "--yes"), "no stream 999"),
        (("sync", stream, "--from", "9", "--to", "1"), "there is no node 9"),
        (("sync", "999", "--from", "1", "--to", "2"), "no stream 999"),
        (("primary", stream, "--node", "9"), "there is no node 9"),
    ):
        said = loom.fails("stream", *arguments)
        assert match in said, said
        assert len(said.splitlines()) == 1
    if protocol != CHAINED:
        first = str(active(loom, name)["sets"][0][0])
        for arguments in (
            ("remove", stream, "--yes"),
            ("primary", stream, "--node", first),
            ("sync", stream, "--from", first, "--to", first),
        ):
            assert "has no chains" in loom.fails("stream", *arguments, "--part", "1")
    if protocol == COPYSET:
        nodes = ",".join(map(str, active(loom, name)["sets"][0]))
        said = loom.fails("stream", "remove", stream, "--nodes", nodes, "--yes")
        assert "copies" in said
    else:
        assert "first" in loom.fails("stream", "remove", stream, "--yes")
    wait_until(lambda: loom.json("stream", "list", "--log", name) == before)
