"""Metadata that went back in time does nothing, whoever asks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from faulty_store import FaultyStore
from scripted_node import ScriptedNode
from small_cluster import SmallCluster

from loomlog.core.conditions import Kind
from loomlog.errors import (
    AlreadyExists,
    InvalidArgument,
    LoomError,
    Retryable,
    RolledBack,
    Unauthorized,
    Unavailable,
)
from loomlog.metadata.catalog.records import HISTORY, HistoryRecord, decode
from loomlog.metadata.rollback import gate
from loomlog.wire import loomlog_pb2 as pb

pytestmark = pytest.mark.timeout(60)


class RollbackCluster(SmallCluster):
    """A cluster whose metadata can be put back."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._live, self._copy = directory / "vmr", directory / "copy"

    def back_up(self) -> None:
        shutil.copytree(self._live, self._copy)

    async def restart(self, *, restore: bool = False) -> None:
        await self.stop_repository()
        if restore:
            shutil.rmtree(self._live)
            shutil.copytree(self._copy, self._live)
        await self.start_repository()

    async def swap(self, value: bytes, expected: int = 0) -> int:
        request = pb.SwapRegister(name="r", value=value, expected=expected)
        answer = await self.client.ask(pb.Frame(swap_register=request))
        return int(answer.register_value.version)

    async def condition(self) -> str:
        """Return what is wrong with the metadata itself."""
        conditions = (await self.status()).conditions
        return " ".join(c.text for c in conditions if not c.storage_node_id and not c.log)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RollbackCluster]:
    async with RollbackCluster(tmp_path) as cluster:
        await cluster.add_beating_nodes(3)
        yield cluster


REQUESTS = {
    "a register is swapped": pb.Frame(swap_register=pb.SwapRegister(name="r", value=b"x")),
    "a register is read": pb.Frame(get_register=pb.GetRegister(name="r")),
    "a lease is acquired": pb.Frame(
        change_lease=pb.ChangeLease(name="l", holder="h", ttl_s=1, action=pb.ChangeLease.ACQUIRE)
    ),
    "a log is created": pb.Frame(
        create_log=pb.CreateLog(name="b", protocol="ordered", streams=1, replicas=1)
    ),
    "a log is deleted": pb.Frame(delete_log=pb.DeleteLog(name="events")),
    "a log is trimmed": pb.Frame(trim_log=pb.TrimLog(name="events", position=1)),
    "a log is described": pb.Frame(describe_log=pb.DescribeLog(name="events")),
    "a position is asked for": pb.Frame(sequencer_request=pb.SequencerRequest(loglet_id=1)),
    "a node is drained": pb.Frame(
        change_node=pb.ChangeNode(storage_node_id=1, action=pb.ChangeNode.DRAIN)
    ),
}


def waits_for_nodes(status: pb.Status) -> bool:
    return any(condition.kind == Kind.METADATA_WAITS for condition in status.conditions)


async def test_a_restored_copy_serves_nobody(cluster: RollbackCluster) -> None:
    await cluster.create()
    await cluster.stop_repository()
    cluster.back_up()
    await cluster.start_repository()
    await cluster.rejoin(*cluster.nodes)
    await cluster.swap(b"acknowledged")
    await cluster.restart(restore=True)
    with pytest.raises(RolledBack, match=r"node 2 knows another run 2 .* `loom metadata catch-up`"):
        await cluster.nodes[1].join(cluster.address)
    for request in REQUESTS.values():
        with pytest.raises(RolledBack):
            await cluster.client.ask(request)
    assert "went back in time" in await cluster.condition()
    with pytest.raises(RolledBack):
        await cluster.nodes[0].join(cluster.address)
    assert not [order for node in cluster.nodes for order in node.orders if "remove" in order]


async def test_a_log_is_not_described_before_nodes_can_tell_that_the_copy_is_old(
    cluster: RollbackCluster,
) -> None:
    """Appends that follow the description would be sent, and never answered."""
    await cluster.create()
    await cluster.stop_repository()
    cluster.back_up()
    await cluster.start_repository()
    await cluster.rejoin(*cluster.nodes)
    await cluster.restart(restore=True)
    describing = asyncio.create_task(cluster.describe())
    with pytest.raises(RolledBack):
        await cluster.nodes[1].join(cluster.address)
    with pytest.raises(RolledBack):
        await describing


