"""Commit rounds: which stream gets which GLSNs, and which nodes are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomlog.core.ordered.kept_rounds import needed, recall
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.core.ordered.round_parts import RoundPart
from loomlog.core.ordered.rounds import LogRounds, Round
from loomlog.errors import Busy, Conflict, Corrupt, NotYetWritten, Sealed
from loomlog.types import CommitContext, Precondition, ReplicaState, Report

NODES = (1, 2, 3)


def rounds_with(streams: int = 1) -> LogRounds:
    rounds = LogRounds(9)
    for stream_id in range(streams, 0, -1):
        rounds.add_stream(stream_id, NODES, 1, sealed=False)
    return rounds


def report(
    stream: int, end: int, *, offset: int = 1, high: int = 0, epoch: int = 1, stored: int = 0
) -> Report:
    running = ReplicaState.RUNNING
    return Report(stream, offset, end - offset, high, epoch, running, stored, False)


def run(rounds: LogRounds) -> Round:
    round_ = rounds.next_round()
    assert round_ is not None
    rounds.durable()
    return round_


def test_only_what_all_replicas_have_written_is_committed() -> None:
    rounds = rounds_with()
    rounds.report(1, report(1, 6))
    rounds.report(2, report(1, 4))
    assert rounds.next_round() is None
    rounds.report(3, report(1, 5))
    assert run(rounds).parts == (RoundPart(1, 1, 1, 1, 3),)
    assert rounds.high_watermark == 3


def test_streams_get_glsns_in_id_order_and_dense() -> None:
    rounds = rounds_with(3)
    for node in NODES:
        for stream, end in ((1, 3), (2, 1), (3, 6)):
            rounds.report(node, report(stream, end))
    round_ = run(rounds)
    assert [(p.stream_id, p.glsn, p.length) for p in round_.parts] == [(1, 1, 2), (3, 3, 5)]
    assert round_.high_watermark == 7


def test_one_round_at_a_time_and_the_next_takes_what_came_meanwhile() -> None:
    rounds = rounds_with()
    for node in NODES:
        rounds.report(node, report(1, 3))
    assert rounds.next_round() is not None
    for node in NODES:
        rounds.report(node, report(1, 9))
    assert rounds.next_round() is None
    rounds.durable()
    assert run(rounds).parts == (RoundPart(1, 1, 3, 3, 6),)


def test_reports_of_another_epoch_commit_nothing() -> None:
    rounds = rounds_with()
    for node in NODES:
        rounds.report(node, report(1, 3, epoch=0 if node == 2 else 1))
    assert rounds.next_round() is None


def test_a_sealed_stream_gets_nothing_but_learns_the_watermark() -> None:
    rounds = rounds_with(2)
    rounds.streams[1].sealed = True
    for node in NODES:
        rounds.report(node, report(1, 3))
        rounds.report(node, report(2, 3))
    run(rounds)
    told = dict(rounds.commits_for(1, empty=True))
    assert told[1].length == 0
    assert told[1].high_watermark == 2
    assert told[2].length == 2


def test_empty_rounds_are_folded_into_the_next_message() -> None:
    rounds = rounds_with(2)
    for end in (3, 5):
        for node in NODES:
            rounds.report(node, report(1, 1))
            rounds.report(node, report(2, end))
        run(rounds)
    for node in NODES:
        rounds.report(node, report(1, 2))
    run(rounds)
    commits = rounds.commits_for(1, empty=False)
    ones = [commit for stream, commit in commits if stream == 1]
    assert [(c.prev_high_watermark, c.high_watermark, c.glsn) for c in ones] == [(0, 5, 5)]
    twos = [commit for stream, commit in commits if stream == 2]
    assert [(c.prev_high_watermark, c.high_watermark) for c in twos] == [(0, 2), (2, 4)]
    assert rounds.commits_for(1, empty=False) == []


def test_streams_are_in_the_order_of_their_ids_however_they_are_added() -> None:
    rounds = LogRounds(log_id=7)
    for stream_id in (5, 9, 3, 7, 5):
        rounds.add_stream(stream_id, NODES, 1, sealed=False)
    for node in NODES:
        for stream_id in (3, 5, 7, 9):
            rounds.report(node, report(stream_id, 2))
    assert [part.stream_id for part in run(rounds).parts] == [3, 5, 7, 9]
    rounds.streams.pop(9)
    commits = dict(rounds.commits_for(1, empty=False))
    assert {stream_id: commit.glsn for stream_id, commit in commits.items()} == {3: 1, 5: 2, 7: 3}


def test_a_silent_node_is_told_everything_when_it_is_back() -> None:
    rounds = rounds_with()
    for end in (3, 5, 8):
        for node in NODES:
            rounds.report(node, report(1, end))
        run(rounds)
        rounds.commits_for(1, empty=False)
    rounds.reconnected(1)
    rounds.report(1, report(1, 8, offset=3, high=2))
    commits = [commit for _, commit in rounds.commits_for(1, empty=False)]
    assert [(c.llsn, c.length, c.prev_high_watermark) for c in commits] == [(3, 2, 2), (5, 3, 4)]


def test_rounds_are_kept_until_every_replica_has_stored_them() -> None:
    rounds = rounds_with()
    for node in NODES:
        rounds.report(node, report(1, 3))
    run(rounds)
    for node in NODES:
        rounds.report(node, report(1, 5, offset=3, high=2, stored=2 if node != 3 else 0))
    run(rounds)
    rounds.forget_stored()
    assert [r.high_watermark for r in needed(rounds)] == [2, 4]
    rounds.report(3, report(1, 5, offset=5, high=4, stored=4))
    rounds.forget_stored()
    assert [r.high_watermark for r in needed(rounds)] == [4]


def test_a_restart_goes_on_from_the_rounds_it_needs() -> None:
    rounds = rounds_with(2)
    for node in NODES:
        rounds.report(node, report(1, 3))
        rounds.report(node, report(2, 2))
    run(rounds)
    again = rounds_with(2)
    for round_ in needed(rounds):
        again.restore(Round.decode(round_.encode()))
    assert again.high_watermark == 3
    assert [s.committed_llsn_end for s in again.streams.values()] == [3, 2]
    for node in NODES:
        again.report(node, report(1, 4))
        again.report(node, report(2, 2))
    assert run(again).parts[0] == RoundPart(1, 1, 3, 4, 1)


def test_if_rounds_may_be_lost_a_stream_is_believed_once_a_replica_has_reported() -> None:
    """The stream's last round may be damaged, which looks like one that was never durable."""
    rounds = rounds_with(3)
    rounds.doubt()
    rounds.streams[2].closed = True  # the metadata records where its segment ends
    assert [stream.stream_id for stream in rounds.unheard] == [1, 3]
    rounds.report(2, report(1, 6))
    rounds.report(4, report(3, 6))  # no replica
    assert [stream.stream_id for stream in rounds.unheard] == [3]
    rounds.add_stream(4, NODES, 1, sealed=True)
    assert [stream.stream_id for stream in rounds.unheard] == [3], "a new one has no entries"


