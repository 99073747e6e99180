"""Bugs that the simulation found: the seed of each, and its cause.

A seed means the same run only until the workload changes; so each bug that can be told in a few
lines is repeated below, without chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from run_seeds import Choice, run_seed
from sim_cluster import Shape, SimCluster

from loomlog.batch import read_header
from loomlog.config import StorageSettings
from loomlog.core.ordered import repair
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.errors import LoomError, Trimmed
from loomlog.metadata.rounds.round_files import FileRoundLog
from loomlog.net import endpoints
from loomlog.storage.ordered.replica_paths import ReplicaPaths, StreamMeta, save_meta
from loomlog.storage.volumes import Volumes
from loomlog.testing.sim import Process, SimFiles, Simulation
from loomlog.types import CommitContext, Glsn, NodeId, ReplicaState, Report
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        (1, "crashes"),  # a power loss took the directory of the round log, which was not synced
        (48, "crashes"),  # ... brought replicas back that had been removed for good
        (80, "crashes"),
        (77, "crashes"),  # a primary asked its backup over a dead connection, again and again
        # A primary refused an append for its seal while a replica was asked about it: both
        # answers sent it elsewhere, and it was appended twice.
        (241, "crashes"),
        # A node was too slow to remove a deleted log's replica; nobody asked it again.
        (40121, "pauses"),
        # A reader that began at a lagging replica was told that its position was trimmed.
        (60469, "all"),
        # A replica was told of a commit before the seal of its epoch, and never again.
        (88, "disks"),
        # A read came for a replica that was just leaving: nobody answered.
        (109, "pauses"),
        (18, "disks"),  # "internal error" for a new stream on a full disk
        # A newcomer took over before its commits were synced, the old one was deleted, and then a
        # power loss: entries without positions.
        (1064, "crashes"),
        (2142, "disks"),  # ... or taken back, before its repair began
        (5, "resets"),
        # A replica that had been primary, and was filled again, answered an append that still
        # waited there with the place of another one's entry.
        (633, "resets"),
        # A subscription was slow to reach a replica; all readers were past its position, and it was
        # trimmed, when it came.
        (500455, "resets"),
        (2232, "none"),  # files closed under a subscription of a replica that was moved away
        (2440, "pauses"),
        (1230, "pauses"),  # a spare was looked for, for a stream that was just being deleted
    ],
)
def test_seeds_that_failed_once(seed: int, faults: str) -> None:
    outcome = run_seed(Choice(seed, faults=faults))
    assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_a_newcomer_of_a_trimmed_segment_does_not_keep_the_metadata_repository_busy() -> None:
    """The stream had no record any more that would have said that the newcomer was given up, so it
    was given up again and again, without a pause."""
    outcome = run_seed(Choice(5018, workload="switches"))
    assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation(seed=1) as simulation:
        yield simulation


def lives(sim: Simulation, life: object, count: int) -> None:
    """Run a program to its end on one host, with a power loss after each life."""
    host = sim.host("host")
    for _ in range(count):
        process = host.start(life)  # type: ignore[arg-type]
        sim.run(lambda process=process: process.finished)  # type: ignore[misc]
        host.crash()


def test_a_new_round_log_survives_a_power_loss(sim: Simulation) -> None:
    opened: list[FileRoundLog] = []

    async def life(process: Process) -> None:
        create = not opened
        opened.append(
            FileRoundLog.open(process.files, "/new/vmr/rounds", process.worker(), create=create)
        )

    lives(sim, life, 5)
    assert len(opened) == 5  # each found what the first had made


@pytest.mark.parametrize("seed", range(10))
def test_a_removed_replica_does_not_come_back(seed: int) -> None:
    found: list[list[int]] = []

    def replicas(files: SimFiles) -> tuple[ReplicaPaths, str]:
        files.make_directory("/data")
        files.sync_directory("/")
        volumes = Volumes(files, ["/data"], "sim", 1, new_secret=lambda: "secret")
        stamp = volumes.cluster_stamp
        return ReplicaPaths(files, volumes.paths, stamp, 1), stamp

    async def life(process: Process) -> None:
        node, stamp = replicas(process.files)
        found.append(sorted(node.streams))
        if len(found) == 1:
            path = node.place(7, lambda stream_id: 0)
            process.files.make_directory(path)
            save_meta(process.files, path, StreamMeta(1, 7, cluster=stamp))
            process.files.sync_directory(path.rpartition("/")[0])
        elif len(found) == 2:
            node.remove(7)

    with Simulation(seed) as sim:
        lives(sim, life, 4)
    assert found == [[], [7], [], []]


def test_bytes_for_a_process_that_dies_as_they_arrive_come_back_as_a_reset(
    sim: Simulation,
) -> None:
    """A bug of the simulator behind seed 77: the bytes vanished, and the sender never noticed."""

    async def server(process: Process) -> None:
        async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        await (await asyncio.start_server(ignore, "server", 1)).serve_forever()

    async def client(process: Process) -> None:
        _, writer = await asyncio.open_connection("server", 1)
        host.strike_after(crash_unheard, turns=3)
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.001)
        except ConnectionResetError:
            return

    def crash_unheard() -> None:
        host.crash()
        for _ in range(20):  # each may lose the reset that the crash would have sent
            sim.network.heal()

    host = sim.host("server")
    host.start(server)
    sim.run(0.005)
    writing = sim.host("client").start(client)
    sim.world.after(0.1, host.start, server)
    sim.run(lambda: writing.finished, timeout_s=60)


def test_a_replica_asks_again_for_commits_that_came_before_their_seal() -> None:
    replica = Replica(1, 1, epoch=2, context=ReplicaContext(high_watermark=140))
    early = CommitContext(190, prev_high_watermark=140, glsn=0, llsn=1, length=0, epoch=3)
    assert replica.commit(early) is CommitOutcome.MISSED
    assert replica.report().resend
    assert replica.commit(early) is CommitOutcome.MISSED  # still before the seal
    assert not replica.report().resend
    replica.seal(3, last_committed_llsn=0)
    assert replica.report().resend
    assert replica.commit(early) is CommitOutcome.APPLIED


def test_a_newcomer_takes_over_when_a_power_loss_would_leave_it_whole() -> None:
    class AllAlive:
        def connected(self, node: NodeId) -> bool:
            return True

        def moving(self) -> int:
            return 0

        def alive(self, node: NodeId) -> bool:
            return True

        def lost(self, node: NodeId) -> bool:
            return False

        def spare(self, stream: StreamRounds) -> NodeId | None:
            return None

        def given_up(self, node: NodeId) -> bool:
            return False

        def has_unopened(self, node: NodeId) -> bool:
            return False

        def has_lost(self, stream: StreamRounds) -> bool:
            return False

    def sealed(stored: Glsn) -> Report:
        return Report(1, 152, 0, 151, 3, ReplicaState.SEALED, stored, resend=False)

    moving = StreamRounds(1, (3,), 3, sealed=True, wanted_replicas=1, joining=4, leaving=3)
    moving.committed_llsn_end, moving.sealed_at = 152, 151
    moving.reports = {3: sealed(stored=151), 4: sealed(stored=100)}
    assert isinstance(repair.decide(moving, AllAlive()), repair.Wait)
    moving.reports[4] = sealed(stored=151)
    assert repair.decide(moving, AllAlive()) == repair.Swap((4,))


class _Nobody:
    """A handler of connections that wants to hear nothing."""

    def frame_received(
        self, connection: Connection, kind: str, frame: Any, payload: memoryview
    ) -> None:
        pass

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        pass


def test_a_subscription_skips_what_is_trimmed_below_its_position(sim: Simulation) -> None:
    """The replica lags: it begins with LLSN 3 and is asked for position 5; 4 is trimmed before it
    sends."""
    shape = Shape(1, 1, 1, StorageSettings(), 4096, failure_detection_s=1.0, heartbeat_s=0.25)
    servers = SimCluster(sim, shape)
    servers.start()
    answers: list[Any] = []

    async def client(process: Process) -> None:
        async with await servers.connect(process) as cluster:
            await asyncio.sleep(1.0)  # the node registers
            log = await cluster.create_log("log", streams=1, replicas=1)
            await log.append_many([b"1", b"2"])
            connection = await endpoints.connect("vsn-1:7401", Codec("client"), _Nobody())
            order = pb.Subscribe(log_stream_id=1, first_glsn=5, credit_bytes=0)
            subscription = connection.call(
                pb.Frame(subscribe=order), (), lambda *answer: answers.append(answer), many=True
            )
            await asyncio.sleep(0.1)
            await log.append_many([b"3", b"4"])
            await log.append(b"5")
            await log.trim(4)
            credit = pb.SubscriptionCredit(subscription_id=subscription, bytes=1000)
            connection.send(pb.Frame(subscription_credit=credit))
            await asyncio.sleep(0.1)
            connection.close()

    process = sim.host("client").start(client)
    sim.run(lambda: process.finished, timeout_s=60)
    assert not [answer for answer, _ in answers if isinstance(answer, Trimmed)]
    assert [read_header(payload).first_position for _, payload in answers if payload] == [5]
