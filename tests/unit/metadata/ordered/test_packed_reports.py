"""Packed reports and commits have the same effect as single ones, whatever happens in between."""

from __future__ import annotations

import asyncio
import os
import random
from types import SimpleNamespace
from typing import Any

import pytest

from loomlog.core.ordered.columns import StreamInColumns
from loomlog.core.ordered.kept_rounds import needed
from loomlog.core.ordered.rounds import LogRounds, Round
from loomlog.core.packed import HeldReplica, pack_report, unpack_reports
from loomlog.errors import Corrupt
from loomlog.metadata.ordered import packed_reports
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.rounds import Done
from loomlog.types import NodeId, Precondition, ReplicaState, Report, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import commits_from_wire, pack_reports, report_to_wire

NODES = (1, 2, 3, 4)
STREAMS = range(1, 13)
LOGS = (1, 2)
STAMP = 1 << 63
LEAST = 2


class Rounds:
    """A round log whose records are durable when the test says so."""

    epoch, is_doubtful, record_format = 1, False, 1

    def __init__(self) -> None:
        self.waiting: list[Done] = []
        self.records: list[bytes] = []

    def read(self) -> list[bytes]:
        return []

    def begin(self, snapshot: object) -> None: ...

    def append(self, epoch: int, record: bytes, done: Done) -> None:
        self.records.append(record)
        self.waiting.append(done)


class Replica:
    """A replica of a stream. It checks commits as a node does."""

    def __init__(self, stream_id: StreamId) -> None:
        self.stream_id = stream_id
        self.epoch = 1
        self.written, self.committed, self.high_watermark, self.stored = 1, 1, 0, 0
        self.state, self.resend, self.damaged = ReplicaState.RUNNING, False, False
        self.condition: Precondition | None = None

    def report(self) -> Report:
        report = Report(
            self.stream_id,
            self.committed,
            self.written - self.committed,
            self.high_watermark,
            self.epoch,
            self.state,
            self.stored,
            self.resend,
            self.damaged,
            self.condition,
        )
        self.resend = False
        return report

    def commit(self, high: int, before: int, llsn: int, length: int, epoch: int) -> None:
        if high <= self.high_watermark or epoch != self.epoch:
            return
        if before != self.high_watermark:
            self.resend = True
            return
        assert llsn == self.committed
        assert llsn + length <= self.written
        self.high_watermark, self.committed = high, llsn + length
        if self.condition is not None and self.condition.llsn < self.committed:
            self.condition = None


