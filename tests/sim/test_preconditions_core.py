"""Conditional batches of `ordered` streams, in the pure core: rounds and replicas, with lost holds,
restarted replicas, metadata repositories that forget, and seals. The negative controls take one
rule away each."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from violation import Violation

from loomlog.core.ordered.replica import Replica, ReplicaContext
from loomlog.core.ordered.rounds import Hold, LogRounds, Round, StreamRounds
from loomlog.errors import LoomError
from loomlog.types import Glsn, Llsn, NodeId, ReplicaState, StreamId

NODES: dict[StreamId, tuple[NodeId, ...]] = {1: (1, 2), 2: (3, 4)}  # the primary first
STEPS = 400
SEEDS = 300


class Batch(NamedTuple):
    first: Llsn
    length: int
    expected: Glsn | None


class World:
    """Two streams of one log. What can happen is chosen at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.epochs = dict.fromkeys(NODES, 1)
        self.durable: list[Round] = []
        self.batches: dict[StreamId, list[Batch]] = {stream: [] for stream in NODES}
        self.replicas: dict[NodeId, Replica] = {}
        self.committed = self.dropped = 0  # conditional batches
        self.held: Hold | None = None
        self.rounds = self._new_rounds()
        for stream, nodes in NODES.items():
            for node in nodes:
                self.replicas[node] = Replica(stream, node, 0, ReplicaContext())
                self.replicas[node].seal(1, 0)
                self.replicas[node].unseal(1, nodes)

    def run(self) -> None:
        steps: list[Callable[[StreamId], None]] = [
            *[self.append] * 12,
            *[self.write] * 24,
            *[self.report] * 24,
            *[self.round] * 16,
            *[self.deliver] * 16,
            *(self.restart, self.forget, self.lapse, self.seal, self.seal, self.seal),
        ]
        for _ in range(STEPS):
            self.random.choice(steps)(self.random.choice(list(NODES)))

    def append(self, stream: StreamId) -> None:
        primary, *backups = (self.replicas[node] for node in NODES[stream])
        count = self.random.choice((1, 1, 3))
        expected = self.rounds.high_watermark if self.random.random() < 0.85 else None
        try:
            if expected is not None and self.random.random() < 0.7:
                self.held = self.rounds.hold(stream, primary.epoch, expected)
            first = primary.reserve(count, expected)
            self.batches[stream].append(Batch(first, count, expected))
            for backup in backups:
                backup.accept(primary.epoch, first, first + count - 1)
        except LoomError:
            pass  # a conflict, or a stream that does not run

    def lapse(self, stream: StreamId) -> None:
        if self.held is not None:
            self.rounds.release(self.held)

    def write(self, stream: StreamId) -> None:
        replica = self._any(stream)
        least = min(replica.context.uncommitted_llsn_end, replica.next_llsn) - 1
        replica.written(self.random.randint(least, replica.next_llsn - 1))

    def report(self, stream: StreamId) -> None:
        replica = self._any(stream)
        self.rounds.report(replica.node_id, replica.report())

    def round(self, stream: StreamId) -> None:
        if self.rounds.under_way:
            self.rounds.durable()
        elif (round_ := self.rounds.next_round()) is not None:
            self.durable.append(round_)  # if the leader is lost now, the next one finds it
            self._judge(round_)

    def deliver(self, stream: StreamId) -> None:
        replica = self._any(stream)
        for _, commit in self.rounds.commits_for(replica.node_id, empty=True):
            replica.commit(commit)
        if replica.is_precondition_broken:
            replica.self_seal()
        self.rounds.report(replica.node_id, replica.report())

    def restart(self, stream: StreamId) -> None:
        """Let a replica forget what is not on its disk, and report at once."""
        old = self._any(stream)
        again = Replica(stream, old.node_id, old.epoch, old.context)
        self.replicas[old.node_id] = again
        self.rounds.reconnected(old.node_id)
        self.rounds.report(old.node_id, again.report())

    def forget(self, stream: StreamId) -> None:
        """Let another metadata repository lead, which knows of no hold."""
        self.rounds = self._new_rounds()
        for replica in self.replicas.values():
            self.rounds.report(replica.node_id, replica.report())

    def seal(self, stream: StreamId) -> None:
        """Seal a stream that does not run, and let it run again."""
        replicas = [self.replicas[node] for node in NODES[stream]]
        if self.rounds.under_way or all(r.state is ReplicaState.RUNNING for r in replicas):
            return
        record = self.rounds.streams[stream]
        last = record.committed_llsn_end - 1
        self.epochs[stream] += 1
        for replica in replicas:
            replica.seal(self.epochs[stream], last)
            self.rounds.reconnected(replica.node_id)
            self.rounds.report(replica.node_id, replica.report())
            for _, commit in self.rounds.commits_for(replica.node_id, empty=True):
                replica.commit(commit)
            replica.seal(self.epochs[stream], last)
            replica.unseal(self.epochs[stream], NODES[stream])
        record.epoch = self.epochs[stream]
        for replica in replicas:
            self.rounds.report(replica.node_id, replica.report())
        kept = [batch for batch in self.batches[stream] if batch.first <= last]
        gone = self.batches[stream][len(kept) :]
        self.dropped += sum(batch.expected is not None for batch in gone)
        self.batches[stream] = kept

    # ---- what must be true

    def _judge(self, round_: Round) -> None:
        for part in round_.parts:
            for batch in self.batches[part.stream_id]:
                if batch.expected is None or not self._covers(part.llsn, part.length, batch):
                    continue
                self.committed += 1
                position = part.glsn + batch.first - part.llsn
                if position != batch.expected + 1:
                    raise Violation(f"{batch} of stream {part.stream_id} is at {position}")
                if batch.first + batch.length > part.llsn + part.length:
                    raise Violation(f"{batch} of stream {part.stream_id} is committed in parts")

    def _covers(self, llsn: Llsn, length: int, batch: Batch) -> bool:
        return llsn <= batch.first < llsn + length

    def _any(self, stream: StreamId) -> Replica:
        return self.replicas[self.random.choice(NODES[stream])]

    def _new_rounds(self) -> LogRounds:
        rounds = LogRounds(1)
        for stream, nodes in NODES.items():
            rounds.add_stream(stream, nodes, self.epochs[stream], sealed=False)
        for round_ in self.durable:
            rounds.restore(round_)
        return rounds