async def test_the_status_of_a_restored_copy_claims_nothing_that_may_be_old(
    cluster: RollbackCluster,
) -> None:
    await cluster.create()
    await cluster.client.ask(pb.Frame(set_retention=pb.SetRetention(name="events", retention_s=60)))
    await cluster.stop_repository()
    cluster.back_up()
    await cluster.start_repository()
    await cluster.rejoin(*cluster.nodes)
    await cluster.restart(restore=True)
    for node in cluster.nodes[:2]:
        with pytest.raises(RolledBack):
            await node.join(cluster.address)
    status = (await cluster.client.ask(pb.Frame(get_status=pb.GetStatus()))).status
    assert ["went back in time" in node.held_back for node in status.nodes] == [True, True, False]
    kinds = [condition.kind for condition in status.conditions]
    expected = [Kind.METADATA_ROLLED_BACK, *2 * [Kind.NODE_HELD_BACK], Kind.NODE_AWAY]
    assert kinds == expected, "it does not ask for nodes that are there"
    (log,) = status.logs
    (stream,) = log.streams
    assert log.tail_unknown
    assert stream.state == pb.SEALING
    assert not stream.HasField("entries")


async def test_a_node_that_waits_for_others_is_held_back_until_they_come(
    cluster: RollbackCluster,
) -> None:
    await cluster.restart()
    with pytest.raises(Unavailable):
        await cluster.nodes[0].join(cluster.address)
    held_back = (await cluster.node(1)).held_back
    assert held_back.startswith("1 of 3 storage nodes have confirmed")
    await cluster.nodes[0].disconnect()
    await cluster.rejoin(*cluster.nodes)
    node = await cluster.node(1)
    assert (node.alive, node.held_back) == (True, "")


async def test_a_stranger_is_not_shown_as_a_node_that_is_held_back(
    cluster: RollbackCluster,
) -> None:
    await cluster.restart()
    stranger = ScriptedNode(1)
    stranger.node_secret = "another"
    answer = await stranger.join(cluster.address)
    assert answer.held_back
    assert not (await cluster.node(1)).held_back


async def test_a_copy_of_a_connected_node_that_lived_elsewhere_stops_nobody(
    cluster: RollbackCluster,
) -> None:
    """A node of a cluster made from copies for tests may have been given the wrong address."""
    node, copy = cluster.nodes[1], ScriptedNode(2)
    copy.cluster_secret, copy.node_secret = node.cluster_secret, node.node_secret
    copy.known_run = pb.NoteRun(number=node.known_run.number, id="elsewhere", revision=1)
    with pytest.raises(AlreadyExists, match=r"node 2 is connected already.*check --mr"):
        await copy.join(cluster.address)
    assert await cluster.swap(b"acknowledged")
    assert not await cluster.condition()
    await copy.disconnect()


async def test_it_stays_stopped_when_it_is_started_again(cluster: RollbackCluster) -> None:
    await cluster.stop_repository()
    cluster.back_up()
    await cluster.start_repository()
    await cluster.rejoin(*cluster.nodes)
    await cluster.restart(restore=True)
    with pytest.raises(RolledBack):
        await cluster.nodes[1].join(cluster.address)
    await cluster.nodes[1].crash()
    await cluster.restart()
    assert "went back in time" in await cluster.condition()
    with pytest.raises(RolledBack):
        await cluster.swap(b"x")


async def test_a_copy_of_a_running_repository_is_recognised_by_its_changes(
    cluster: RollbackCluster,
) -> None:
    cluster.back_up()
    await cluster.swap(b"acknowledged")
    told = cluster.nodes[0].known_run.revision
    await cluster.nodes[0].until(lambda: cluster.nodes[0].known_run.revision > told)
    await cluster.restart(restore=True)
    with pytest.raises(RolledBack, match="node 1 knows change"):
        await cluster.nodes[0].join(cluster.address)