class World:
    """Two logs, whose streams have replicas on three of four nodes."""

    def __init__(self, *, packs: bool) -> None:
        self.packs = packs
        self.rounds = Rounds()
        self.replicas: dict[tuple[NodeId, StreamId], Replica] = {}
        self.changed: dict[NodeId, dict[StreamId, None]] = {node: {} for node in NODES}
        self.packed_commits = 0
        known = {node: SimpleNamespace(stored_bytes_total=0) for node in NODES}
        nodes: Any = SimpleNamespace(
            get=known.get, connected=lambda node: True, send=self._send, known=known
        )
        self.nodes = nodes
        records: Any = SimpleNamespace(catalog=None, streams={}, held_by=self._held_by)
        self.records = records
        self.inbox: list[tuple[NodeId, bytes]] = []
        rounds: Any = self.rounds
        self.committer = Committer(rounds, records, nodes, lambda stream: None, self._failed)
        self.logs = [LogRounds(log_id) for log_id in LOGS]
        for stream_id in STREAMS:
            self._prepare(self.logs[stream_id % 2], stream_id)
        for log in self.logs:
            self.committer.add(log)
        self.committer.start()
        for node in NODES:
            self.register(node)

    def _prepare(self, log: LogRounds, stream_id: StreamId) -> None:
        first = stream_id % 4
        replicas = (NODES * 2)[first : first + 3]
        log.add_stream(stream_id, replicas, 1, sealed=False)
        self.records.streams[stream_id] = SimpleNamespace(stamp=STAMP)
        for node in replicas:
            self.replicas[node, stream_id] = Replica(stream_id)

    def _held_by(self, node: NodeId) -> list[Any]:
        return [SimpleNamespace(stream_id=s) for n, s in self.replicas if n == node]

    def _failed(self, error: BaseException) -> None:
        raise error

    def _send(self, node: NodeId, frame: pb.Frame) -> None:
        self.inbox.append((node, frame.SerializeToString()))

    def register(self, node: NodeId) -> None:
        self.inbox = [each for each in self.inbox if each[0] != node]
        self.nodes.known[node].stored_bytes_total = 0
        self.committer.reconnected(node, reads_packed=self.packs and node != NODES[-1])
        reports = [self._wire(node, s) for n, s in self.replicas if n == node]
        self.committer.take_report(node, pb.Register(uncommit_reports=reports))
        self.committer.catch_up(node)

    def _wire(self, node: NodeId, stream_id: StreamId) -> pb.LogStreamUncommitReport:
        replica = self.replicas[node, stream_id]
        return report_to_wire(replica.report(), 10 * replica.written, STAMP, birth=node)

    def write(self, stream_id: StreamId, count: int) -> None:
        for node in self.committer.stream(stream_id).replicas:  # type: ignore[union-attr]
            self.replicas[node, stream_id].written += count
            self.changed[node][stream_id] = None

    def report(self, node: NodeId) -> None:
        changed, self.changed[node] = self.changed[node], {}
        message = pb.GetReportResponse(storage_node_id=node)
        message.uncommit_reports.extend(self._wire(node, stream_id) for stream_id in changed)
        if self.packs and len(changed) >= LEAST:
            pack_reports(message)
        self.committer.take_report(node, message)

    def turn(self) -> None:
        """Make what was decided durable, and carry out what follows."""
        waiting, self.rounds.waiting = self.rounds.waiting, []
        for done in waiting:
            done(None)
        self.committer._turn()

    def bare(self) -> None:
        if self.committer._bare_timer is not None:
            self.committer._bare_timer.cancel()
        self.committer._send_bare()

    def deliver(self) -> None:
        inbox, self.inbox = self.inbox, []
        for node, data in inbox:
            request = pb.Frame.FromString(data).commit
            self.packed_commits += bool(request.packed_commits)
            assert self.packs or not request.packed_commits
            for stream_id, commit in commits_from_wire(request):
                replica = self.replicas[node, stream_id]
                replica.commit(
                    commit.high_watermark,
                    commit.prev_high_watermark,
                    commit.llsn,
                    commit.length,
                    commit.epoch,
                )
                self.changed[node][stream_id] = None

    def lose(self, node: NodeId) -> None:
        """Lose the commits on their way to a node, as if it had not been able to apply them."""
        self.inbox = [each for each in self.inbox if each[0] != node]

    def settle(self) -> None:
        for _ in range(50):
            self._report_all()
            for _ in range(4):
                self.turn()
            self.committer._bare |= self.committer.logs  # as the next round would do
            self.bare()
            self.deliver()
            if all(
                replica.high_watermark == self._log(stream_id).high_watermark and not replica.resend
                for (_, stream_id), replica in self.active()
            ):
                self._report_all()
                return
        pytest.fail("commits are missing")

    def _report_all(self) -> None:
        for (node, stream_id), replica in self.replicas.items():
            replica.stored = replica.high_watermark
            self.changed[node][stream_id] = None
        for node in NODES:
            self.report(node)

    def active(self) -> list[tuple[tuple[NodeId, StreamId], Replica]]:
        return [
            (key, replica)
            for key, replica in self.replicas.items()
            if self.committer.log_of(key[1]) is not None
        ]

    def _log(self, stream_id: StreamId) -> LogRounds:
        return self.logs[stream_id % 2]

    def seal(self, stream_id: StreamId) -> None:
        """Seal a stream that is settled, and open it again in the next epoch."""
        stream = self.committer.stream(stream_id)
        assert stream is not None
        stream.sealed, stream.epoch = True, stream.epoch + 1
        for node in stream.replicas:
            replica = self.replicas[node, stream_id]
            replica.epoch, replica.written = stream.epoch, replica.committed
            replica.condition = None
            self.changed[node][stream_id] = None
        stream.sealed = False

    def check(self) -> None:
        for log in self.logs:
            ends = {s: stream.committed_llsn_end for s, stream in log.streams.items()}
            gone = sum(stream.committed_llsn_end - 1 for stream in log.removed.values())
            assert sum(end - 1 for end in ends.values()) + gone == log.high_watermark
            for (_, s), replica in self.active():
                if s in ends:
                    assert replica.committed == ends[s]
        positions: dict[int, set[int]] = {log_id: set() for log_id in LOGS}
        for record in self.rounds.records:
            round_ = Round.decode(record)
            for part in round_.parts:
                given = range(part.glsn, part.glsn + part.length)
                assert not positions[round_.log_id].intersection(given)
                positions[round_.log_id].update(given)
        for log in self.logs:
            assert positions[log.log_id] == set(range(1, log.high_watermark + 1))

    def outcome(self) -> list[object]:
        found: list[object] = [
            (log.high_watermark, s.stream_id, s.committed_llsn_end, s.committed_epoch, s.reports)
            for log in self.logs
            for s in log.streams.values()
        ]
        held = [self.committer.held.get(node, s) for node in NODES for s in STREAMS]
        stored = [self.nodes.known[node].stored_bytes_total for node in NODES]
        return [*found, *held, *stored]


