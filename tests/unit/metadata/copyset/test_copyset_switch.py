"""Logs that are switched to `copyset`, and away from it, on real storage nodes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from cluster_requests import copyset, segments
from poll import until
from small_cluster import QUICK, SmallCluster

from loomlog.core.copyset.messages import NodeAnswer, NodeRequest
from loomlog.core.copyset.nodeset import node_of
from loomlog.core.copyset.record import epoch_of, make
from loomlog.errors import InvalidArgument
from loomlog.metadata.copyset import operator
from loomlog.metadata.copyset.keeper import CopysetKeeper
from loomlog.node.copyset.asker import Asker, OnAnswer
from loomlog.types import ShardId
from loomlog.wire import loomlog_pb2 as pb


async def test_from_protocol_to_protocol_and_back(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create(replicas=2)
        assert await cluster.log.append(b"one") == 1
        assert await cluster.log.append(b"two") == 2

        await cluster.switch("copyset", streams=1, replicas=2)
        first = await cluster.log.append(b"three", 3)
        second = await cluster.log.append(b"four")
        assert (first, second) == (make(epoch_of(first), 1), first + 3)
        assert await cluster.bounds() == (1, second)

        await cluster.switch("chained", streams=1, replicas=2)
        assert await cluster.bounds() == (1, second)
        assert await cluster.log.append(b"five") == second + 1

        await cluster.switch("ordered", streams=1, replicas=2)
        assert await cluster.log.append(b"six") == second + 2

        await cluster.switch("copyset", streams=1, replicas=3)
        last = await cluster.log.append(b"seven")
        assert last > second + 2
        log = await cluster.describe()
        assert segments(log) == [
            ("ordered", 1, 2),
            ("copyset", 3, second),
            ("chained", second + 1, second + 1),
            ("ordered", second + 2, second + 2),
            ("copyset", second + 3, None),
        ]
        closed = copyset(log)
        assert (closed.state, closed.condition) == (pb.STREAM_SEALED, "")


async def test_the_log_goes_on_when_the_sequencer_is_lost(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        position = await cluster.log.append(b"one")
        sequencer = (await cluster.describe()).streams[-1].copyset.sequencer
        await cluster.stop_node(sequencer)
        epoch = epoch_of(position)
        log = await cluster.log_is(lambda log: log.streams[-1].copyset.last_clean >= epoch)
        assert log.tail == position, "though nobody appends"
        assert await cluster.log.append(b"two") > position


async def test_what_was_acknowledged_is_recovered_when_its_sequencer_is_started_anew(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        position = await cluster.log.append(b"one")
        sequencer = (await cluster.describe()).streams[-1].copyset.sequencer
        await cluster.stop_node(sequencer)
        await cluster.start_node(sequencer)
        epoch = epoch_of(position)
        log = await cluster.log_is(lambda log: log.streams[-1].copyset.last_clean >= epoch)
        assert log.tail == position


async def test_a_log_goes_on_after_a_takeover(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        position = await cluster.log.append(b"one")
        await cluster.restart_repository()
        assert await cluster.log.append(b"two") == position + 1, "its sequencer went on"
        assert await cluster.bounds() == (1, position + 1)
        await cluster.switch("ordered", streams=1, replicas=2)
        assert await cluster.log.append(b"three") == position + 2


async def test_what_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        loglet = (await cluster.describe()).segments[-1].loglet_id
        await cluster.log.append(b"one")
        await cluster.delete()
        term = cluster.repository.term
        assert term is not None
        keeper = term.keepers["copyset"]
        assert isinstance(keeper, CopysetKeeper)
        await until(lambda: keeper.records.get(loglet) is None)


async def test_operators_learn_what_to_do_instead_of_changing_streams(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        log = await cluster.create_copyset()
        stream = log.streams[0].log_stream_id
        for action, instead in (
            (pb.ChangeStream.SEAL, "loom acl revoke"),
            (pb.ChangeStream.MOVE, "loom stream add LOG --nodes"),
            (pb.ChangeStream.UNREGISTER, "--replicas N"),
        ):
            with pytest.raises(InvalidArgument, match=instead):
                await cluster.change(action, stream)


async def test_operators_choose_the_node_that_sequences_a_log(tmp_path: Path) -> None:
    primary = pb.ChangeStream.PRIMARY
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.create_copyset()
        await cluster.log.append(b"one")
        log = await cluster.describe()
        stream, before = copyset(log).log_stream_id, copyset(log).copyset.sequencer
        node, other = sorted({1, 2, 3} - {before})
        changed = await cluster.change(primary, stream, to_node=node)
        assert changed.done == f"node {node} sequences stream {stream}"
        assert copyset(await cluster.describe()).copyset.sequencer == node
        await cluster.log.append(b"two")
        again = await cluster.change(primary, stream, to_node=node)
        assert again.done == f"node {node} sequences stream {stream} already"

        await cluster.stop_node(node)
        await cluster.log.append(b"without it")
        with pytest.raises(InvalidArgument, match=f"node {node} is away"):
            await cluster.change(primary, stream, to_node=node)
        await cluster.start_node(node)
        await cluster.log_is(lambda log: copyset(log).copyset.sequencer == node)
        await cluster.log.append(b"with it again")
        await cluster.change(primary, stream, to_node=other)
        await cluster.log_is(lambda log: copyset(log).copyset.sequencer == other)
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_operators_choose_another_node_if_the_first_one_cannot_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.create_copyset()
        await cluster.log.append(b"one")
        log = await cluster.describe()
        stream, before = copyset(log).log_stream_id, copyset(log).copyset.sequencer
        node, other = sorted({1, 2, 3} - {before})
        ask = Asker.ask

        def ask_nobody_else(
            self: Asker, shard: ShardId, request: NodeRequest, done: OnAnswer
        ) -> None:
            if self._me == node != node_of(shard):
                self._later(done, cast(NodeAnswer, None))
            else:
                ask(self, shard, request, done)

        monkeypatch.setattr(Asker, "ask", ask_nobody_else)
        monkeypatch.setattr(operator, "WAIT_S", 0.5)
        changed = await cluster.change(pb.ChangeStream.PRIMARY, stream, to_node=node)
        assert changed.done == f"node {node} is to sequence stream {stream}"
        await cluster.change(pb.ChangeStream.PRIMARY, stream, to_node=other)
        await cluster.log_is(lambda log: copyset(log).copyset.sequencer == other)
        await cluster.log.append(b"two")
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_the_choice_holds_from_the_first_append_on(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        stream = (await cluster.create_copyset()).streams[0].log_stream_id
        for node in (1, 2, 3):
            changed = await cluster.change(pb.ChangeStream.PRIMARY, stream, to_node=node)
            assert "from the first append on" in changed.next
        await cluster.log.append(b"one")
        assert copyset(await cluster.describe()).copyset.sequencer == 3