def test_a_recorded_seal_shows_whether_rounds_are_lost() -> None:
    rounds = rounds_with(3)
    rounds.begin_at(8)
    for stream, sealed_at in zip(rounds.streams.values(), (0, 7, 8), strict=True):
        stream.sealed_at = sealed_at
    rounds.doubt()
    assert [stream.heard for stream in rounds.streams.values()] == [False, True, False]


@pytest.mark.parametrize("size", [0, 10, 23, 25, 60])
def test_a_damaged_round_record_is_corrupt(size: int) -> None:
    record = Round(9, 0, 2, (RoundPart(1, 1, 1, 1, 2), RoundPart(2, 1, 1, 3, 0))).encode()
    with pytest.raises(Corrupt):
        Round.decode(record[:size])


@given(st.lists(st.tuples(st.sampled_from("wrcdnx"), st.integers(0, 5)), max_size=120))
def test_replicas_agree_whatever_order_things_happen_in(steps: list[tuple[str, int]]) -> None:
    """Writes, reports, rounds, lost connections in any order: no replica ever differs."""
    rounds = rounds_with(2)
    replicas = {}
    for node in NODES:
        for stream in (1, 2):
            replica = Replica(stream, node, 0, ReplicaContext())
            replica.seal(1, 0)
            replica.unseal(1, NODES)
            replicas[node, stream] = replica
    placed: dict[int, tuple[int, int]] = {}

    def apply(node: int, stream_id: int, commit: CommitContext) -> None:
        assert replicas[node, stream_id].commit(commit) is CommitOutcome.APPLIED
        for i in range(commit.length):
            place = (stream_id, commit.llsn + i)
            assert placed.setdefault(commit.glsn + i, place) == place

    for kind, number in steps:
        node, stream = NODES[number % 3], 1 + number % 2
        replica = replicas[node, stream]
        if kind == "w":
            replica.next_llsn += number
            replica.written(replica.next_llsn - 1)
        elif kind == "r":
            rounds.report(node, replica.report())
        elif kind == "c" and rounds.next_round() is not None:
            rounds.durable()
        elif kind == "d":
            for stream_id, commit in rounds.commits_for(node, empty=bool(number % 2)):
                apply(node, stream_id, commit)
        elif kind == "n":
            for stream_id, commit, nodes in rounds.new_commits():
                for each in nodes:
                    apply(each, stream_id, commit)
        elif kind == "x":
            rounds.reconnected(node)
    assert sorted(placed) == list(range(1, len(placed) + 1)) or len(placed) < rounds.high_watermark