def restored(world: World) -> list[tuple[int, int, int]]:
    """Return what a metadata repository knows that reads the records of a world again."""
    found = []
    for log in world.logs:
        again = LogRounds(log.log_id)
        for stream in (log.streams | log.removed).values():
            again.add_stream(stream.stream_id, stream.replicas, stream.epoch, sealed=False)
        for round_ in map(Round.decode, world.rounds.records):
            if round_.log_id == log.log_id:
                again.restore(round_)
        found += [
            (again.high_watermark, s.stream_id, s.committed_llsn_end)
            for s in again.streams.values()
        ]
    return found


def act(worlds: tuple[World, World], rng: random.Random) -> None:
    """Do the same in both worlds."""
    kind = rng.choices(
        (
            *("write", "report", "turn", "deliver", "bare", "look", "seal", "lose", "register"),
            *("state", "remove", "add", "forget", "condition", "snapshot"),
        ),
        weights=(30, 30, 30, 20, 6, 4, 2, 3, 2, 2, 1, 1, 3, 3, 1),
    )[0]
    streams = [s for s in STREAMS if worlds[0].committer.stream(s) is not None]
    chosen, node = rng.sample(streams, rng.randint(1, len(streams))), rng.choice(NODES)
    counts, seed = [rng.randint(1, 3) for _ in chosen], rng.random()
    for world in worlds:
        stream = world.committer.stream(chosen[0])
        assert stream is not None
        match kind:
            case "write":
                for stream_id, count in zip(chosen, counts, strict=True):
                    world.write(stream_id, count)
            case "report":
                for each in NODES if seed < 0.7 else [node]:
                    world.report(each)
            case "turn":
                world.turn()
            case "deliver":
                world.deliver()
            case "bare":
                world.bare()
            case "look":
                assert stream.written_end() >= stream.committed_llsn_end
                world.committer.held.on(node)
            case "seal":
                world.settle()
                world.seal(chosen[0])
            case "lose":
                world.lose(node)
                for (on, stream_id), replica in world.replicas.items():
                    if on == node:
                        replica.resend = True
                        world.changed[node][stream_id] = None
            case "register":
                world.register(node)
            case "state":
                replica = world.replicas[stream.replicas[0], chosen[0]]
                replica.damaged = not replica.damaged
                world.changed[stream.replicas[0]][chosen[0]] = None
            case "remove" if len(streams) > 8:
                world.settle()
                world.committer.remove_stream(chosen[0])
            case "add":
                for log in world.logs:
                    for gone in list(log.removed.values()):
                        world.committer.add_stream(log, gone)
            case "forget":
                world.committer._forget_stored()
            case "snapshot":
                list(world.committer._snapshot())
            case "condition":
                condition(world, chosen[0])