def test_a_conditional_batch_stands_behind_what_it_expects_or_nowhere() -> None:
    committed = dropped = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        committed, dropped = committed + world.committed, dropped + world.dropped
    assert committed > SEEDS
    assert dropped > SEEDS


def is_found() -> bool:
    for seed in range(SEEDS):
        try:
            World(seed).run()
        except Violation:
            return True
    return False


def test_a_round_that_ignores_what_batches_expect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamRounds, "next_end", lambda self, tail: self.written_end())
    assert is_found()


def test_a_round_that_believes_a_restarted_primary_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def written_end(self: StreamRounds) -> Llsn:
        reports = [self.reports.get(node) for node in self.replicas]
        ends = [r.written_end for r in reports if r is not None and r.epoch == self.epoch]
        least = min(ends) if len(ends) == len(reports) else 0
        return max(least, self.committed_llsn_end)

    monkeypatch.setattr(StreamRounds, "written_end", written_end)
    assert is_found()


def test_a_round_that_commits_parts_of_a_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_end(self: StreamRounds, tail: Glsn) -> Llsn:
        begin, end = self.committed_llsn_end, self.written_end()
        report = self.reports.get(self.replicas[0])
        expecting = None if report is None else report.precondition
        if expecting is None or not begin <= expecting.llsn < end:
            return end
        return end if tail + expecting.llsn - begin == expecting.expected else expecting.llsn

    monkeypatch.setattr(StreamRounds, "next_end", next_end)
    assert is_found()


def test_a_primary_that_forgets_a_condition_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any commit ends it, also one of another stream."""
    commit = Replica.commit

    def forgetful(self: Replica, context: object) -> object:
        outcome = commit(self, context)  # type: ignore[arg-type]
        self.precondition = None
        return outcome

    monkeypatch.setattr(Replica, "commit", forgetful)
    assert is_found()
