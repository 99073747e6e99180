"""The nodes that may join (docs/design/ordered.md, "Volumes and start")."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from poll import until
from scripted_node import Peer, ScriptedNode
from small_cluster import QUICK, SmallCluster

from loomlog import limits
from loomlog.errors import AlreadyExists, InvalidArgument, NotFound, Unauthorized, Unavailable
from loomlog.metadata import MetadataRepository
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import NodeRecord
from loomlog.metadata.nodes.registration import Registration
from loomlog.storage.identity import fingerprint
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Server


async def test_a_new_node_gets_the_secret_of_the_cluster(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, heartbeat_s=0.7) as cluster:
        node = ScriptedNode(1)
        answer = await node.join(cluster.address)
        assert answer.cluster_id == "test"
        assert len(answer.cluster_secret) == 32
        assert answer.heartbeat_s == 0.7
        (status,) = (await cluster.status()).nodes
        assert (status.storage_node_id, status.alive, status.sync_mode) == (1, True, "always")
        await node.disconnect()


async def test_the_secret_outlives_a_restart(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        secret = node.cluster_secret
        await cluster.restart_repository()
        await node.join(cluster.address)
        assert node.cluster_secret == secret


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("cluster_id", "other", "expected 'test', found 'other'"),
        ("cluster_secret", "feedface", f"found '{fingerprint('feedface')}'"),
        ("node_secret", "other", f"'{fingerprint('secret-of-1')}', found '{fingerprint('other')}'"),
    ],
)
async def test_a_stranger_is_told_what_was_expected_and_found(
    tmp_path: Path, field: str, value: str, told: str
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await node.disconnect()
        setattr(node, field, value)
        with pytest.raises(Unauthorized, match=told):
            await node.join(cluster.address)
        await node.disconnect()


NEWCOMER = pb.Register(
    storage_node_id=7, cluster_id="test", address="127.0.0.1:1", node_secret="s", sync_mode="always"
)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("node_secret", "", "without a secret"),
        ("node_secret", "x" * 100_000, "too long"),
        ("cluster_secret", "x" * 100_000, "too long"),
        ("process", "x" * 100_000, "too long"),
        ("storage_node_id", 0, "from 1 to 2147483647"),
        ("storage_node_id", 2**31 + 5, "from 1 to 2147483647"),
        ("address", "", "is not host:port"),
        ("address", "nonsense", "is not host:port"),
        ("address", "127.0.0.1:99999999", "is not host:port"),
        ("address", "127.0.0.1:0", "cannot have the address"),
        ("address", "x" * 5000 + ":1", "cannot have the address"),
        ("volumes", ["/data"] * 1000, "too many volumes"),
        ("volumes", ["x" * 100_000], "too long"),
        ("volumes", ["/data"], "which shard"),
        ("shards", [1 << 20], "which shard"),
    ],
)
async def test_what_no_node_sends_is_refused(
    tmp_path: Path, field: str, value: object, told: str
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        peer = Peer("vsn")
        await peer.connect(cluster.address)
        fields = {kind.name: each for kind, each in NEWCOMER.ListFields()} | {field: value}
        with pytest.raises(InvalidArgument, match=told) as caught:
            await peer.ask(pb.Frame(register=pb.Register(**fields)))
        assert len(str(caught.value)) < 500
        assert not (await cluster.status()).nodes
        await peer.disconnect()


class Liar(ScriptedNode):
    """A node that does not know the secret that it registers with."""

    def _prove_node(self, question: pb.ProveNode) -> pb.Frame:
        return pb.Frame(node_proof=pb.NodeProof(proof=b"x" * 32))


class Mute(ScriptedNode):
    """A node that does not answer when it is visited."""

    visited = False

    def _prove_node(self, question: pb.ProveNode) -> None:  # type: ignore[override]
        self.visited = True


async def test_only_a_node_that_answers_at_its_address_may_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "VISIT_S", 0.2)
    async with SmallCluster(tmp_path) as cluster:
        peer = Peer("vsn")
        await peer.connect(cluster.address)
        with pytest.raises(Unavailable, match=r"node 7 cannot join.*127.0.0.1:1 .*--advertise"):
            await peer.ask(pb.Frame(register=NEWCOMER))
        await peer.disconnect()
        for kind, told in ((Liar, "something else answers there"), (Mute, "within 0.2 s")):
            stranger = kind(7)
            with pytest.raises(Unavailable, match=told):
                await stranger.join(cluster.address)
            await stranger.disconnect()
        assert not (await cluster.status()).nodes
        node = ScriptedNode(7)
        assert (await node.join(cluster.address)).cluster_secret
        await node.disconnect()


async def test_another_node_at_the_address_is_not_enough(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=1) as cluster:
        peer = Peer("vsn")
        await peer.connect(cluster.address)
        stranger = pb.Register()
        stranger.CopyFrom(NEWCOMER)
        stranger.address = cluster.storage[1].address
        with pytest.raises(Unavailable, match="something else answers there"):
            await peer.ask(pb.Frame(register=stranger))
        await peer.disconnect()


async def test_strangers_that_do_not_answer_hold_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "VISIT_S", 5.0)
    async with SmallCluster(tmp_path, scripted=1) as cluster:
        strangers = [Mute(number) for number in range(10, 10 + limits.NEWCOMERS_MAX)]
        joining = [asyncio.create_task(each.join(cluster.address)) for each in strangers]
        for each in strangers:
            await each.until(lambda each=each: each.visited)  # type: ignore[misc]
        await cluster.vsn(1).crash()
        await cluster.rejoin(cluster.vsn(1))
        late = ScriptedNode(99)
        with pytest.raises(Unavailable, match="too many new nodes register at once"):
            await late.join(cluster.address)
        await late.disconnect()
        for each in strangers:
            await each.disconnect()
        results = await asyncio.gather(*joining, return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)


async def test_secrets_that_only_begin_alike_are_not_the_same(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await node.disconnect()
        node.cluster_secret = node.cluster_secret[:10]
        with pytest.raises(Unauthorized):
            await node.join(cluster.address)


async def test_a_secret_is_told_once_and_never_in_an_error(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        secret = node.cluster_secret
        await node.disconnect()
        assert (await node.join(cluster.address)).cluster_secret == "", "it knows it"
        await node.disconnect()
        node.cluster_secret, node.node_secret = secret, "a secret of somebody else"
        with pytest.raises(Unauthorized) as caught:
            await node.join(cluster.address)
        assert "somebody" not in str(caught.value)
        assert secret[:6] not in str(caught.value)


async def test_no_log_line_shows_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with SmallCluster(tmp_path, real=2, **QUICK) as cluster:
        await cluster.create_chained(replicas=2)
        await cluster.stop_node(2)
        await cluster.start_node(2)
        twin = ScriptedNode(2)
        twin.node_secret = "the twin's own"
        with pytest.raises(AlreadyExists):
            await twin.join(cluster.address)
        await twin.disconnect()
        await cluster.stop_node(2)
        await cluster.node_is(2, lambda status: not status.alive)
        assert (await twin.join(cluster.address)).held_back
        await twin.disconnect()
        term = cluster.repository.term
        assert term is not None
        records = [term.catalog.cluster, *term.catalog.nodes.values()]
        secrets = [term.catalog.cluster.secret, twin.node_secret]
        secrets += [node.node_secret for node in term.catalog.nodes.values()]
    said = "\n".join([*(record.getMessage() for record in caplog.records), repr(records)])
    assert "registered" in said
    assert not [secret for secret in secrets if secret in said]


async def test_an_empty_node_does_not_take_the_number_of_a_known_one(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        known, secret = node.node_secret, node.cluster_secret
        await node.disconnect()
        await cluster.node_is(1, lambda status: not status.alive)
        twin = ScriptedNode(1)
        twin.node_secret = "of empty volumes"
        for _ in range(2):
            answer = await twin.join(cluster.address)
            assert "run `loom node replace 1`" in answer.held_back
            assert answer.cluster_secret == ""
            await twin.disconnect()
        (condition,) = await cluster.conditions(1)
        assert f"an empty node at {twin.address} asks for its number" in condition
        assert "run `loom node replace 1`" in condition

        node.node_secret, node.cluster_secret = known, secret
        await node.join(cluster.address)
        assert (await cluster.node(1)).alive, "its volumes are back"
        assert not await cluster.conditions(1)


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_operator_lets_an_empty_node_take_a_number_once(
    tmp_path: Path, restarts: bool
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        secret = node.cluster_secret
        await node.disconnect()
        changed = await cluster.replace_node(1)
        assert "the next node 1 with empty volumes" in changed.done
        if restarts:
            await cluster.restart_repository()
        assert (await cluster.conditions(1)) == [
            "is to be replaced: start node 1 with empty volumes"
        ]
        twin = ScriptedNode(1)
        twin.node_secret = "of empty volumes"
        assert (await twin.join(cluster.address)).cluster_secret == secret
        assert not await cluster.conditions(1)
        await twin.disconnect()
        await cluster.node_is(1, lambda status: not status.alive)
        with pytest.raises(Unauthorized, match="another node secret"):
            await node.join(cluster.address)
        await node.disconnect()
        third = ScriptedNode(1)
        third.node_secret = "of other empty volumes"
        assert (await third.join(cluster.address)).held_back
        await third.disconnect()


async def test_an_operator_learns_what_becomes_of_the_data_of_a_lost_node(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=2) as cluster:
        await cluster.create("both", replicas=2)
        loglet = (await cluster.create_copyset("copied", replicas=2)).log_id
        await cluster.vsn(2).activate(loglet, 0)
        await cluster.vsn(1).disconnect()
        await cluster.node_is(1, lambda status: not status.alive)
        changed = await cluster.replace_node(1)
        assert changed.next == (
            "start it; 2 replicas that it had are copied from other nodes; its old volumes are "
            "refused from then on"
        )


async def test_an_operator_learns_that_a_node_had_the_only_replica(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=1) as cluster:
        await cluster.create("alone", replicas=1)
        await cluster.vsn(1).disconnect()
        await cluster.node_is(1, lambda status: not status.alive)
        changed = await cluster.replace_node(1)
        assert "it had the only replica of stream 1, which is lost" in changed.next
        assert "copied" not in changed.next


async def test_who_comes_back_with_its_volumes_is_not_replaced_later(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await node.disconnect()
        await cluster.replace_node(1)
        await node.join(cluster.address)
        await node.disconnect()
        await cluster.node_is(1, lambda status: not status.alive)
        twin = ScriptedNode(1)
        twin.node_secret = "of empty volumes"
        assert (await twin.join(cluster.address)).held_back
        await twin.disconnect()


async def test_a_node_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(1)
        change = pb.ChangeNode(action=pb.ChangeNode.REPLACE, storage_node_id=1)
        with pytest.raises(InvalidArgument, match="node 1 is connected from 127"):
            await cluster.client.ask(pb.Frame(change_node=change))
        change.storage_node_id = 7
        with pytest.raises(NotFound, match="there is no node 7"):
            await cluster.client.ask(pb.Frame(change_node=change))


async def test_data_of_no_known_cluster_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path / "one") as one, SmallCluster(tmp_path / "two") as two:
        (node,) = await one.add_nodes(1)
        await one.create(replicas=1)
        await node.disconnect()
        node.cluster_secret = ""
        with pytest.raises(Unauthorized, match="node 1 has data, but does not know of which"):
            await node.join(two.address)
        assert not (await two.status()).nodes
        assert list(node.replicas) == [1]


async def test_a_second_process_with_the_same_node_id_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        twin = ScriptedNode(1)
        twin.node_secret = "another"
        with pytest.raises(AlreadyExists, match="node 1 is connected already"):
            await twin.join(cluster.address)
        await twin.disconnect()
        assert node.connection is not None


async def test_a_node_that_registers_again_replaces_its_old_connection(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        again = ScriptedNode(1)
        again.cluster_secret = node.cluster_secret
        await again.join(cluster.address)
        await node.until(lambda: node.connection is None)
        assert (await cluster.status()).nodes[0].alive
        await again.disconnect()


async def test_a_twin_that_is_lost_while_it_registers_does_not_leave_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process on a copy of the node's data; clients would go where nobody is any more."""
    twin, put_node = ScriptedNode(1), Catalog.put_node
    registering: list[Connection] = []

    async def put(
        self: Catalog, node: NodeRecord, note_losses: Callable[[NodeRecord], NodeRecord]
    ) -> NodeRecord:
        record = await put_node(self, node, note_losses)
        if node.address == twin.address:
            await twin.disconnect()
            await until(lambda: registering[-1].closed)
        return record

    async def register(
        self: Registration, connection: Connection, request: pb.Register
    ) -> pb.Registered:
        registering.append(connection)
        return await real_register(self, connection, request)

    real_register = Registration.register
    monkeypatch.setattr(Catalog, "put_node", put)
    monkeypatch.setattr(Registration, "register", register)
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        twin.cluster_secret = node.cluster_secret
        with pytest.raises(Unavailable):
            await twin.join(cluster.address)
        await node.until(lambda: node.connection is None)
        await node.join(cluster.address)
        (status,) = (await cluster.status()).nodes
        assert (status.alive, status.address) == (True, node.address)


