"""A malicious storage node, which has a real certificate, poses as another one.

For every request between servers, `wire/permissions.py` states which number the sender's
certificate must have. Here node X sends each of these requests in the name of another node, about a
stream and copies that it does not have, without any effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio

from loomlog.client.cluster import Cluster
from loomlog.core.copyset.nodeset import node_of, shard_of
from loomlog.errors import LoomError, PermissionDenied, Unauthorized, Unavailable
from loomlog.net.credentials import Credentials
from loomlog.net.endpoints import connect
from loomlog.net.service import OnlyAnswers
from loomlog.node.ordered.service import OrderedService
from loomlog.testing import LocalCluster
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection
from loomlog.wire.permissions import RULES, Rule, Sender

PATIENCE_S = 30.0
_COPY = pb.CopysetRequest
_STORE = pb.EpochStoreRequest


@dataclass(frozen=True)
class Scene:
    """A secure cluster with four nodes, and a node `x` without data of either log."""

    local: LocalCluster
    cluster: Cluster
    x: int
    stream: pb.LogStream  # of protocol `ordered`, on two other nodes
    copies: pb.CopysetState  # of protocol `copyset`, on two other nodes, sequenced by one of them
    chained: pb.LogStream

    @property
    def backup(self) -> int:
        return int(self.stream.replicas[1].storage_node_id)

    @property
    def holder(self) -> int:
        nodes = [node_of(shard) for shard in self.copies.history[-1].nodeset]
        return next(node for node in nodes if node != self.copies.sequencer)

    @asynccontextmanager
    async def dialled(self, address: str, file: str) -> AsyncIterator[Connection]:
        codec = Codec("vsn", cluster_id="local", credentials=Credentials.of_client(file))
        connection = await connect(address, codec, OnlyAnswers())
        try:
            yield connection
        finally:
            connection.close()
            await connection.wait_closed()

    async def send(self, frame: pb.Frame, to: int = 0) -> LoomError | None:
        """Return the error that X gets from a node, or from the metadata repository."""
        address = self.local.nodes[to].address if to else self.local.address
        file = self.local.certificate("node", number=self.x)
        async with self.dialled(address, file) as connection:
            try:
                await connection.request(frame, timeout_s=PATIENCE_S)
            except LoomError as error:
                return error
        return None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    local = LocalCluster(nodes=4, secure=True)
    async with local as cluster:
        await cluster.create_log("o", replicas=2, streams=1)
        stream = await described(cluster, "o")
        for number in range(100):  # any node may sequence: until it is one that has copies
            name = f"s{number}"
            log = await cluster.create_log(name, protocol="copyset", replicas=2, nodeset=2)
            await log.append(b"first")
            copies = (await described(cluster, name)).copyset
            others = {node_of(shard) for shard in copies.history[-1].nodeset} | {
                *(replica.storage_node_id for replica in stream.replicas),
                copies.sequencer,
            }
            if len(others) < 4 and copies.sequencer in map(node_of, copies.history[-1].nodeset):
                break
        x = min({1, 2, 3, 4} - others)
        await cluster.log("o").append(b"first")
        await cluster.create_log("c", protocol="chained", replicas=2)
        chained = await described(cluster, "c")
        yield Scene(local, cluster, x, await described(cluster, "o"), copies, chained)


async def described(cluster: Cluster, name: str) -> pb.LogStream:
    frame = pb.Frame(describe_log=pb.DescribeLog(name=name))
    answer = await cluster._metadata.request(frame)
    return answer.log.streams[0]


# ---- the requests, in the name of another node

Forgery = Callable[[Scene], tuple[pb.Frame, int]]  # the frame, and the node that gets it


def to_metadata(frame: pb.Frame) -> Forgery:
    return lambda scene: (frame, 0)


def registration(scene: Scene) -> tuple[pb.Frame, int]:
    register = pb.Register(
        storage_node_id=scene.backup, cluster_id="local", node_secret="x", address="127.0.0.1:1"
    )
    return pb.Frame(register=register), 0


def a_report(scene: Scene) -> tuple[pb.Frame, int]:
    return pb.Frame(report=pb.GetReportResponse(storage_node_id=scene.backup)), 0


def a_hold(scene: Scene) -> tuple[pb.Frame, int]:
    stream = scene.stream
    hold = pb.HoldLog(log_stream_id=stream.log_stream_id, seal_epoch=1, expected_tail=1)
    return pb.Frame(hold_log=hold), 0


def a_decision(scene: Scene) -> tuple[pb.Frame, int]:
    """X has no replica of the log, and has not registered on this connection either."""
    chained = scene.chained.projection
    wanted = pb.DecidePosition(loglet_id=chained.loglet_id, epoch=chained.epoch, position=1)
    return pb.Frame(decide_position=wanted), 0


def to_backup(kind: str) -> Forgery:
    def frame_of(scene: Scene) -> tuple[pb.Frame, int]:
        frame, stream = pb.Frame(), scene.stream
        body = getattr(frame, kind)
        body.log_stream_id = stream.log_stream_id
        ordered = scene.local.nodes[scene.backup].protocols["ordered"]
        assert isinstance(ordered, OrderedService)
        core = ordered.held[stream.log_stream_id].driver.core
        values = {"seal_epoch": core.epoch, "next_llsn": core.next_llsn, "last_llsn": 1}
        values |= {"first_llsn": 1, "stamp": ordered.held[core.stream_id].driver.store.meta.stamp}
        for name, value in values.items():
            if name in body.DESCRIPTOR.fields_by_name:
                setattr(body, name, value)
        return frame, scene.backup

    return frame_of


def to_holder(kind: int) -> Forgery:
    def frame_of(scene: Scene) -> tuple[pb.Frame, int]:
        state = scene.copies
        first = state.epoch << 32 | 2
        record = pb.CopysetRecord(
            first=first, count=1, kind=1, copyset=[shard_of(scene.holder, 0), shard_of(scene.x, 0)]
        )
        request = _COPY(
            kind=kind,  # type: ignore[arg-type]
            loglet_id=state.loglet_id,
            record=record,
            stamp=state.stamp,
            lsn=first,
            epoch=state.epoch - 1,
            seal=state.epoch - 1,
            end=pb.CopysetEnd(epoch=state.epoch - 1, seal=state.epoch - 1),
        )
        return pb.Frame(copyset_request=request), scene.holder

    return frame_of


def to_epoch_store(kind: int) -> Forgery:
    def frame_of(scene: Scene) -> tuple[pb.Frame, int]:
        epoch = scene.copies.epoch
        request = _STORE(
            kind=kind,  # type: ignore[arg-type]
            loglet_id=scene.copies.loglet_id,
            expected=epoch,
            by=epoch,
            epoch=epoch,
            end=pb.CopysetEnd(epoch=epoch - 1),
        )
        return pb.Frame(epoch_store_request=request), 0

    return frame_of


FORGERIES: dict[str, list[Forgery]] = {
    "register": [registration],
    "report": [a_report],
    "hold_log": [a_hold],
    "decide_position": [a_decision],
    "node_stops": [to_metadata(pb.Frame(node_stops=pb.NodeStops()))],
    "epoch_store_request": [to_epoch_store(kind) for kind in _STORE.Kind.values() if kind],
    **{
        kind: [to_backup(kind)]
        for kind in ("open_replication", "replicate", "sync_start", "sync_batches", "fetch_batches")
    },
    "copyset_request": [
        to_holder(kind)
        for kind, rule in RULES["copyset_request"].items()  # type: ignore[union-attr]
        if rule.sender in (Sender.SEQUENCER, Sender.HOLDER)
    ],
    # A storage node sends what only metadata repositories do.
    "leader_beat": [lambda scene: (pb.Frame(leader_beat=pb.LeaderBeat(leader=1)), scene.backup)],
    "round_seal": [to_metadata(pb.Frame(round_seal=pb.RoundSeal(leader=1)))],
    "round_read": [to_metadata(pb.Frame(round_read=pb.RoundRead()))],
    "round_install": [to_metadata(pb.Frame(round_install=pb.RoundInstall()))],
    "round_append": [to_metadata(pb.Frame(round_append=pb.RoundAppend()))],
}


def declared() -> Iterator[str]:
    """Return the kinds of requests that only a certain server may send."""
    for kind, rules in RULES.items():
        for rule in [rules] if isinstance(rules, Rule) else rules.values():
            if rule.sender not in (None, Sender.ANY):
                yield kind


def test_there_is_a_forgery_of_every_request_that_is_of_a_certain_server() -> None:
    assert set(FORGERIES) == set(declared())


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", FORGERIES)
async def test_a_node_achieves_nothing_in_the_name_of_another(scene: Scene, kind: str) -> None:
    cluster = scene.cluster
    logs = [cluster.log("o"), cluster.log(next(name for name in await names(cluster)))]
    before = [await log.tail() for log in logs]
    for forgery in FORGERIES[kind]:
        frame, target = forgery(scene)
        if kind == "replicate":
            assert await refused_replication(scene, frame)
            continue
        error = await scene.send(frame, target)
        expected = Unavailable if kind == "sync_batches" else (Unauthorized, PermissionDenied)
        assert isinstance(error, expected), (str(frame), error)
    assert [await log.tail() for log in logs] == before
    assert all(node.alive for node in (await cluster.status()).nodes)
    for log in logs:
        async with asyncio.timeout(PATIENCE_S):
            await log.append(b"after it")


async def names(cluster: Cluster) -> list[str]:
    return [log.name for log in reversed(await cluster.logs()) if log.name.startswith("s")]


async def refused_replication(scene: Scene, frame: pb.Frame) -> str:
    """Return why the backup refuses entries, which it does in a frame of its own."""

    class Refusals(OnlyAnswers[pb.Frame]):
        def frame_received(
            self, connection: Connection, kind: str, frame: pb.Frame, _: memoryview
        ) -> None:
            refused.set_result(frame.replication_refused.reason)

    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    file = scene.local.certificate("node", number=scene.x)
    codec = Codec("vsn", cluster_id="local", credentials=Credentials.of_client(file))
    connection = await connect(scene.local.nodes[scene.backup].address, codec, Refusals())
    connection.send(frame, [bytes(64)])
    try:
        async with asyncio.timeout(PATIENCE_S):
            reason = await refused
    finally:
        connection.close()
        await connection.wait_closed()
    assert "needs the certificate of node" in reason
    return reason


@pytest.mark.asyncio(loop_scope="module")
async def test_a_metadata_repository_announces_only_itself(scene: Scene) -> None:
    file = scene.local.certificate("metadata", number=1)
    beat = pb.LeaderBeat(epoch=1 << 40, leader=2, address="127.0.0.1:1")
    seal = pb.RoundSeal(epoch=1 << 40, leader=2)
    cases = (
        (pb.Frame(leader_beat=beat), scene.local.nodes[1].address),
        (pb.Frame(round_seal=seal), scene.local.address),
    )
    for frame, address in cases:
        async with scene.dialled(address, file) as connection:
            with pytest.raises(Unauthorized, match="certificate of metadata 2, not that of metad"):
                await connection.request(frame)


@pytest.mark.asyncio(loop_scope="module")
async def test_who_answers_at_an_address_must_be_the_node_that_is_wanted(scene: Scene) -> None:
    codec = Codec(
        "vsn",
        cluster_id="local",
        credentials=Credentials.of_client(scene.local.certificate("node", number=1)),
    )
    with pytest.raises(Unauthorized, match="certificate of node 2, not that of node 3"):
        await connect(scene.local.nodes[3].address, codec, OnlyAnswers(), wanted=("node", 2))
