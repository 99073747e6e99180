"""A sequencer, step by step: waves, acknowledgements, releases, and its end."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TypeVar

import pytest

from loomlog.core.copyset.effects import (
    Acknowledge,
    Contradicted,
    Drained,
    LeaveOpen,
    Reject,
    Rejection,
    Send,
    SequencerEffect,
    StepDown,
)
from loomlog.core.copyset.messages import (
    Amend,
    NodeAnswer,
    NotHere,
    Occupied,
    Preempted,
    Refused,
    Release,
    Store,
    Stored,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Exclusions, Member, Trouble
from loomlog.core.copyset.record import Record, make
from loomlog.core.copyset.sequencer import OFFSET_LAST, EpochSequencer, SequencerSettings

LOG = 1
EPOCH = 5
METADATA = EpochMetadata(1, tuple(Member(node) for node in range(1, 6)), 3)
SETTINGS = SequencerSettings(window_records=4, window_bytes=100, store_timeout_s=1.0)

Wanted = TypeVar("Wanted")


def of_kind(kind: type[Wanted], effects: Iterable[object]) -> list[Wanted]:
    return [effect for effect in effects if isinstance(effect, kind)]


def record_of(send: Send) -> Record:
    assert isinstance(send.request, Store | Amend)
    return send.request.record


def acknowledged(token: str, offset: int, count: int = 1) -> Acknowledge:
    return Acknowledge(token, make(EPOCH, offset), make(EPOCH, offset + count - 1), 7)


class SequencerRig:
    """A sequencer, and what it has sent and not been answered."""

    def __init__(self, *, fenced: bool = True, recovered: bool = True) -> None:
        self.now = 100.0
        self.exclusions = Exclusions()
        everybody = [*METADATA.shards, 9]
        self.sequencer = EpochSequencer(
            LOG, METADATA, EPOCH, everybody, self.exclusions, Random(1), SETTINGS
        )
        self.sent: list[Send] = []
        self.released: list[tuple[int, int]] = []  # (node, LSN)
        if fenced:
            self.heed(self.sequencer.fenced())
        if fenced and recovered:
            self.heed(self.sequencer.recovered_up_to(EPOCH - 1, self.now))
            self.released.clear()

    def heed(self, effects: list[SequencerEffect]) -> list[SequencerEffect]:
        """Return the effects that remain besides sending."""
        for send in of_kind(Send, effects):
            if isinstance(send.request, Release):
                self.released.append((send.shard, send.request.lsn))
            else:
                self.sent.append(send)
        return [effect for effect in effects if not isinstance(effect, Send)]

    def append(self, token: str, count: int = 1, batch: bytes = b"batch") -> list[SequencerEffect]:
        return self.heed(self.sequencer.append(batch, count, token, 7, self.now))

    def answer(self, send: Send, answer: NodeAnswer | None = Stored()) -> list[SequencerEffect]:  # noqa: B008
        self.sent.remove(send)
        return self.late(send, answer)

    def late(self, send: Send, answer: NodeAnswer | None) -> list[SequencerEffect]:
        record = record_of(send)
        return self.heed(
            self.sequencer.answered(send.shard, record.first, record.wave, answer, self.now)
        )

    def store_all(self, offset: int) -> list[SequencerEffect]:
        sends = [send for send in self.sent if record_of(send).offset == offset]
        return [effect for send in sends for effect in self.answer(send)]

    def wait(self, time_s: float) -> list[SequencerEffect]:
        self.now += time_s
        return self.heed(self.sequencer.tick(self.now))

    def newest_wave(self) -> int:
        return max(record_of(send).wave for send in self.sent)

    def of_wave(self, wave: int) -> list[Send]:
        return [send for send in self.sent if record_of(send).wave == wave]


# ---- appends


def test_a_record_goes_to_a_copyset_and_is_acknowledged_once_all_have_it() -> None:
    rig = SequencerRig()
    assert rig.append("a", count=3) == []
    assert len(rig.sent) == 3
    record = record_of(rig.sent[0])
    assert {send.shard for send in rig.sent} == set(record.copyset)
    assert (record.first, record.count, record.wave, record.lng) == (make(EPOCH, 1), 3, 1, 0)
    assert rig.answer(rig.sent[0]) == []
    assert rig.answer(rig.sent[0]) == []
    last = rig.sent[0]
    assert rig.answer(last) == [acknowledged("a", 1, count=3)]
    assert rig.late(last, Stored()) == []
    assert rig.sequencer.next_lsn == make(EPOCH, 4)
    assert rig.sequencer.last_acknowledged == make(EPOCH, 3)


def test_acknowledgements_may_overtake_and_lng_does_not() -> None:
    rig = SequencerRig()
    rig.append("a")
    rig.append("b")
    assert of_kind(Acknowledge, rig.store_all(2)) == [acknowledged("b", 2)]
    assert rig.sequencer.lng == 0
    assert rig.released == []
    rig.append("c")
    assert {record_of(send).lng for send in rig.sent} == {0}
    rig.store_all(1)
    assert rig.sequencer.lng == 2
    rig.append("d")
    assert record_of(rig.sent[-1]).lng == 2


def test_too_many_records_or_bytes_under_way_are_refused() -> None:
    rig = SequencerRig()
    for token in "abcd":
        rig.append(token)
    assert rig.append("e") == [Reject("e", Rejection.BUSY)]
    rig.store_all(2)
    assert rig.append("e") == [Reject("e", Rejection.BUSY)]  # the window begins above LNG
    rig.store_all(1)
    assert rig.append("e") == []
    rig = SequencerRig()
    assert rig.append("large", batch=bytes(200)) == []
    assert rig.append("small") == [Reject("small", Rejection.BUSY)]
    rig.store_all(1)
    assert rig.append("small") == []


def test_without_enough_nodes_nothing_begins() -> None:
    rig = SequencerRig()
    rig.exclusions.down = frozenset({1, 2, 3})
    assert rig.append("a") == [Reject("a", Rejection.UNAVAILABLE)]
    assert rig.sequencer.next_lsn == make(EPOCH, 1)


def test_a_clock_that_was_ahead_does_not_stamp_what_comes_later() -> None:
    rig = SequencerRig()
    rig.sequencer.append(b"", 1, "a", 100, rig.now)
    rig.heed(rig.sequencer.append(b"", 1, "b", 50, rig.now))
    assert record_of(rig.sent[0]).timestamp_us == 50


def test_a_used_up_epoch_needs_another_one() -> None:
    rig = SequencerRig()
    rig.append("a", count=OFFSET_LAST - 1)
    assert rig.append("b", count=2) == [Reject("b", Rejection.OFFSETS_USED_UP)]
    assert rig.append("c") == [Reject("c", Rejection.STEPPED_DOWN)]
    assert rig.store_all(1) == [acknowledged("a", 1, count=OFFSET_LAST - 1), Drained()]


# ---- waves


def test_a_refusal_starts_another_wave_without_that_node() -> None:
    rig = SequencerRig()
    rig.append("a")
    holder, refusing, third = rig.sent
    rig.answer(holder)
    rig.answer(refusing, Refused(Trouble.NO_SPACE))
    wave = rig.of_wave(2)
    assert len(wave) == 3
    assert refusing.shard not in {send.shard for send in wave}
    amends = [send for send in wave if isinstance(send.request, Amend)]
    assert [send.shard for send in amends] == [holder.shard]  # it has the batch
    assert record_of(amends[0]).batch == b""
    rig.late(third, Stored())
    assert [effect for send in wave for effect in rig.answer(send)] == [acknowledged("a", 1)]


def test_answers_of_an_older_wave_do_not_count() -> None:
    rig = SequencerRig()
    rig.append("a")
    first = list(rig.sent)
    rig.answer(first[0])
    rig.wait(1.0)
    assert rig.newest_wave() == 2
    assert rig.late(first[1], Stored()) == []
    assert rig.late(first[2], Stored()) == []
    assert rig.late(first[2], Refused(Trouble.OVERLOADED)) == []
    assert rig.newest_wave() == 2


def test_a_node_that_lost_its_copy_gets_the_batch_again_in_the_same_wave() -> None:
    rig = SequencerRig()
    rig.append("a")
    rig.answer(rig.sent[0])
    rig.answer(rig.sent[0], Refused(Trouble.DISABLED))
    (amend,) = [send for send in rig.of_wave(2) if isinstance(send.request, Amend)]
    assert rig.answer(amend, NotHere()) == []
    assert isinstance(rig.sent[-1].request, Store)
    assert rig.sent[-1].request.record.batch == b"batch"
    effects = [effect for send in rig.of_wave(2) for effect in rig.answer(send)]
    assert effects == [acknowledged("a", 1)]


def test_silent_nodes_are_left_out_of_the_next_waves() -> None:
    rig = SequencerRig()
    rig.append("a")
    silent = rig.sent[2].shard
    rig.answer(rig.sent[0])
    rig.answer(rig.sent[0])
    assert rig.wait(0.9) == []
    assert rig.newest_wave() == 1
    rig.wait(0.1)
    assert silent not in {send.shard for send in rig.of_wave(2)}
    rig.append("b")
    assert silent not in {send.shard for send in rig.sent if record_of(send).offset == 2}


def test_waves_get_more_time_from_one_to_the_next() -> None:
    rig = SequencerRig()
    rig.append("a")
    for wave, time_s in enumerate([1.0, 2.0, 4.0], start=1):
        assert rig.newest_wave() == wave
        rig.wait(time_s - 0.1)
        assert rig.newest_wave() == wave
        rig.wait(0.1)
    assert rig.newest_wave() == 4


def test_after_two_failures_waves_wait() -> None:
    rig = SequencerRig()
    rig.append("a")
    for wave in (1, 2, 3):
        rig.answer(rig.of_wave(wave)[0], Refused(Trouble.OVERLOADED))
    assert rig.newest_wave() == 3
    rig.late(rig.of_wave(3)[0], Refused(Trouble.OVERLOADED))  # it counts once for a wave
    rig.wait(0.009)
    assert rig.newest_wave() == 3
    rig.wait(0.002)
    assert rig.newest_wave() == 4
    rig.answer(rig.of_wave(4)[0], None)
    rig.wait(0.019)
    assert rig.newest_wave() == 4
    rig.wait(0.002)
    assert rig.newest_wave() == 5


def test_a_wave_waits_for_nodes_and_goes_on_when_they_are_back() -> None:
    rig = SequencerRig()
    rig.append("a")
    rig.exclusions.down = frozenset({1, 2, 3})
    rig.answer(rig.sent[0], None)
    for _ in range(20):
        due = rig.sequencer.next_due
        assert due is not None
        rig.wait(due - rig.now)
    assert rig.newest_wave() == 1
    due = rig.sequencer.next_due
    assert due == rig.now + SETTINGS.wait_s_max
    rig.exclusions.down = frozenset()
    rig.heed(rig.sequencer.retry(rig.now))
    assert rig.newest_wave() == 2
    rig.heed(rig.sequencer.retry(rig.now))
    assert rig.newest_wave() == 2


def test_what_is_stored_in_time_needs_no_tick_of_its_own() -> None:
    rig = SequencerRig()
    for token in "abc":
        rig.append(token)
        rig.now += 0.125
    rig.store_all(1)
    rig.store_all(2)
    rig.wait(0.7)
    assert rig.sequencer.next_due == 101.25
    rig.wait(0.2)
    assert rig.newest_wave() == 2


# ---- releases


def test_a_release_goes_to_those_who_have_the_record_and_later_to_all() -> None:
    rig = SequencerRig()
    rig.append("a")
    copyset = {send.shard for send in rig.sent}
    rig.store_all(1)
    assert {node for node, _ in rig.released} == copyset
    rig.wait(19.9)
    assert len(rig.released) == 3
    rig.wait(0.1)
    assert sorted(node for node, _ in rig.released) == [1, 2, 3, 4, 5, 9]
    assert {lsn for _, lsn in rig.released} == {make(EPOCH, 1)}
    rig.wait(100.0)
    assert len(rig.released) == 6
    assert rig.sequencer.next_due is None


def test_nothing_is_released_before_the_epochs_below_are_recovered() -> None:
    rig = SequencerRig(recovered=False)
    rig.append("a")
    assert rig.store_all(1) == [acknowledged("a", 1)]
    rig.wait(100.0)
    rig.heed(rig.sequencer.recovered_up_to(EPOCH - 2, rig.now))
    assert rig.released == []
    assert rig.sequencer.released == 0
    rig.heed(rig.sequencer.recovered_up_to(EPOCH - 1, rig.now))
    assert rig.released == [(node, make(EPOCH, 1)) for node in (1, 2, 3, 4, 5, 9)]


def test_an_epoch_without_records_releases_those_before_it() -> None:
    rig = SequencerRig(recovered=False)
    rig.heed(rig.sequencer.recovered_up_to(EPOCH - 1, rig.now))
    assert {lsn for _, lsn in rig.released} == {make(EPOCH, 0)}


def test_a_node_that_returns_is_told_again() -> None:
    rig = SequencerRig()
    rig.heed(rig.sequencer.returned(3))
    rig.heed(rig.sequencer.returned(77))
    assert rig.released == [(3, make(EPOCH, 0))]


# ---- older sequencers


def test_nothing_is_acknowledged_before_older_sequencers_are_fenced() -> None:
    rig = SequencerRig(fenced=False)
    for token in "abcd":
        rig.append(token)
    assert rig.store_all(2) == rig.store_all(1) == []
    assert rig.sequencer.lng == 2
    assert rig.sequencer.last_acknowledged == make(EPOCH, 0)
    assert rig.append("e") == [Reject("e", Rejection.BUSY)]  # what is held counts, too
    assert rig.heed(rig.sequencer.fenced()) == [acknowledged("b", 2), acknowledged("a", 1)]
    assert rig.sequencer.last_acknowledged == make(EPOCH, 2)
    assert rig.heed(rig.sequencer.fenced()) == []
    assert rig.store_all(3) == [acknowledged("c", 3)]


def test_recovered_epochs_have_no_sequencers() -> None:
    rig = SequencerRig(fenced=False)
    rig.append("a")
    rig.store_all(1)
    effects = rig.heed(rig.sequencer.recovered_up_to(EPOCH - 1, rig.now))
    assert effects == [acknowledged("a", 1)]


def test_what_is_held_stays_open_when_a_later_sequencer_is_there() -> None:
    rig = SequencerRig(fenced=False)
    rig.append("a")
    rig.store_all(1)
    assert rig.sequencer.preempted(EPOCH) == [LeaveOpen("a", make(EPOCH, 1)), StepDown(EPOCH)]
    assert rig.sequencer.fenced() == []


def test_draining_waits_for_the_fence() -> None:
    rig = SequencerRig(fenced=False)
    rig.append("a")
    rig.store_all(1)
    assert rig.heed(rig.sequencer.drain(rig.now)) == []
    assert rig.heed(rig.sequencer.fenced()) == [acknowledged("a", 1), Drained()]


# ---- ends


@pytest.mark.parametrize("seal", [EPOCH, EPOCH + 3])
def test_whoever_is_preempted_acknowledges_nothing_any_more(seal: int) -> None:
    rig = SequencerRig()
    rig.append("a")
    rig.append("b")
    rig.store_all(2)
    last = rig.sent[2]
    rig.answer(rig.sent[0])
    assert rig.answer(rig.sent[0], Preempted(seal)) == [
        LeaveOpen("a", make(EPOCH, 1)),
        StepDown(seal),
    ]
    assert rig.late(last, Stored()) == []
    assert rig.append("c") == [Reject("c", Rejection.STEPPED_DOWN)]
    assert rig.wait(1000.0) == []
    assert rig.sequencer.preempted(seal) == []
    assert rig.sequencer.next_due is None


def test_seals_of_older_epochs_do_not_matter() -> None:
    rig = SequencerRig()
    rig.append("a")
    assert rig.sequencer.preempted(EPOCH - 1) == []
    assert rig.store_all(1) == [acknowledged("a", 1)]


def test_a_draining_sequencer_finishes_what_is_under_way() -> None:
    rig = SequencerRig()
    rig.append("a")
    assert rig.heed(rig.sequencer.drain(rig.now)) == []
    assert rig.append("b") == [Reject("b", Rejection.STEPPED_DOWN)]
    rig.answer(rig.sent[0], Refused(Trouble.NO_SPACE))
    requests = [send.request for send in rig.of_wave(2)]
    assert all(isinstance(request, Store) and request.draining for request in requests)
    assert [effect for send in rig.of_wave(2) for effect in rig.answer(send)] == [
        acknowledged("a", 1),
        Drained(),
    ]


def test_draining_does_not_take_long() -> None:
    rig = SequencerRig()
    assert rig.sequencer.drain(rig.now) == [Drained()]
    rig = SequencerRig()
    rig.append("a")
    rig.heed(rig.sequencer.drain(rig.now))
    assert rig.wait(1.9) == []
    assert rig.wait(0.1) == [LeaveOpen("a", make(EPOCH, 1)), Drained()]


# ---- an epoch that was taken twice


def test_an_occupied_position_ends_the_sequencer() -> None:
    rig = SequencerRig()
    rig.append("a")
    rig.append("b")
    first, *_ = rig.sent
    ends = rig.answer(first, Occupied(make(EPOCH, 1)))
    assert of_kind(LeaveOpen, ends) == [
        LeaveOpen("a", make(EPOCH, 1)),
        LeaveOpen("b", make(EPOCH, 2)),
    ]
    assert ends[-1] == Contradicted(first.shard, make(EPOCH, 1))
    assert rig.store_all(2) == []


def test_copies_of_its_epoch_that_it_did_not_store_end_the_sequencer() -> None:
    rig = SequencerRig(fenced=False)
    rig.append("a", count=2)
    assert rig.heed(rig.sequencer.found(3, make(EPOCH, 2))) == []  # its own
    rig.store_all(1)
    ends = rig.heed(rig.sequencer.found(3, make(EPOCH, 3)))
    assert ends == [LeaveOpen("a", make(EPOCH, 1)), Contradicted(3, make(EPOCH, 3))]
    assert rig.sequencer.fenced() == []


def test_copies_of_a_later_epoch_are_its_successors() -> None:
    rig = SequencerRig(fenced=False)
    assert rig.sequencer.found(3, make(EPOCH + 2, 1)) == [StepDown(EPOCH + 1)]


# ---- conditional records


def expecting(rig: SequencerRig, expected: int) -> list[SequencerEffect]:
    return rig.heed(rig.sequencer.append(b"batch", 1, "token", 7, rig.now, expected))


CONFLICT = [Reject("token", Rejection.CONFLICT)]


def test_a_record_is_taken_behind_the_last_one_of_earlier_epochs() -> None:
    rig = SequencerRig(recovered=False)
    tail = make(EPOCH - 2, 7)
    assert expecting(rig, tail) == [Reject("token", Rejection.BUSY)]  # how earlier ones ended?
    rig.heed(rig.sequencer.recovered_up_to(EPOCH - 1, rig.now, tail))
    assert expecting(rig, tail - 1) == CONFLICT
    assert expecting(rig, make(EPOCH, 1)) == [Reject("token", Rejection.BEYOND)]
    assert expecting(rig, tail + 1) == []  # nothing stands there: a hole, or a bridge
    assert rig.sequencer.next_lsn == make(EPOCH, 2)


def test_a_record_that_is_under_way_is_in_the_way() -> None:
    rig = SequencerRig()
    rig.append("a", count=2)
    assert expecting(rig, make(EPOCH, 1)) == CONFLICT
    assert expecting(rig, 0) == CONFLICT
    assert expecting(rig, make(EPOCH, 2)) == []
