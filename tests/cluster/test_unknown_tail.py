"""The tail of a log is unknown while the nodes that know it are away. Stored entries can be read,
and no output shows the log as empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from cli_rig import Loom

from loomlog import connect
from loomlog.client.log import Log
from loomlog.errors import RolledBack, Unavailable
from loomlog.testing import LocalCluster


@asynccontextmanager
async def one_dead(directory: Path, protocol: str) -> AsyncIterator[tuple[LocalCluster, Log, int]]:
    """Run three nodes with a log of one entry whose appends need all of them, then kill a node that
    recovery needs."""
    local = LocalCluster(nodes=3, directory=directory, failure_detection_s=1.0)
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", protocol, replicas=3, min_replicas=3)
        position = (await log.append(b"one")).position
        stream = (await log.describe()).streams[0]
        copyset = stream.copyset
        dead = (copyset.sequencer if copyset else None) or stream.replicas[0].node
        async with aclosing(log.subscribe()) as entries:  # released, that is, everywhere
            assert (await anext(entries)).position == position
        await local.stop_node(dead)
        while (await cluster.status()).nodes[dead - 1].alive:  # noqa: ASYNC110 - nobody notifies
            await asyncio.sleep(0.02)
        yield local, log, position


async def test_what_is_stored_is_read_though_nobody_knows_the_end(tmp_path: Path) -> None:
    async with one_dead(tmp_path, "copyset") as (local, log, position):
        assert (await log.read(position)).value == b"one"
        async with aclosing(log.subscribe()) as entries:
            assert (await anext(entries)).value == b"one"
        async with asyncio.timeout(5):  # half as long as a request is repeated
            with pytest.raises(Unavailable, match="start node"):
                await log.tail()
            with pytest.raises(Unavailable, match="start node"):
                await log.trim(position)
            assert await log.head() == 1
        fresh = (await local.connect()).log("events")
        assert (await fresh.read(position)).value == b"one"


async def test_an_unknown_tail_is_shown_as_unknown(tmp_path: Path) -> None:
    async with one_dead(tmp_path, "copyset") as (local, _, position):
        cluster = await local.connect()
        while (info := (await cluster.logs())[0]).reached != position:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert info.tail is None
        assert local.metadata is not None
        assert local.metadata.term is not None
        view = local.metadata.term.view
        assert (await view.as_dict())["logs"][0]["tail"] is None
        assert "loomlog_log_tail{" not in await local.metadata.metrics()
        assert "loomlog_stream_entries_total{" not in await local.metadata.metrics()

        loom = Loom(local.address)
        done = await asyncio.to_thread(loom.run, "tail", "events")
        assert (done.returncode, done.stdout) == (1, b"one\n")
        assert b"may have more entries" in done.stderr
        assert b"start node" in done.stderr
        await cluster.log("events").checkpoint("reader").set(position)
        (checkpoint,) = await asyncio.to_thread(loom.json, "checkpoint", "list", "events")
        shown = {name: checkpoint[name] for name in ("position", "tail", "behind")}
        assert shown == {"position": position, "tail": None, "behind": None}
        assert "unknown" in await asyncio.to_thread(loom.says, "checkpoint", "list", "events")
        listed = await asyncio.to_thread(loom.json, "log", "list")
        assert listed[0]["tail"] is None
        assert "at least" in await asyncio.to_thread(loom.says, "log", "list")


def damage_only_round(rounds: Path) -> None:
    (path,) = rounds.iterdir()
    data = bytearray(path.read_bytes())
    data[80] ^= 4
    path.write_bytes(data)


async def test_a_vmr_alone_shows_nothing_that_only_nodes_know(tmp_path: Path) -> None:
    """A damaged last round looks like one that was never durable, and only nodes know it."""
    local = LocalCluster(nodes=3, directory=tmp_path, failure_detection_s=1.0)
    async with local as cluster, asyncio.timeout(60):
        for protocol in ("ordered", "chained", "copyset"):
            log = await cluster.create_log(protocol, protocol, replicas=3)
            if protocol != "copyset":  # one append, one round
                await log.append(b"one")
        await until_stored(local)
        for node in (1, 2, 3):
            await local.stop_node(node)
        await local.stop_metadata()
        damage_only_round(tmp_path / "vmr" / "rounds")
        for _ in range(2):  # at the second start nothing of it is left
            await local.stop_metadata()
            await local.start_metadata()
            assert local.metadata is not None
            assert local.metadata.term is not None
            keeper = local.metadata.term.keepers["ordered"]
            log_record = local.metadata.term.catalog.logs["ordered"]
            assert not keeper.is_tail_known(log_record, log_record.layout.active)
        await check_unknown(local)
        async with await connect(local.address, request_timeout_s=1.5) as impatient:
            with pytest.raises(Unavailable, match="0 of 3 storage nodes have confirmed"):
                await impatient.log("ordered").tail()
            with pytest.raises(Unavailable, match="0 of 3 storage nodes have confirmed"):
                await anext(impatient.log("ordered").subscribe("latest"))
            with pytest.raises(Unavailable, match="0 of 3 storage nodes have confirmed"):
                await impatient.log("ordered").read(1)  # is acknowledged
            with pytest.raises(Unavailable, match="0 of 3 storage nodes have confirmed"):
                await impatient.log("ordered").describe()
        loom = Loom(local.address)
        shown = await asyncio.to_thread(loom.says, "status")
        assert "unknown, at least 0" in shown
        await check_unknown(local)  # once nodes are not expected any more, too

        await asyncio.gather(*map(local.start_node, (1, 2, 3)))
        with pytest.raises(RolledBack, match="rounds are lost"):
            await cluster.log("ordered").tail()


async def until_stored(local: LocalCluster) -> None:
    """Wait until every node has reported how much it stores."""
    async with await local.connect() as cluster:
        while not all(n.stored_bytes for n in (await cluster.status()).nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def check_unknown(local: LocalCluster) -> None:
    assert local.metadata is not None
    assert local.metadata.term is not None
    view = local.metadata.term.view
    status, metrics = await view.as_dict(), await local.metadata.metrics()
    logs = {log["name"]: log for log in status["logs"]}
    assert logs["ordered"]["tail"] is logs["chained"]["tail"] is None
    for log in logs.values():
        assert all(stream["entries"] is None for stream in log["streams"])
    assert logs["ordered"]["streams"][0]["last"] is logs["chained"]["streams"][0]["last"] is None
    assert all(n["stored_bytes"] is n["last_report_s"] is None for n in status["nodes"])
    for name in (
        'log_tail{log="ordered"',
        'log_tail{log="chained"',
        "stream_entries_total{",
        "stream_lag_entries{",
        'log_rounds_lost{log="ordered"',
        "log_underreplicated_records{",
        "log_underreplicated_bytes{",
        'conditions{kind="under-replicated"',
        "node_stored_bytes{",
        "node_unknown_streams{",
        'denials_total{server="vsn',
        'audit_dropped_total{server="vsn',
        'limit_refusals_total{server="vsn',
    ):
        assert f"loomlog_{name}" not in metrics, name
    assert 'loomlog_conditions{kind="metadata-waits"' in metrics


async def test_an_ordered_log_names_the_command_that_lets_it_go_on(tmp_path: Path) -> None:
    async with one_dead(tmp_path, "ordered") as (local, _, _):
        cluster = await local.connect()
        while "--replicas 2" not in (await cluster.logs())[0].streams[0].condition:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await cluster.switch_log("events", replicas=2)
        assert (await cluster.log("events").append(b"two")).position == 2