@pytest.mark.parametrize("at_once", [1, 2])
def test_new_commits_go_to_the_nodes_that_lack_them(at_once: int) -> None:
    rounds, sent = rounds_with(2), []
    for end in range(1, 5):
        for node in NODES:
            rounds.report(node, report(1, end + 1))
        run(rounds)
        if end % at_once == 0:
            sent += [(c.prev_high_watermark, c.llsn, nodes) for _, c, nodes in rounds.new_commits()]
    assert sent == [(llsn - 1, llsn, [*NODES]) for llsn in range(1, 5)]
    rounds.reconnected(3)
    rounds.report(3, report(1, 6, offset=3, high=2))  # it lost two of them
    for node in (1, 2):
        rounds.report(node, report(1, 6, offset=5, high=4))
    run(rounds)
    lacking = [(c.llsn, nodes) for _, c, nodes in rounds.new_commits()]
    assert lacking == [(5, [1, 2]), (3, [3]), (4, [3]), (5, [3])]
    assert not list(rounds.new_commits())


def forgetful(streams: int) -> tuple[LogRounds, list[Round]]:
    """Four rounds of one entry for each stream on node 1, of which the last is kept."""
    log, all_rounds = LogRounds(9), []
    for stream_id in range(1, streams + 1):
        log.add_stream(stream_id, (1,), 1, sealed=False)
    for llsn in range(1, 5):
        high = log.high_watermark
        for stream_id in log.streams:
            log.report(1, report(stream_id, llsn + 1, offset=llsn, high=high, stored=high))
        all_rounds.append(run(log))
        log.forget_stored()
    return log, all_rounds


def test_a_replica_that_lost_commits_which_are_not_kept_any_more() -> None:
    log, _ = forgetful(1)
    stream = log.streams[1]
    for offset, lost in ((2, True), (3, True), (4, False), (5, False)):
        log.report(1, report(1, 5, offset=offset, high=offset - 1))
        assert log.lost_commits(stream, 1) is lost
    log.report(1, report(1, 2, offset=2, high=1))  # its entries are missing, too: it is filled
    assert not log.lost_commits(stream, 1)
    assert not log.lost_commits(stream, 2)


@pytest.mark.parametrize("known", [0, 1, 2, 4])
def test_forgotten_rounds_that_are_still_known_are_sent_again(known: int) -> None:
    """The positions of one stream cannot be told from those of the other without these rounds."""
    log, all_rounds = forgetful(2)
    stream = log.streams[2]
    log.report(1, report(2, 5, offset=2, high=2))
    assert log.commits_for(1, empty=True)
    recall(log, stream, 1, all_rounds[:known])
    assert log.lost_commits(stream, 1) is (known < 4)
    if known == 4:
        sent = [commit for stream_id, commit in log.commits_for(1, empty=True) if stream_id == 2]
        assert [(c.prev_high_watermark, c.llsn, c.glsn) for c in sent] == [
            (2, 2, 4),
            (4, 3, 6),
            (6, 4, 8),
        ]
        log.report(1, report(2, 5, offset=5, high=8, stored=8))
        log.forget_stored()
        assert needed(log) == all_rounds[-1:]


@pytest.mark.parametrize(("end", "lengths"), [(5, [2, 1]), (4, [2]), (3, [1])])
def test_positions_that_only_one_stream_can_have_had_follow_from_their_number(
    end: int, lengths: list[int]
) -> None:
    """This holds for the entries that exist."""
    log, _ = forgetful(1)
    stream = log.streams[1]
    log.report(1, report(1, end, offset=2, high=1))
    recall(log, stream, 1, [])
    sent = [commit for _, commit in log.commits_for(1, empty=False)]
    assert [(c.glsn, c.length) for c in sent if c.llsn < end] == [
        (2 + sum(lengths[:i]), length) for i, length in enumerate(lengths)
    ]


