"""Rounds name the streams that get positions; their records suffice to continue."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loomlog.core.ordered.kept_rounds import needed, whole
from loomlog.core.ordered.round_parts import RoundPart
from loomlog.core.ordered.rounds import LogRounds, Round
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.types import Precondition, ReplicaState, Report

NODES = (1, 2)
STREAMS = (1, 2, 3, 4)


def new_log() -> LogRounds:
    log = LogRounds(9)
    for stream_id in STREAMS:
        log.add_stream(stream_id, NODES, 1, sealed=False)
    return log


def restored(records: Iterable[bytes]) -> LogRounds:
    log = new_log()
    for record in records:
        log.restore(Round.decode(record))
    return log


def state(log: LogRounds) -> list[tuple[int, int, int, int]]:
    """Return what a restart must find again."""
    return [
        (log.high_watermark, stream.stream_id, stream.committed_llsn_end, stream.committed_epoch)
        for stream in log.streams.values()
    ]


def whole_round(log: LogRounds) -> Round | None:
    """Decide the plain way: look at every stream."""
    if log.under_way:
        return None
    high, parts, holder = log.high_watermark, [], log._holder()
    for stream in log.streams.values():
        begin = stream.committed_llsn_end
        gets_none = stream.sealed or stream.closed or holder not in (None, stream.stream_id)
        length = 0 if gets_none else stream.next_end(high) - begin
        if length:
            parts.append(RoundPart(stream.stream_id, stream.epoch, begin, high + 1, length))
        high += length
    return Round(log.log_id, log.high_watermark, high, tuple(parts)) if parts else None


class Story:
    """One log, its records as this release and as an older one would write them, and a reader of
    the older kind, which takes the newest record for the whole state."""

    def __init__(self) -> None:
        self.log = new_log()
        self.records: list[bytes] = []
        self.older: list[bytes] = []
        self.epochs = dict.fromkeys(STREAMS, 0)  # of the last entries that each was given

    def report(self, node: int, stream_id: int, count: int, *, conditional: bool) -> None:
        stream = self.log.streams[stream_id]
        begin = stream.committed_llsn_end
        before = stream.reports.get(node)
        end = max(begin, before.written_end if before else begin) + count
        condition = Precondition(begin, begin + 1, self.log.high_watermark + count % 2)
        high = self.log.high_watermark
        report = Report(
            stream_id,
            begin,
            end - begin,
            high,
            stream.epoch,
            ReplicaState.RUNNING,
            high if count else 0,
            False,
            precondition=condition if conditional else None,
        )
        self.log.report(node, report)

    def decide(self) -> None:
        expected = whole_round(self.log)
        round_ = self.log.next_round()
        assert round_ == expected
        if round_ is None:
            return
        self.records.append(round_.encode_partial())
        self.older.append(whole(self.log, round_).encode())
        self.epochs |= {part.stream_id: part.epoch for part in round_.parts}
        self.log.durable()

    def do(self, kind: str, node: int, stream_id: int, count: int) -> None:
        log, stream = self.log, self.log.streams[stream_id]
        match kind:
            case "report" | "conditional":
                self.report(node, stream_id, count, conditional=kind == "conditional")
            case "write":
                for each in NODES:
                    self.report(each, stream_id, count, conditional=False)
            case "round":
                self.decide()
            case "seal":
                stream.sealed, stream.epoch = True, stream.epoch + 1
            case "unseal":
                stream.sealed = False
            case "close":
                stream.closed = not stream.closed
            case "hold" if not stream.sealed and not stream.closed and log._holder() is None:
                log.release(log.hold(stream_id, stream.epoch, log.high_watermark))
                log.hold(stream_id, stream.epoch, log.high_watermark)
            case "lose":
                log.reconnected(node)
            case "replace":
                log.change_replicas(stream_id, stream.replicas[::-1])
            case "put back":
                log.remove_stream(stream_id)
                if count & 1:
                    self.decide()
                if count & 2:
                    self.snapshot()
                log.put_stream(stream)
            case "snapshot":
                log.forget_stored()
                self.snapshot()
            case "restart":
                self.restart()

    def snapshot(self) -> None:
        self.records = [round_.encode() for round_ in needed(self.log)]
        self.older = list(self.records)

    def restart(self) -> None:
        before, self.log = self.log, restored(self.records)
        for stream_id, stream in before.streams.items():
            again = self.log.streams[stream_id]
            again.epoch, again.sealed, again.closed = stream.epoch, stream.sealed, stream.closed

    def check(self) -> None:
        assert state(restored(self.records)) == state(self.log)
        assert self.epochs == {s: each.committed_epoch for s, each in self.log.streams.items()}
        assert [end[:3] for end in state(restored(self.older))] == [e[:3] for e in state(self.log)]
        if self.older:  # an earlier release goes on from the newest record alone
            newest = Round.decode(self.older[-1])
            ends = {part.stream_id: part.llsn + part.length for part in newest.parts}
            assert ends == {s: each.committed_llsn_end for s, each in self.log.streams.items()}
            assert newest.high_watermark == self.log.high_watermark


KINDS = ("report",) * 4 + ("write",) * 4 + ("round",) * 4
RARE = ("conditional", "seal", "unseal", "close", "hold", "lose", "replace", "put back")
ENDS = ("snapshot", "restart")
STEPS = st.lists(
    st.tuples(
        st.sampled_from((*KINDS, *RARE, *ENDS)),
        st.sampled_from(NODES),
        st.sampled_from(STREAMS),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=500)
@given(STEPS)
def test_rounds_are_those_of_the_plain_way_and_their_records_are_enough(
    steps: list[tuple[str, int, int, int]],
) -> None:
    story = Story()
    for step in steps:
        story.do(*step)
        story.check()
    story.decide()
    story.check()


def test_a_round_over_one_of_many_streams_looks_at_that_one_only() -> None:
    log = LogRounds(9)
    for stream_id in range(1, 1001):
        log.add_stream(stream_id, NODES, 1, sealed=False)
    assert log.next_round() is None
    looked_at: list[int] = []

    class Streams(dict[int, object]):
        def get(self, key: int, default: object = None) -> object:
            looked_at.append(key)
            return super().get(key, default)

    log.streams = Streams(log.streams)  # type: ignore[assignment]
    for node in NODES:
        log.report(node, Report(500, 1, 1, 0, 1, ReplicaState.RUNNING, 0, False))
    round_ = log.next_round()
    assert round_ is not None
    assert len(round_.encode_partial()) < 100
    log.durable()
    assert len(list(log.new_commits())) == 1
    assert log.next_round() is None
    assert set(looked_at) == {500}


def test_a_release_that_needs_every_stream_refuses_a_round_without_some() -> None:
    """Earlier releases compare the size with the number of parts, which is at this place."""
    record = Round(9, 0, 2, (RoundPart(1, 1, 1, 1, 2),)).encode_partial()
    parts = int.from_bytes(record[4:8], "little")
    assert len(record) != 24 + parts * 32
    assert Round.decode(record).parts == (RoundPart(1, 1, 1, 1, 2),)


@pytest.mark.parametrize("size", [0, 8, 16, 17, 39, 41, 71])
def test_a_cut_record_is_corrupt(size: int) -> None:
    record = Round(9, 0, 2, (RoundPart(1, 1, 1, 1, 2),)).encode_partial()
    with pytest.raises(Corrupt):
        Round.decode(record[:size])


def test_a_record_of_a_later_format_is_refused() -> None:
    record = bytearray(Round(9, 0, 2, (RoundPart(1, 1, 1, 1, 2),)).encode_partial())
    record[8] = 2
    with pytest.raises(VersionMismatch, match="format 2"):
        Round.decode(bytes(record))
