"""A node neither serves nor deletes data that does not belong to it, and serves the rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chained_node_rig import ChainNodes, block, replica
from node_rig import BIRTH, STAMP, STREAM
from node_services import shard_on

from loomlog.core.chained.messages import Read, Refused, Stored, Write
from loomlog.errors import AlreadyExists
from loomlog.wire import loomlog_pb2 as pb


async def with_a_stream_and_a_chain(nodes: ChainNodes, node: int) -> int:
    """The last LLSN of the stream; the chain has one block."""
    await nodes.add(node)
    await nodes.run_alone(node)
    last = await nodes.append(node, 1, 3)
    await nodes.create(replica(node))
    assert await nodes.ask(Write(2, block(1)), replica(node)) == Stored()
    return last


async def test_a_stream_that_was_copied_is_served_once(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1, volumes=2) as nodes:
        last = await with_a_stream_and_a_chain(nodes, 1)
        await nodes.stop(1)
        copies = [nodes.path(1).with_name("lsid=99")]
        copies += [tmp_path / "vsn-1+/cid=test/snid=1" / name for name in ("lsid=98", "lsid=97")]
        for copy in copies:
            shutil.copytree(nodes.path(1), copy)
        await nodes.start(1)
        registered = nodes.metadata.registrations[1]
        assert [report.log_stream_id for report in registered.uncommit_reports] == [STREAM]
        assert registered.highest_stream_id == 99
        assert list(registered.conditions.unserved) == [STREAM, 97, 98, 99]
        conditions = [each.text for each in registered.conditions.conditions]
        assert len(conditions) == 3
        for copy, condition in zip(copies, sorted(conditions, reverse=True), strict=True):
            assert f"{copy} is not served: it holds log stream 1, not" in condition
        assert len(await nodes.read_stream(1, 1, last)) > 0
        order = pb.AddLogStream(log_id=1, log_stream_id=99, stamp=STAMP, birth=BIRTH)
        with pytest.raises(AlreadyExists, match="it holds log stream 1, not 99"):
            await nodes.metadata.order(1, pb.Frame(add_log_stream=order))
        assert all((copy / "meta").exists() for copy in copies)


async def test_a_stream_that_is_there_twice_is_not_served_and_the_rest_is(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1, volumes=2) as nodes:
        await with_a_stream_and_a_chain(nodes, 1)
        await nodes.stop(1)
        shutil.copytree(nodes.path(1), tmp_path / f"vsn-1+/cid=test/snid=1/lsid={STREAM}")
        await nodes.start(1)
        registered = nodes.metadata.registrations[1]
        assert not registered.uncommit_reports
        assert list(registered.conditions.unserved) == [STREAM]
        assert all("the same log stream is at" in c.text for c in registered.conditions.conditions)
        assert not isinstance(await nodes.ask(Read(2, 1)), Refused)


@pytest.mark.parametrize("where", ["of another node", "on another volume"])
async def test_chains_that_were_copied_are_not_served_and_the_rest_is(
    tmp_path: Path, where: str
) -> None:
    async with ChainNodes(tmp_path, 2, volumes=2) as nodes:
        last = await with_a_stream_and_a_chain(nodes, 1)
        await nodes.create(replica(2))
        for node in (1, 2):
            await nodes.stop(node)
        if where == "of another node":
            shutil.rmtree(nodes.chains(1))
            shutil.copytree(nodes.chains(2), nodes.chains(1))
        else:
            shutil.copytree(nodes.chains(1), tmp_path / "vsn-1+/cid=test/snid=1/chains")
        await nodes.start(1)
        registered = nodes.metadata.registrations[1]
        assert not registered.chain_replicas
        expected = "storage node 2, not to" if where == "of another node" else "copies of each"
        assert registered.conditions.conditions
        assert all(expected in condition.text for condition in registered.conditions.conditions)
        assert isinstance(await nodes.ask(Read(2, 1)), Refused)
        assert len(await nodes.read_stream(1, 1, last)) > 0
        assert (nodes.chains(1) / "CURRENT").exists()


async def test_copies_that_were_copied_are_not_served_and_the_rest_is(tmp_path: Path) -> None:
    """Neither of the two can be known to be the newer one."""
    async with ChainNodes(tmp_path, 1, volumes=2) as nodes:
        last = await with_a_stream_and_a_chain(nodes, 1)
        logs = tmp_path / "vsn-1/cid=test/snid=1/logs"
        copy = tmp_path / "vsn-1+/cid=test/snid=1/logs"
        assert await shard_on(nodes.nodes[1]).copies.volume.opened() is not None
        await nodes.stop(1)
        shutil.copytree(logs, copy)
        await nodes.start(1)
        registered = nodes.metadata.registrations[1]
        assert [shard.stores_no_copies for shard in registered.conditions.shards] == [True] * 2
        assert not registered.lost_shards
        conditions = [condition.text for condition in registered.conditions.conditions]
        assert len(conditions) == 2
        assert all("are copies of one store" in condition for condition in conditions)
        assert len(await nodes.read_stream(1, 1, last)) > 0
        assert not isinstance(await nodes.ask(Read(2, 1)), Refused)
        assert (logs / "CURRENT").exists()
        await nodes.stop(1)
        shutil.rmtree(copy)
        await nodes.start(1)
        registered = nodes.metadata.registrations[1]
        assert not registered.conditions.shards
        assert not registered.conditions.conditions
        assert not registered.lost_shards