def test_an_older_copy_of_a_replica_refuses_commits_that_were_inferred() -> None:
    """An older copy may hold a batch that was never acknowledged, in a place that got another one
    later."""
    log = LogRounds(9)
    stream = log.add_stream(1, (1,), 1, sealed=False)
    for llsn, epoch in ((1, 1), (2, 2), (3, 2)):
        stream.epoch = epoch
        high = log.high_watermark
        log.report(1, report(1, llsn + 1, offset=llsn, high=high, stored=high, epoch=epoch))
        run(log)
        log.forget_stored()
    older = Replica(1, 1, 1, ReplicaContext(1, 2, 4))
    log.report(1, older.report())
    recall(log, stream, 1, [])
    sent = [commit for _, commit in log.commits_for(1, empty=True)]
    assert sent
    assert [older.commit(commit) for commit in sent] == [CommitOutcome.MISSED] * len(sent)
    assert older.last_committed_llsn == 1


# ---- conditional batches


def conditional(end: int, llsn: int, length: int, expected: int, *, stream: int = 1) -> Report:
    precondition = Precondition(llsn, llsn + length, expected)
    return report(stream, end)._replace(precondition=precondition)


def report_all(rounds: LogRounds, primary: Report) -> None:
    rounds.report(1, primary)
    for node in NODES[1:]:
        rounds.report(node, primary._replace(precondition=None))


def test_a_conditional_batch_gets_the_positions_behind_its_expected_tail() -> None:
    rounds = rounds_with()
    report_all(rounds, conditional(6, 3, 2, expected=2))  # [1, 2], [3, 4] expects 2, [5]
    assert run(rounds).parts == (RoundPart(1, 1, 1, 1, 5),)


@pytest.mark.parametrize("expected", [1, 3])
def test_a_conditional_batch_and_all_behind_it_get_no_other_positions(expected: int) -> None:
    rounds = rounds_with()
    report_all(rounds, conditional(6, 3, 2, expected))
    assert run(rounds).parts == (RoundPart(1, 1, 1, 1, 2),)
    assert rounds.next_round() is None


def test_a_conditional_batch_is_committed_as_a_whole() -> None:
    rounds = rounds_with()
    report_all(rounds, conditional(2, 1, 2, expected=0))
    assert rounds.next_round() is None
    report_all(rounds, conditional(3, 1, 2, expected=0))
    assert run(rounds).high_watermark == 2


def test_entries_of_another_stream_that_come_first_break_the_condition() -> None:
    rounds = rounds_with(2)
    report_all(rounds, report(1, 2))
    report_all(rounds, conditional(2, 1, 1, expected=0, stream=2))
    assert run(rounds).parts == (RoundPart(1, 1, 1, 1, 1),)


def test_while_a_stream_holds_the_log_no_other_gets_positions() -> None:
    rounds = rounds_with(2)
    hold = rounds.hold(2, 1, 0)
    report_all(rounds, report(1, 2))
    assert rounds.next_round() is None
    with pytest.raises(Busy):
        rounds.hold(1, 1, 0)
    report_all(rounds, conditional(2, 1, 1, expected=0, stream=2))
    assert run(rounds).parts == (RoundPart(2, 1, 1, 1, 1),)
    assert run(rounds).parts == (RoundPart(1, 1, 1, 2, 1),)  # the tail is another one now
    rounds.release(hold)


def test_a_hold_ends_when_it_is_released_or_its_stream_is_sealed() -> None:
    rounds = rounds_with(2)
    report_all(rounds, report(1, 2))
    rounds.release(rounds.hold(2, 1, 0))
    assert run(rounds).high_watermark == 1
    rounds.hold(2, 1, 1)
    rounds.streams[2].sealed = True
    report_all(rounds, report(1, 3))
    assert run(rounds).high_watermark == 2


def test_a_log_is_held_only_at_its_tail_by_a_stream_that_runs() -> None:
    rounds = rounds_with(2)
    with pytest.raises(NotYetWritten):
        rounds.hold(1, 1, 1)
    with pytest.raises(Sealed):
        rounds.hold(1, 2, 0)
    report_all(rounds, report(1, 2))
    assert rounds.next_round() is not None
    with pytest.raises(Busy):  # the round may still get lost with this leader
        rounds.hold(2, 1, 0)
    rounds.durable()
    with pytest.raises(Conflict):
        rounds.hold(2, 1, 0)


def test_nothing_is_committed_while_the_primary_does_not_run() -> None:
    """The primary may have been restarted, and have forgotten a condition."""
    rounds = rounds_with()
    report_all(rounds, report(1, 3))
    rounds.report(1, report(1, 3)._replace(state=ReplicaState.SEALING))
    assert rounds.next_round() is None
    rounds.report(1, report(1, 3))
    rounds.report(2, report(1, 3)._replace(state=ReplicaState.SEALING))
    assert run(rounds).high_watermark == 2
