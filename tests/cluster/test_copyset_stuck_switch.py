"""A copyset log that is being closed, for a switch, when one node too many dies: nothing may be
appended before its end is known. All errors and conditions name the nodes it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from poll import until

import loomlog
from loomlog.cli.commands import log as log_commands
from loomlog.client.log import Log
from loomlog.core.segments import Segment
from loomlog.errors import LoomError, Sealed, Unavailable
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.copyset import keeper
from loomlog.testing import LocalCluster
from loomlog.types import Glsn, NodeId

DETECTION_S = 2.5  # two heartbeats and more: nobody is missed who is there


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "SEAL_WAIT_S", 3.5)


def dying(local: LocalCluster, node: NodeId) -> Callable[..., Awaitable[Glsn]]:
    """Return a `seal` before which the node dies: the switch has found enough nodes by then."""
    seal = keeper.CopysetKeeper.seal

    async def seal_without_it(self: keeper.CopysetKeeper, log: LogRecord, segment: Segment) -> Glsn:
        if node in local.nodes:
            await local.stop_node(node)
        return await seal(self, log, segment)

    return seal_without_it


@asynccontextmanager
async def stuck(directory: Path) -> AsyncIterator[tuple[LocalCluster, Log, str]]:
    """Yield the cluster, the log of a client, and the text that names the nodes it waits for."""
    local = LocalCluster(nodes=5, directory=directory, failure_detection_s=DETECTION_S)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol="copyset", replicas=2)
        await log.tail()  # so that a node sequences it
        state = (await log.describe()).streams[0].copyset
        assert state is not None
        away = [node for node in range(1, 6) if node != state.sequencer][:2]
        await local.stop_node(away[0])  # without one node it can be closed
        await log.append(b"one")  # on two of the other four: one copy stays
        words = f"start node {away[0]}, node {away[1]}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keeper.CopysetKeeper, "seal", dying(local, away[1]))
            with pytest.raises(Sealed, match=words):
                await cluster.switch_log("events", protocol="ordered", replicas=2)
        async with await loomlog.connect(
            local.address, append_timeout_s=1.0, request_timeout_s=2.0
        ) as client:
            yield local, client.log("events"), words


async def test_appends_say_whom_they_wait_for_and_go_on_when_one_is_back(tmp_path: Path) -> None:
    async with stuck(tmp_path) as (local, impatient, words):

        async def refusal() -> str:
            with pytest.raises(LoomError) as refused:
                await impatient.append(b"never", fail_fast=True)
            return str(refused.value)

        await until(refusal, lambda said: words in said)  # the client knows why
        with pytest.raises(Sealed, match=words) as caught:
            await impatient.append(b"never")
        assert "\n" not in str(caught.value)
        await local.start_node(int(words[-1]))
        async with await loomlog.connect(local.address) as client:
            log = client.log("events")
            await log.append(b"two")
            assert [e.value async for e in log.subscribe(1, await log.tail())] == [b"one", b"two"]


async def test_so_does_who_asks_for_the_end(tmp_path: Path) -> None:
    async with stuck(tmp_path) as (_, log, words):
        with pytest.raises(Unavailable, match=words):
            await log.describe()


async def test_what_needs_no_end_goes_on(tmp_path: Path) -> None:
    async with stuck(tmp_path) as (local, log, _):
        async with aclosing(log.subscribe()) as found:
            entry = await anext(found)
        await log.checkpoint("billing").set(entry.position)
        assert await log.checkpoint("billing").get() == entry.position
        async with await loomlog.connect(local.address) as client:
            await client.delete_log("events")
            assert await client.logs() == []


async def test_the_command_line_shows_what_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stuck(tmp_path) as (local, _, words):
        await asyncio.to_thread(log_commands.describe, "events", local.address, as_json=True)
        shown = capsys.readouterr()
        assert words in shown.out
        assert "tail may be higher" in shown.err