async def test_a_late_request_of_a_process_that_is_gone_is_no_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node was started again, at the same address, before the request of its first process
    arrived."""
    outcomes: list[BaseException] = []

    async def register(
        self: Registration, connection: Connection, request: pb.Register
    ) -> pb.Registered:
        try:
            return await real_register(self, connection, request)
        except BaseException as error:
            outcomes.append(error)
            raise

    real_register = Registration.register
    monkeypatch.setattr(Registration, "register", register)
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        late = node.registration()
        late.process, node.process = "first", "second"
        await node.join(cluster.address)
        listener = Server(Codec("vsn"), node)
        await listener.start(node.address)
        first = Peer("vsn")
        await first.connect(cluster.address)
        assert first.connection is not None
        late.address = node.address
        first.connection.send(pb.Frame(id=1, register=late))
        await first.disconnect()
        await until(lambda: bool(outcomes))
        await listener.stop()
        assert [type(error) for error in outcomes] == [Unavailable]
        status = await cluster.status()
        assert "node-twice" not in {each.kind for each in status.conditions}
        assert status.nodes[0].alive


async def test_a_node_without_an_id_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        node = ScriptedNode(0)
        with pytest.raises(InvalidArgument, match="a number from 1 to"):
            await node.join(cluster.address)
        await node.disconnect()


async def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        settings = cluster.settings
    other = MetadataRepository(replace(settings, cluster_id="other"))
    with pytest.raises(InvalidArgument, match="belongs to cluster 'test', not 'other'"):
        await other.start()
    await other.stop()


async def test_a_newcomer_does_not_use_up_numbers(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(1)
        newcomer = ScriptedNode(2)
        newcomer.highest_id = (1 << 32) - 2
        await newcomer.join(cluster.address)
        log = await cluster.create(replicas=1)
        assert (log.log_id, log.streams[0].log_stream_id) == (1, 1)
        await newcomer.disconnect()


async def test_a_node_with_an_older_copy_of_its_data_is_recognised(tmp_path: Path) -> None:
    """The node was restarted, but its generation has not grown since it was last heard of."""
    replica = pb.ChainReplicaRef(loglet_id=9, chain=0, birth=1)
    newer = pb.ChainReplicaRef(loglet_id=9, chain=0, birth=2)
    async with SmallCluster(tmp_path) as cluster:
        node = ScriptedNode(1)
        node.generations[0], node.process = 4, "first"
        assert not (await node.join(cluster.address)).void
        await node.disconnect()
        node.chain_replicas = [replica]
        assert not (await node.join(cluster.address)).void, "it is the same process"
        assert node.connection is not None
        node.connection.send(pb.Frame(report=pb.GetReportResponse(generations=[6])))
        term = cluster.repository.term
        assert term is not None
        while term.catalog.nodes[1].generations[0] < 6:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        await node.disconnect()
        node.process, node.generations[0] = "second", 5
        answer = await node.join(cluster.address)
        assert (list(answer.void), answer.generation) == ([replica], 7)
        await node.disconnect()
        node.process, node.generations[0], node.chain_replicas = "third", 8, [replica, newer]
        answer = await node.join(cluster.address)
        assert (list(answer.void), answer.generation) == ([replica], 8)
        await node.disconnect()


async def test_an_older_copy_of_a_volume_voids_what_is_on_that_volume(tmp_path: Path) -> None:
    """A volume that is left out for a run and given back is none."""
    on_first = pb.ChainReplicaRef(loglet_id=9, chain=0, birth=1, shard=0)
    on_second = pb.ChainReplicaRef(loglet_id=9, chain=1, birth=1, shard=1)
    async with SmallCluster(tmp_path) as cluster:
        node = ScriptedNode(1)
        runs: list[tuple[dict[int, int], list[int]]] = [
            ({0: 1, 1: 1}, []),
            ({0: 5}, []),
            ({0: 6, 1: 2}, []),
            ({0: 7, 1: 2}, [1]),
            ({0: 6, 1: 8}, [0, 1]),
        ]
        for number, (generations, void) in enumerate(runs):
            node.generations, node.process = generations, f"process {number}"
            answer = await node.join(cluster.address)
            assert sorted(ref.chain for ref in answer.void) == void
            await node.disconnect()
            node.chain_replicas = [on_first, on_second]


async def test_a_node_that_starts_anew_is_no_older_copy(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        node = ScriptedNode(1)
        for generation in (1, 2, 5, 0, 6):
            node.generations[0], node.process = generation, f"process {generation}"
            answer = await node.join(cluster.address)
            assert (list(answer.void), answer.generation) == ([], generation or 5)
            await node.disconnect()
            node.chain_replicas = [pb.ChainReplicaRef(loglet_id=9, chain=0, birth=1)]
