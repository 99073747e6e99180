"""Rounds are rebuilt from the knowledge of replicas if they are certain; otherwise it is refused
(docs/design/metadata.md)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest

from loomlog.core.ordered.evidence import StreamEvidence, Witness
from loomlog.core.ordered.rebuild import (
    Elsewhere,
    Rebuilt,
    commits_after,
    rebuild,
    trimmed_and_gone,
)
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.core.ordered.rounds import LogRounds
from loomlog.types import CommitContext, Glsn, NodeId, ReplicaState, StreamId

LOG = 9


class Log:
    """A log on pure replicas; rounds go where the test lets them go."""

    def __init__(self, placement: dict[StreamId, tuple[NodeId, ...]]) -> None:
        self.rounds = LogRounds(LOG)
        self.replicas: dict[tuple[StreamId, NodeId], Replica] = {}
        self.commits: dict[tuple[StreamId, NodeId], list[CommitContext]] = {}
        self.seen: dict[tuple[StreamId, int], Glsn] = {}  # LLSN -> GLSN that somebody may know
        self.ran: dict[tuple[StreamId, NodeId], int] = {}
        self.sealed: set[StreamId] = set()
        self.elsewhere: list[Elsewhere] = []
        for stream, nodes in placement.items():
            self.rounds.add_stream(stream, nodes, 1, sealed=False)
            for node in nodes:
                replica = Replica(stream, node, 1, ReplicaContext())
                replica.seal(1, 0)
                replica.unseal(1, nodes)
                self.replicas[stream, node] = replica
                self.commits[stream, node] = []
                self.ran[stream, node] = 1

    def nodes(self, stream: StreamId) -> tuple[NodeId, ...]:
        return self.rounds.streams[stream].replicas

    def write(self, stream: StreamId, count: int, nodes: Iterable[NodeId] | None = None) -> None:
        for node in self.nodes(stream) if nodes is None else nodes:
            replica = self.replicas[stream, node]
            replica.next_llsn += count
            replica.written(replica.next_llsn - 1)

    def decide(self) -> None:
        """A round, durable, that nobody has heard of yet."""
        for (_, node), replica in self.replicas.items():
            self.rounds.report(node, replica.report())
        if self.rounds.next_round() is not None:
            self.rounds.durable()

    def tell(self, *nodes: NodeId, empty: bool = False) -> None:
        for node in nodes or {node for _, node in self.replicas}:
            for stream, commit in self.rounds.commits_for(node, empty=empty):
                outcome = self.replicas[stream, node].commit(commit)
                assert outcome is CommitOutcome.APPLIED
                if commit.length:
                    self.commits[stream, node].append(commit)
                self._see(stream, commit)

    def _see(self, stream: StreamId, commit: CommitContext) -> None:
        for offset in range(commit.length):
            self.seen[stream, commit.llsn + offset] = commit.glsn + offset

    def append(self, stream: StreamId, count: int) -> None:
        self.write(stream, count)
        self.decide()
        self.tell(empty=True)

    def skip(self, count: int) -> None:
        """A segment of another protocol comes between."""
        first = self.rounds.high_watermark + 1
        self.elsewhere.append(Elsewhere(first, first + count - 1))
        self.rounds.begin_at(first + count)

    def restart(self, node: NodeId, keeping: int = 1_000_000) -> None:
        """Restart with this many commits: what the node did not hear again is forgotten."""
        for (stream, where), replica in list(self.replicas.items()):
            if where == node:
                kept = self.commits[stream, node][:keeping]
                lost = len(kept) < len(self.commits[stream, node])
                self.commits[stream, node] = kept
                high = replica.context.high_watermark
                if lost:
                    high = kept[-1].high_watermark if kept else 0
                end = kept[-1].last_llsn + 1 if kept else 1
                context = ReplicaContext(high, end, replica.context.uncommitted_llsn_end)
                self.replicas[stream, node] = Replica(stream, node, 1, context)
                self.ran[stream, node] = 0

    def evidence(
        self, away: Iterable[NodeId] = (), outdated: Collection[NodeId] = ()
    ) -> list[StreamEvidence]:
        streams = []
        for stream in self.rounds.streams.values():
            witnesses = {
                node: Witness(
                    self.replicas[stream.stream_id, node].report(),
                    self.ran[stream.stream_id, node],
                    synced=True,
                    outdated=node in outdated,
                )
                for node in stream.replicas
                if node not in set(away)
            }
            streams.append(
                StreamEvidence(
                    stream.stream_id, stream.replicas, stream.epoch, stream.sealed, witnesses
                )
            )
        after = commits_after(streams, self.elsewhere)
        return [self._with_commits(stream, after[stream.stream_id]) for stream in streams]

    def _with_commits(self, stream: StreamEvidence, after: Glsn) -> StreamEvidence:
        witnesses = {
            node: replace(witness, commits=tuple(self._after(stream.stream_id, node, after)))
            for node, witness in stream.witnesses.items()
        }
        return replace(stream, witnesses=witnesses)

    def _after(self, stream: StreamId, node: NodeId, after: Glsn) -> list[CommitContext]:
        return [c for c in self.commits[stream, node] if c.high_watermark > after]

    def rebuild(self, away: Iterable[NodeId] = (), outdated: Collection[NodeId] = ()) -> Rebuilt:
        return rebuild(LOG, 0, self.evidence(away, outdated), self.elsewhere)

    def remove(self, stream: StreamId) -> Glsn:
        """Remove a stream that everybody has heard of; return its last position."""
        last = max((at for (which, _), at in self.seen.items() if which == stream), default=0)
        del self.rounds.streams[stream]
        self.replicas = {at: r for at, r in self.replicas.items() if at[0] != stream}
        self.seen = {entry: at for entry, at in self.seen.items() if entry[0] != stream}
        return last

    def rebuild_without_removed(self, trimmed: Glsn, away: Iterable[NodeId] = ()) -> Rebuilt:
        """Rebuild the rounds if streams may have been removed that the metadata does not know."""
        streams = self.evidence(away)
        after = commits_after(streams, self.elsewhere)
        evidence = [self._with_commits(s, min(trimmed, after[s.stream_id])) for s in streams]
        gone = trimmed_and_gone(trimmed, evidence, self.elsewhere)
        return rebuild(LOG, trimmed, evidence, self.elsewhere, gone)

    def give_up(self, away: Iterable[NodeId]) -> None:
        for stream in self.rounds.streams.values():
            stream.replicas = tuple(node for node in stream.replicas if node not in set(away))
        self.replicas = {at: r for at, r in self.replicas.items() if at[1] not in set(away)}

    def restored(self, rebuilt: Rebuilt) -> LogRounds:
        """The rounds after a start on what was rebuilt, all nodes back."""
        rounds = LogRounds(LOG)
        for stream in self.rounds.streams.values():
            rounds.add_stream(stream.stream_id, stream.replicas, stream.epoch, sealed=False)
        for round_ in rebuilt.rounds:
            rounds.restore(type(round_).decode(round_.encode()))
        self.rounds = rounds
        for (_, node), replica in self.replicas.items():
            rounds.report(node, replica.report())
        return rounds


def test_a_log_that_everybody_has_heard_of_is_as_before() -> None:
    log = Log({1: (1, 2), 2: (2, 3)})
    log.append(1, 5)
    log.append(2, 3)
    rebuilt = log.rebuild()
    assert not rebuilt.doubts
    assert rebuilt.high_watermark == 8
    rounds = log.restored(rebuilt)
    assert {s.stream_id: s.committed_llsn_end for s in rounds.streams.values()} == {1: 6, 2: 4}
    log.append(1, 1)
    assert log.seen[1, 6] == 9


def test_an_empty_log_needs_no_rounds() -> None:
    assert Log({1: (1, 2)}).rebuild() == Rebuilt(0, (), ())


def test_positions_of_other_protocols_are_nobodys() -> None:
    log = Log({1: (1, 2), 2: (2, 3)})
    log.skip(100)
    log.append(1, 3)
    log.skip(50)
    log.append(2, 2)
    rebuilt = log.rebuild()
    assert not rebuilt.doubts
    assert rebuilt.high_watermark == 155
    assert ends(rebuilt) == {1: 4, 2: 3}


def test_positions_of_removed_streams_are_nobodys() -> None:
    log = Log({1: (1,), 2: (2,), 3: (3,)})
    log.append(1, 4)
    log.append(2, 3)
    log.write(1, 1)
    log.write(3, 1)
    log.decide()
    log.tell(3, empty=True)  # it learns of position 9; 8 must be the other's
    evidence = [stream for stream in log.evidence() if stream.stream_id != 2]
    rebuilt = rebuild(LOG, 7, evidence, gone=3)
    assert not rebuilt.doubts
    assert (rebuilt.high_watermark, ends(rebuilt)) == (9, {1: 6, 3: 2})
    assert rebuild(LOG, 7, evidence).doubts
    assert rebuild(LOG, 7, evidence, gone=2).doubts


def test_streams_that_were_removed_need_not_be_known_once_their_entries_are_trimmed() -> None:
    log = Log({1: (1,), 2: (2,), 3: (3,)})
    for stream in (1, 2, 3, 2):
        log.append(stream, 3)
    log.append(1, 2)
    assert log.remove(2) == 12
    for trimmed in (12, 13, 14):  # 13 and 14 are of one commit
        rebuilt = log.rebuild_without_removed(trimmed)
        assert (rebuilt.doubts, rebuilt.high_watermark) == ((), 14)
        assert ends(rebuilt) == {1: 6, 3: 4}
    for trimmed in (0, 11):
        (doubt,) = log.rebuild_without_removed(trimmed).doubts
        assert "no stream has entries for them" in doubt.text


def test_a_part_that_was_not_told_is_found_behind_positions_of_others() -> None:
    log = Log({1: (1,), 2: (2,)})
    log.append(1, 2)
    log.skip(10)
    log.write(1, 1)
    log.write(2, 1)
    log.decide()
    log.tell(2, empty=True)  # it learns of position 14; 13 must be the other's
    rebuilt = log.rebuild()
    assert not rebuilt.doubts
    assert ends(rebuilt) == {1: 4, 2: 2}
    assert rebuilt.high_watermark == 14


def test_without_word_of_other_protocols_positions_are_missed() -> None:
    log = Log({1: (1, 2)})
    log.skip(100)
    log.append(1, 3)
    log.elsewhere.clear()
    (doubt,) = log.rebuild().doubts
    assert "no stream has entries for them" in doubt.text


def ends(rebuilt: Rebuilt) -> dict[StreamId, int]:
    """Return the position behind the last entry of each stream."""
    return {part.stream_id: part.llsn + part.length for part in rebuilt.rounds[-1].parts}


def test_a_round_that_nobody_heard_of_is_decided_again() -> None:
    log = Log({1: (1, 2)})
    log.append(1, 5)
    log.write(1, 2)
    log.decide()
    rebuilt = log.rebuild()
    assert not rebuilt.doubts
    assert rebuilt.high_watermark == 5
    log.restored(rebuilt)
    log.append(1, 1)
    assert [log.seen[1, llsn] for llsn in (6, 7, 8)] == [6, 7, 8]


def test_a_replica_that_missed_the_last_rounds_is_told_them() -> None:
    log = Log({1: (1, 2), 2: (1, 2)})
    log.append(1, 5)
    for _ in range(3):
        log.write(1, 1)
        log.write(2, 2)
        log.decide()
        log.tell(1)
    rebuilt = log.rebuild()
    assert not rebuilt.doubts
    log.restored(rebuilt)
    log.tell(empty=True)
    assert log.replicas[2, 2].context == log.replicas[2, 1].context
    assert log.commits[1, 2] == log.commits[1, 1]


def test_nothing_written_beyond_the_last_commit_is_certain_although_a_node_is_away() -> None:
    log = Log({1: (1, 2, 3)})
    log.append(1, 5)
    log.restart(1)
    rebuilt = log.rebuild(away=[2, 3])
    assert not rebuilt.doubts
    assert rebuilt.high_watermark == 5


def test_what_only_a_node_that_is_away_may_know_is_a_doubt() -> None:
    log = Log({1: (1, 2), 2: (1, 3)})
    log.append(1, 5)
    log.append(2, 5)
    log.write(2, 2)
    log.decide()
    log.tell(3)  # and it answered a client, perhaps
    rebuilt = log.rebuild(away=[3])
    assert rebuilt.rounds == ()
    (doubt,) = rebuilt.doubts
    assert doubt.stream_id == 2
    assert doubt.text == (
        "LLSN 6 to 7 are written; whether they have positions above 10 is not known: "
        "node 3 did not answer, or has nothing of it"
    )


def test_what_a_restart_may_have_made_all_forget_is_a_doubt() -> None:
    log = Log({1: (1, 2)})
    log.append(1, 5)
    log.append(1, 2)
    log.restart(1, keeping=1)
    log.restart(2, keeping=1)
    (doubt,) = log.rebuild().doubts
    assert "LLSN 6 to 7 are written" in doubt.text
    assert "node 1, 2 may have forgotten, it was started again" in doubt.text


def test_one_that_remembers_is_enough_if_nothing_more_is_written() -> None:
    log = Log({1: (1, 2)})
    log.append(1, 5)
    log.append(1, 2)
    log.restart(1, keeping=1)
    rebuilt = log.rebuild()
    assert not rebuilt.doubts
    assert rebuilt.high_watermark == 7


def test_a_stream_that_was_not_told_gets_the_positions_that_others_leave() -> None:
    """Stream 1 got its part of the round, and with it the high watermark of the log."""
    log = Log({1: (1, 2), 2: (3, 4)})
    log.append(2, 4)
    log.write(1, 2)
    log.write(2, 3)
    log.decide()
    log.tell(1, 2)
    rebuilt = log.rebuild()
    assert not rebuilt.doubts
    assert rebuilt.high_watermark == 9
    log.restored(rebuilt)
    log.tell(empty=True)
    assert [log.seen[2, llsn] for llsn in (5, 6, 7)] == [7, 8, 9]


def test_positions_that_may_be_of_two_streams_are_a_doubt() -> None:
    log = Log({1: (1, 2), 2: (3, 4), 3: (3, 4)})
    for stream in (1, 2, 3):
        log.write(stream, 2)
    log.decide()
    log.tell(1, 2)
    (doubt,) = log.rebuild().doubts
    assert doubt.text == "positions 3 to 6: in stream 2 or 3, none of whose replicas received it"


def test_metadata_that_is_older_than_the_nodes_is_refused() -> None:
    log = Log({1: (1, 2)})
    log.append(1, 5)
    log.replicas[1, 2].epoch = 2
    (doubt,) = log.rebuild().doubts
    assert "the metadata is older than the nodes" in doubt.text


def test_a_trim_beyond_all_that_is_known_is_refused() -> None:
    log = Log({1: (1, 2)})
    log.append(1, 5)
    (doubt,) = rebuild(LOG, 6, log.evidence()).doubts
    assert doubt.text == "it was trimmed up to position 6, but no node knows of one above 5"


def test_replicas_that_disagree_are_refused() -> None:
    log = Log({1: (1, 2)})
    log.append(1, 5)
    evidence = log.evidence()
    witnesses = dict(evidence[0].witnesses)
    commit = log.commits[1, 1][0]
    witnesses[1] = replace(witnesses[1], commits=(commit,))
    witnesses[2] = replace(witnesses[2], commits=(commit._replace(glsn=2),))
    (doubt,) = rebuild(LOG, 0, [replace(evidence[0], witnesses=witnesses)]).doubts
    assert "the replicas disagree" in doubt.text


def test_a_stream_of_which_nobody_tells_is_a_doubt_unless_it_never_ran() -> None:
    log = Log({1: (1, 2), 2: (3,)})
    log.append(1, 5)
    (doubt,) = log.rebuild(away=[3]).doubts
    assert doubt == (2, "no replica reported anything: node 3 did not answer, or has nothing of it")
    evidence = log.evidence(away=[3])
    evidence[1] = replace(evidence[1], sealed=True)
    assert not rebuild(LOG, 0, evidence).doubts


# ---- sealed streams: epoch 2 in the metadata


def sealed(log: Log, *, told: Iterable[NodeId]) -> None:
    stream = log.rounds.streams[1]
    stream.sealed, stream.epoch = True, 2
    for node in told:
        log.replicas[1, node].seal(2, stream.committed_llsn_end - 1)


def test_one_sealed_replica_knows_the_end_of_its_stream() -> None:
    log = Log({1: (1, 2)})
    log.append(1, 5)
    log.write(1, 2)
    sealed(log, told=[1])
    assert log.replicas[1, 1].state is ReplicaState.SEALED
    rebuilt = log.rebuild(away=[2])
    assert not rebuilt.doubts
    assert rebuilt.high_watermark == 5


def test_a_replica_of_a_sealed_stream_that_was_started_again_says_little_alone() -> None:
    """The replica may just be being filled again."""
    log = Log({1: (1, 2)})
    log.append(1, 5)
    sealed(log, told=[1, 2])
    log.restart(1)
    log.replicas[1, 1].epoch = 2
    (doubt,) = log.rebuild(away=[2]).doubts
    assert "anything after LLSN 5, or above position 5" in doubt.text
    log.restart(2)
    log.replicas[1, 2].epoch = 2
    assert not log.rebuild().doubts


# ---- any history


@pytest.mark.parametrize("block", range(20))
def test_what_is_rebuilt_never_moves_what_somebody_may_know(block: int) -> None:
    certain = sum(_random_history(random.Random(100 * block + number)) for number in range(100))
    assert 20 < certain < 100, "both outcomes must be met, or this tests little"


@pytest.mark.parametrize("block", range(10))
def test_streams_of_any_history_may_be_removed_and_forgotten(block: int) -> None:
    rngs = (random.Random(100 * block + number) for number in range(100))
    certain = sum(_random_history(rng, removing=True) for rng in rngs)
    assert 20 < certain < 100, "both outcomes must be met, or this tests little"


def _random_history(rng: random.Random, *, removing: bool = False) -> bool:
    """Random placement, writes, rounds, lost messages, restarts; then some nodes are away. True if
    it was rebuilt. With `removing`, a stream is removed, trimmed and forgotten on the way."""
    nodes = range(1, 5)
    placement = {s: tuple(rng.sample(nodes, 2)) for s in range(1, rng.randint(2, 4) + removing)}
    log = Log(placement)
    trimmed = 0
    for _ in range(rng.randint(1, 12)):
        _random_step(rng, log)
    if removing:
        log.decide()
        log.tell(empty=True)
        trimmed = log.remove(rng.choice(sorted(log.rounds.streams)))
        for _ in range(rng.randint(1, 4)):
            _random_step(rng, log)
        trimmed = rng.randint(trimmed, max([trimmed, *log.seen.values()]))
    if rng.random() < 0.3:  # the power fails
        for node in nodes:
            log.restart(node, keeping=rng.randint(0, 6))
    away = [node for node in nodes if rng.random() < 0.1]
    rebuilt = log.rebuild_without_removed(trimmed, away) if removing else log.rebuild(away)
    seen = dict(log.seen)
    if rebuilt.doubts:
        assert not rebuilt.rounds
        return False
    log.give_up(away)
    log.restored(rebuilt)
    log.rounds.begin_at(max((place.last for place in log.elsewhere), default=0) + 1)
    log.tell(empty=True)
    log.decide()
    log.tell(empty=True)
    for entry, glsn in seen.items():
        assert log.seen[entry] == glsn, "nothing that was told moves"
    for (stream, _), replica in log.replicas.items():
        assert replica.context.high_watermark == log.rounds.high_watermark
        assert replica.last_committed_llsn == log.rounds.streams[stream].committed_llsn_end - 1
    others = [p for place in log.elsewhere for p in range(place.first, place.last + 1)]
    positions = sorted([*log.seen.values(), *others])
    assert len(positions) == len({*positions}), "each once"
    kept = [position for position in positions if position > trimmed]
    assert kept == list(range(trimmed + 1, log.rounds.high_watermark + 1)), "dense"
    return True


def _random_step(rng: random.Random, log: Log) -> None:
    if rng.random() < 0.1:
        log.skip(rng.randint(1, 5))
    for stream in log.rounds.streams:
        if rng.random() < 0.5:
            log.write(stream, rng.randint(1, 3))
    if rng.random() < 0.8:
        log.decide()
    told = [node for node in range(1, 5) if rng.random() < 0.8]
    if told:
        log.tell(*told, empty=rng.random() < 0.5)
    if rng.random() < 0.1:
        node = rng.randint(1, 4)
        log.restart(node, keeping=rng.randint(0, 12))
        log.rounds.reconnected(node)


def test_one_that_trusts_the_forgetful_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr(Witness, "remembers", lambda witness, epoch: True)
    with pytest.raises(AssertionError):
        any(_random_history(random.Random(seed)) is None for seed in range(2000))


def test_replicas_whose_data_may_be_an_older_copy_prove_nothing() -> None:
    log = Log({1: (1, 2, 3)})
    log.append(1, 5)
    assert not log.rebuild().doubts
    assert not log.rebuild(outdated=[1]).doubts
    (doubt,) = log.rebuild(outdated=[1, 2, 3]).doubts
    assert "node 1, 2, 3 may be an older copy" in doubt.text
    log.write(1, 2)
    assert not log.rebuild().doubts
    (doubt,) = log.rebuild(outdated=[2]).doubts
    assert "node 2 may be an older copy" in doubt.text