async def test_a_node_that_comes_late_stops_what_runs(cluster: RollbackCluster) -> None:
    await cluster.create()
    await cluster.stop_repository()
    cluster.back_up()
    await cluster.start_repository()
    await cluster.rejoin(*cluster.nodes)
    for node in cluster.nodes[1:]:
        node.known_run.Clear()  # their disks are lost: nobody else knows
    await cluster.restart(restore=True)
    await cluster.rejoin(*cluster.nodes[1:])
    await cluster.swap(b"x")
    with pytest.raises(RolledBack):
        await cluster.nodes[0].join(cluster.address)
    for node in cluster.nodes[1:]:
        await node.until(lambda node=node: node.connection is None)  # type: ignore[misc]
    with pytest.raises(RolledBack):
        await cluster.swap(b"x", expected=1)


async def test_nothing_is_changed_before_enough_nodes_came(
    cluster: RollbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "WAIT_S", 0.05)
    await cluster.create()
    await cluster.restart()
    with pytest.raises(Unavailable, match=r"0 of 3 .* 2 are needed: start some of node 1, 2, 3"):
        await cluster.swap(b"x")
    assert (await cluster.describe()).name == "events"
    assert "0 of 3" in await cluster.condition()
    with pytest.raises(Unavailable, match="1 of 3"):
        await cluster.nodes[0].join(cluster.address)
    monkeypatch.setattr(gate, "WAIT_S", 10.0)
    swapping = asyncio.create_task(cluster.swap(b"x"))
    await cluster.nodes[0].crash()
    await cluster.rejoin(*cluster.nodes[:2])  # one of three may be away
    assert await swapping
    assert not await cluster.condition()


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_absent_nodes_without_data_stop_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """An operator may have tried seven more nodes, and taken them away again."""
    monkeypatch.setattr(gate, "EMPTY_WAIT_S", 0.5)
    async with SmallCluster(tmp_path, real=3) as cluster:
        create = pb.CreateLog(name="events", protocol=protocol, streams=1, replicas=3)
        await cluster.client.ask(pb.Frame(create_log=create))
        for number in range(4, 11):
            newcomer = ScriptedNode(number)
            await newcomer.join(cluster.address)
            await newcomer.disconnect()
            await cluster.node_is(number, lambda node: not node.alive)
        await cluster.stop_node(3)  # not before: no newcomer is to get the replicas in its place
        await cluster.restart_repository()
        condition = (await cluster.status()).conditions[0]
        assert condition.kind == Kind.METADATA_WAITS
        assert "of 10 storage nodes" in condition.text, "they may still come"
        while waits_for_nodes(await cluster.status()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        swap = pb.SwapRegister(name="r", value=b"x")
        assert (await cluster.client.ask(pb.Frame(swap_register=swap))).register_value.version


async def test_nodes_without_data_do_not_confirm_for_those_with_data(
    cluster: RollbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create(replicas=3)
    await cluster.add_nodes(7)
    monkeypatch.setattr(gate, "EMPTY_WAIT_S", 0.0)
    monkeypatch.setattr(gate, "WAIT_S", 0.05)
    await cluster.restart()
    for node in cluster.nodes[3:6]:
        with pytest.raises(Unavailable, match=r"0 of 3 .*: start some of node 1, 2, 3;"):
            await node.join(cluster.address)
    with pytest.raises(Unavailable, match=r"0 of 3 .* 2 are needed"):
        await cluster.swap(b"x")


async def test_most_nodes_are_enough_without_those_that_hold_data(cluster: RollbackCluster) -> None:
    """Else a node with the only replica of some log could stop all others."""
    await cluster.create(replicas=1)
    (replica,) = (await cluster.stream()).replicas
    await cluster.restart()
    others = [node for node in cluster.nodes if node.node_id != replica.storage_node_id]
    await cluster.rejoin(*others)
    assert await cluster.swap(b"x")


async def test_without_data_all_nodes_are_waited_for(
    cluster: RollbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registers and leases must not go back in time either."""
    monkeypatch.setattr(gate, "EMPTY_WAIT_S", 0.0)
    monkeypatch.setattr(gate, "WAIT_S", 0.05)
    await cluster.restart()
    with pytest.raises(Unavailable, match="1 of 3"):
        await cluster.nodes[0].join(cluster.address)
    with pytest.raises(Unavailable, match=r"1 of 3 .* 2 are needed"):
        await cluster.swap(b"x")


async def give_up(cluster: RollbackCluster, node: int, action: pb.ChangeNode.Action) -> pb.Changed:
    change = pb.ChangeNode(storage_node_id=node, action=action, force=True)
    return (await cluster.client.ask(pb.Frame(change_node=change))).changed


@pytest.mark.parametrize("action", [pb.ChangeNode.REPLACE, pb.ChangeNode.REMOVE])
async def test_nodes_that_are_lost_are_not_waited_for(
    cluster: RollbackCluster, action: pb.ChangeNode.Action
) -> None:
    """An operator's word holds even if this repository ends before enough nodes have answered."""
    await cluster.restart()
    assert "0 of 2 storage nodes" in (await give_up(cluster, 1, action)).next
    await cluster.restart()
    assert "0 of 2 storage nodes" in await cluster.condition()
    for node in (2, 3):
        await give_up(cluster, node, action)
    assert await cluster.condition() == ""
    assert await cluster.swap(b"x")
    left = [node.storage_node_id for node in (await cluster.status()).nodes]
    assert left == ([] if action == pb.ChangeNode.REMOVE else [1, 2, 3])


async def test_a_node_that_was_replaced_while_others_were_waited_for_is_let_in(
    cluster: RollbackCluster,
) -> None:
    await cluster.restart()
    for node in (1, 2):
        await give_up(cluster, node, pb.ChangeNode.REPLACE)
    newcomer = empty_node(1)
    joining = asyncio.create_task(newcomer.join(cluster.address))
    await cluster.rejoin(cluster.nodes[2])
    assert (await joining).cluster_secret
    await newcomer.disconnect()


async def test_a_refused_command_does_not_give_up_a_node(cluster: RollbackCluster) -> None:
    await cluster.create(replicas=1)
    await cluster.restart()
    (replica,) = (await cluster.stream()).replicas
    with pytest.raises(InvalidArgument):
        await give_up(cluster, replica.storage_node_id, pb.ChangeNode.REMOVE)
    assert "0 of 3 storage nodes" in await cluster.condition()


async def test_commands_fail_at_once_when_no_nodes_are_coming(
    cluster: RollbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "WAIT_S", 0.0)
    await cluster.create()
    await cluster.restart()
    commands = (
        pb.Frame(change_node=pb.ChangeNode(storage_node_id=1, action=pb.ChangeNode.DRAIN)),
        pb.Frame(change_stream=pb.ChangeStream(log_stream_id=1, action=pb.ChangeStream.SEAL)),
        pb.Frame(switch_log=pb.SwitchLog(name="events", replicas=1)),
    )
    for command in commands:
        with pytest.raises(Unavailable, match="0 of 3"):  # a moment after the start
            await cluster.client.ask(command)
    monkeypatch.setattr(gate, "COMMAND_WAIT_S", 0.0)
    for command in commands:
        with pytest.raises(LoomError, match=r"^nothing was changed: 0 of 3 .*replace") as caught:
            await cluster.client.ask(command)
        assert not isinstance(caught.value, Retryable)


async def test_streams_say_what_is_waited_for(cluster: RollbackCluster) -> None:
    """Appends that time out then say it, too."""
    await cluster.create()
    await cluster.restart()
    assert "0 of 3 storage nodes" in (await cluster.describe()).streams[0].condition


async def test_without_nodes_nothing_is_waited_for(tmp_path: Path) -> None:
    async with RollbackCluster(tmp_path) as cluster:
        version = await cluster.swap(b"x")
        await cluster.restart()
        assert await cluster.swap(b"y", expected=version)


def empty_node(number: int) -> ScriptedNode:
    """Return a node that is not known, with a number of its choice."""
    node = ScriptedNode(number)
    node.node_secret = "of empty volumes"
    return node


async def test_empty_nodes_do_not_confirm_for_those_whose_numbers_they_want(
    cluster: RollbackCluster,
) -> None:
    await cluster.restart()
    for number in (1, 2, 3):
        newcomer = empty_node(number)
        assert (await newcomer.join(cluster.address)).held_back
        await newcomer.disconnect()
    assert "0 of 3 storage nodes have confirmed" in await cluster.condition()


async def test_a_peer_without_a_secret_cannot_say_that_metadata_went_back(
    cluster: RollbackCluster,
) -> None:
    await cluster.nodes[0].crash()
    await cluster.node_is(1, lambda node: not node.alive)
    for number in (1, 9):
        newcomer = empty_node(number)
        newcomer.known_run = pb.NoteRun(number=1 << 40, id="made up", revision=1 << 40)
        await newcomer.join(cluster.address)
        assert await cluster.condition() == ""
        await newcomer.disconnect()


@pytest.mark.parametrize("number", [9, 10, 1])
async def test_a_stranger_that_was_let_in_cannot_say_that_metadata_went_back(
    cluster: RollbackCluster, number: int
) -> None:
    """The stranger learns the cluster's secret when it registers with a free number."""
    stranger = empty_node(9)
    await stranger.join(cluster.address)
    await stranger.disconnect()
    await cluster.nodes[0].crash()
    await cluster.node_is(1, lambda node: not node.alive)
    liar = empty_node(number)
    liar.cluster_secret = stranger.cluster_secret
    liar.known_run = pb.NoteRun(number=stranger.known_run.number, id="made up", revision=1)
    with pytest.raises(Unauthorized, match=f"a node {number} was refused that knows another run"):
        await liar.join(cluster.address)
    await liar.disconnect()
    assert f"a node {number} was refused" in await cluster.condition()
    await cluster.rejoin(cluster.nodes[0])
    assert await cluster.swap(b"x")


async def test_a_node_that_is_to_be_replaced_need_not_confirm(tmp_path: Path) -> None:
    async with RollbackCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await node.disconnect()
        await cluster.replace_node(1)
        await cluster.restart()
        assert await cluster.condition() == ""
        newcomer = empty_node(1)
        assert (await newcomer.join(cluster.address)).cluster_secret
        await newcomer.disconnect()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_node_that_came_after_the_copy_was_made_tells_of_it(
    cluster: RollbackCluster, replaced: bool
) -> None:
    """The copy does not know the node: it says that this one was removed, and has to be emptied."""
    await cluster.stop_repository()
    cluster.back_up()
    await cluster.start_repository()
    await cluster.rejoin(*cluster.nodes)
    newcomer = ScriptedNode(3 if replaced else 4)
    if replaced:
        await cluster.nodes[2].crash()
        await cluster.node_is(3, lambda status: not status.alive)
        await cluster.replace_node(3)
        newcomer.node_secret = "of the one in its place"
    await newcomer.join(cluster.address)
    await cluster.restart(restore=True)
    with pytest.raises(RolledBack, match="knows another run 2"):
        await newcomer.join(cluster.address)
    await newcomer.disconnect()


async def test_many_nodes_are_told_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "TELL_S", 0.0)
    monkeypatch.setattr(gate, "TELL_NODE_S", 600.0)
    told = 0
    tell = gate.Gate._tell

    def counted(self: gate.Gate) -> None:
        nonlocal told
        told += 1
        tell(self)

    monkeypatch.setattr(gate.Gate, "_tell", counted)
    async with RollbackCluster(tmp_path) as cluster:
        await cluster.add_beating_nodes(2)
        version = 0
        for _ in range(10):
            version = await cluster.swap(b"b", version)
        assert told == 0


async def test_the_reason_is_recorded_before_the_term_ends() -> None:
    store = FaultyStore()
    shut = gate.Gate(store, lambda error: None)
    await shut.begin("a run", {}, set)
    store.before = lambda: asyncio.sleep(0.1)
    shut.shut("a node knows more")
    await shut.stop()
    item = await store.get(HISTORY)
    assert item is not None
    assert decode(HistoryRecord, HISTORY, item.value).rolled_back == "a node knows more"