def condition(world: World, stream_id: StreamId) -> None:
    """Append a conditional batch to a stream of a log in which nothing else happens."""
    world.settle()
    stream, log = world.committer.stream(stream_id), world.committer.log_of(stream_id)
    assert stream is not None
    assert log is not None
    tail = log.high_watermark
    world.committer.hold(stream.replicas[0], stream_id, stream.epoch, tail)
    for other in log.streams:
        world.write(other, 1)
    primary = world.replicas[stream.replicas[0], stream_id]
    primary.condition = Precondition(primary.committed, primary.written, tail)
    world.settle()
    [part] = (
        part
        for round_ in map(Round.decode, world.rounds.records)
        for part in round_.parts
        if round_.log_id == log.log_id and part.glsn == tail + 1
    )
    assert part.stream_id == stream_id  # directly behind, though all others waited, too


@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "10"))))
def test_packed_reports_have_the_same_effect(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_reports, "LEAST", LEAST)
    rng = random.Random(seed)

    async def story() -> None:
        worlds = World(packs=False), World(packs=True)
        for _ in range(120):
            act(worlds, rng)
        for world in worlds:
            for replica in world.replicas.values():
                replica.damaged = False
            world.settle()
        plain, packed = worlds
        assert plain.packed_commits == 0 < packed.packed_commits
        assert any(
            isinstance(s, StreamInColumns) for log in packed.logs for s in log.streams.values()
        )
        for world in worlds:
            world.check()
        assert restored(plain) == restored(packed)
        assert plain.outcome() == packed.outcome()
        for log in packed.logs:
            for round_ in needed(log):
                assert Round.decode(round_.encode()) == round_

    asyncio.run(story())


async def test_streams_in_columns_are_not_touched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed_reports, "LEAST", LEAST)
    world = World(packs=True)
    world.settle()
    columns = [log.columns for log in world.logs]
    assert all(columns)
    for _ in range(3):
        for stream_id in STREAMS:
            world.write(stream_id, 1)
        for node in NODES:
            world.report(node)
        for _ in range(3):
            world.turn()
        world.bare()
        world.deliver()
        assert [each.outside for each in columns if each is not None] == [{}, {}]
    world.settle()
    world.check()


def test_a_report_is_the_same_when_it_is_unpacked() -> None:
    report = Report(7, 5, 2, 9, 3, ReplicaState.SEALED, 8, True, True)
    held = HeldReplica(report, STAMP, 4, 1000)
    row = pack_report(held)
    assert len(row) == 72
    assert list(unpack_reports(row * 2)) == [held, held]
    with pytest.raises(Corrupt):
        list(unpack_reports(row[:-1]))
    with pytest.raises(Corrupt):
        list(unpack_reports(row[:8] + b"\xff" * 8 + row[16:]))


def test_reports_with_a_precondition_are_not_packed() -> None:
    plain = Report(1, 1, 1, 0, 1, ReplicaState.RUNNING, 0, False)
    conditional = plain._replace(stream_id=2, precondition=Precondition(1, 2, 0))
    message = pb.GetReportResponse(
        uncommit_reports=[report_to_wire(each, 0, 1, 1) for each in (plain, conditional)]
    )
    pack_reports(message)
    assert [each.log_stream_id for each in message.uncommit_reports] == [2]
    assert [held.report for held in unpack_reports(message.packed_reports)] == [plain]


async def test_packed_reports_with_impossible_numbers_are_refused() -> None:
    world = World(packs=True)
    row = pack_report(HeldReplica(world.replicas[2, 1].report(), STAMP, 2))
    for wrong in (row[:-1], row[:8] + b"\xff" * 8 + row[16:]):
        with pytest.raises(Corrupt):
            world.committer.take_report(2, pb.GetReportResponse(packed_reports=wrong))
