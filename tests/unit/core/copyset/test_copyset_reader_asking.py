"""The questions of a reader: order, room, single copy delivery, nodes that fail, epochs."""

from __future__ import annotations

from copyset_reader_rig import START, ReaderRig, bridge, data, end, lsns, metadata, state

from loomlog.core.copyset.effects import Deliver, GapKind
from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.reader_sources import ReadSettings
from loomlog.core.copyset.record import Lsn, last_of, make

THREE = state(metadata(1, 2, 3))


def at(offset: int) -> int:
    return make(1, offset)


# ---- order


def test_nobody_is_asked_before_the_nodes_of_the_epoch_are_known() -> None:
    rig = ReaderRig()
    assert (rig.wanted, rig.questions) == ([1], [])
    rig.tell(THREE)
    assert set(rig.asks) == {1, 2, 3}
    assert all(ask.request.first == START for ask in rig.questions)


def test_records_of_several_nodes_are_delivered_in_order() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, data(at(3), 2), up_to=4)
    assert rig.delivered == []
    rig.answer(2, data(at(1), 2), up_to=4)
    assert rig.delivered == [lsns(1, 2), lsns(3, 4)]


def test_a_record_that_two_nodes_send_is_delivered_once() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, data(at(1)), up_to=1)
    rig.answer(2, data(at(1)), data(at(2)), up_to=2)
    assert rig.delivered == [lsns(1, 1), lsns(2, 2)]


def test_a_start_inside_a_record_delivers_the_rest_of_it() -> None:
    rig = ReaderRig(THREE, first=at(3))
    rig.answer(1, data(at(1), 5), up_to=5)
    [seen] = rig.seen
    assert isinstance(seen, Deliver)
    assert (seen.first, seen.last, seen.skip) == (at(3), at(5), 2)


def test_an_end_inside_a_record_delivers_the_beginning_of_it() -> None:
    rig = ReaderRig(THREE, until=at(2))
    rig.answer(1, data(at(1), 5), up_to=5)
    assert rig.delivered == [lsns(1, 2)]
    assert rig.finished


def test_a_reader_without_batches_asks_for_none() -> None:
    rig = ReaderRig(THREE, batches=False)
    assert not any(ask.request.batches for ask in rig.questions)


# ---- room


def test_nobody_is_asked_for_more_than_the_consumer_has_room_for() -> None:
    rig = ReaderRig(THREE, settings=ReadSettings(room_bytes=3000))
    assert rig.request(1).bytes_max == 1000
    rig.answer(1, data(at(1), size=900), up_to=1)
    assert 1 not in rig.asks
    rig.consume(1)
    assert rig.request(1).first == at(2)


def test_who_has_what_is_next_is_asked_however_far_the_others_are_ahead() -> None:
    rig = ReaderRig(THREE, settings=ReadSettings(room_bytes=3000))
    rig.answer(1, data(at(2), size=900), up_to=2)
    rig.answer(2, data(at(3), size=900), up_to=3)
    rig.answer(3, data(at(1)), up_to=1)
    assert rig.delivered == [lsns(1, 1), lsns(2, 2), lsns(3, 3)]
    assert set(rig.asks) == {3}


def test_a_node_that_was_not_asked_for_want_of_room_is_not_thought_late() -> None:
    rig = ReaderRig(THREE, settings=ReadSettings(room_bytes=3000))
    rig.answer(1, data(at(1), size=900), up_to=1)
    rig.answer(2, up_to=2)
    rig.answer(3, up_to=2)
    rig.pass_time(5)
    assert {ask.request.known_down for ask in rig.questions} == {frozenset()}
    rig.consume(1)
    rig.answer(1, data(at(2)), up_to=2)
    assert rig.delivered == [lsns(1, 1), lsns(2, 2)]


def test_nodes_that_have_no_news_are_not_asked_in_a_hurry() -> None:
    rig = ReaderRig(THREE)
    for _ in range(100):
        for node in list(rig.asks):
            rig.answer(node, up_to=at(0))
        rig.pass_time(0.01)
    assert len(rig.questions) <= 3 * 1.0 / rig.settings.retry_s + 3


def test_a_node_that_tells_late_what_another_one_sent_is_asked_for_the_next_at_once() -> None:
    """The late node may be the one that has to send the next record."""
    rig = ReaderRig(THREE)
    rig.answer(1, data(at(1)), up_to=1)
    rig.answer(2, up_to=1)
    assert rig.delivered == [lsns(1, 1)]
    assert rig.request(2).first == at(2)


# ---- single copy delivery


def test_a_node_that_fails_is_known_as_down_and_the_others_send_its_records() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, data(at(3)), up_to=3)
    rig.fail(2)
    assert 2 not in rig.asks  # not at once
    assert rig.request(1).known_down == {2}
    assert rig.request(1).first == START  # again: it left out what node 2 should have sent
    assert rig.request(3).known_down == {2}
    rig.answer(1, data(at(1)), data(at(2)), data(at(3)), up_to=3)
    assert rig.delivered == [lsns(1, 1), lsns(2, 2), lsns(3, 3)]


def test_an_answer_to_an_older_question_is_dropped() -> None:
    rig = ReaderRig(THREE)
    older = rig.asks[1]
    rig.fail(2)
    rig.answer(1, data(at(1)), up_to=1, ask=older)
    assert rig.delivered == []


def test_a_node_that_failed_is_asked_again_later_and_later() -> None:
    rig = ReaderRig(THREE)
    times = []
    for _ in range(6):
        rig.fail(2)
        failed = rig.now
        while 2 not in rig.asks:
            rig.pass_time(0.001)
        times.append(rig.now - failed)
    assert times == sorted(times)
    assert times[0] < 0.1 < times[-1]


def test_a_node_that_answers_again_is_taken_off_the_list_without_a_rewind() -> None:
    rig = ReaderRig(THREE)
    rig.fail(2)
    rig.pass_time(rig.settings.listed_s)
    rig.answer(2, up_to=1)
    rig.answer(1, data(at(1)), up_to=1)
    assert rig.request(1).known_down == frozenset()
    assert rig.request(1).first == at(2)


def test_a_node_that_fails_often_stays_on_the_list_longer() -> None:
    rig = ReaderRig(THREE)
    for times in range(3):
        rig.fail(2)
        rig.pass_time(rig.settings.listed_s * 2**times)
        rig.answer(2, up_to=at(0))
        rig.pass_time(rig.settings.retry_s)
        assert rig.request(2).known_down == frozenset()
    rig.fail(2)
    rig.pass_time(rig.settings.listed_s * 4)
    rig.answer(2, up_to=at(0))
    rig.pass_time(rig.settings.retry_s)
    assert rig.request(2).known_down == {2}


def test_a_node_that_is_late_is_known_as_down_after_a_grace() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, up_to=3)
    rig.answer(2, up_to=3)
    rig.pass_time(0.05)
    assert rig.request(1).known_down == frozenset()
    rig.pass_grace()
    assert rig.request(1).known_down == {3}
    assert rig.request(1).first == START


def test_nobody_is_late_while_nobody_has_more() -> None:
    rig = ReaderRig(THREE)
    for node in (1, 2):
        rig.answer(node, up_to=at(0))
    rig.pass_time(60)
    assert all(ask.request.known_down == frozenset() for ask in rig.questions)


def test_a_damaged_copy_is_sent_by_another_node() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, data(at(2)), up_to=2, damaged=(lsns(1, 1),))
    assert rig.request(2).known_down == {1}
    rig.answer(2, data(at(1)), data(at(2)), up_to=2)
    assert rig.delivered == [lsns(1, 1), lsns(2, 2)]


def test_what_is_here_already_is_delivered_before_a_rewind() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, data(at(1)), up_to=3, damaged=(lsns(3, 3),))
    assert rig.delivered == [lsns(1, 1)]
    assert rig.request(2).first == at(2)


def test_a_node_that_may_miss_records_is_known_as_down() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, up_to=3, lost_through=1)
    assert rig.request(2).known_down == {1}
    rig.do(rig.reader.learn_authorities({2: Authority.UNAVAILABLE}, rig.now))
    assert rig.request(3).known_down == {1, 2}


def test_with_everybody_known_as_down_everybody_sends_everything() -> None:
    rig = ReaderRig(THREE)
    for node in (1, 2, 3):
        rig.fail(node)
    rig.pass_time(0.2)
    assert all(rig.request(node).everything for node in (1, 2, 3))


def test_when_nobody_sends_what_is_next_everybody_sends_everything() -> None:
    rig = ReaderRig(THREE, settings=ReadSettings(all_send_all=2))
    rig.answer(1, data(at(2)), up_to=2)
    rig.answer(2, up_to=2)
    assert not rig.request(1).everything
    rig.answer(3, up_to=2)
    assert all(rig.request(node).everything for node in (1, 2, 3))
    assert all(rig.request(node).first == START for node in (1, 2, 3))
    rig.answer(2, data(at(1)), data(at(2)), up_to=2)
    assert rig.delivered == [lsns(1, 1), lsns(2, 2)]
    assert not rig.request(2).everything  # all went well: back to one copy
    assert rig.request(2).first == at(3)


# ---- epochs


def test_a_reader_never_goes_into_an_epoch_whose_nodes_are_unknown() -> None:
    rig = ReaderRig(THREE)
    assert rig.request(1).until == last_of(1)
    rig.answer(1, data(at(1)), bridge(at(2)), up_to=last_of(1))
    assert (rig.gaps, rig.wanted) == ([], [1, 1])  # whether the bridge counts, its state tells
    rig.tell(THREE)
    assert rig.gaps == [(at(2), last_of(1), GapKind.BRIDGE)]
    rig.pass_time(0.1)
    assert rig.wanted == [1, 1, 2]
    rig.tell(state(metadata(1, 2, 3), metadata(4, 5, since=2), epoch=2, last_clean=1, tail=at(1)))
    assert rig.request(4).first == make(2, 1)
    assert rig.request(5).until == last_of(2)


def test_a_state_that_is_too_old_is_asked_for_again_but_not_in_a_hurry() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, bridge(at(1)), up_to=last_of(1))
    for _ in range(10):
        rig.tell(THREE)
    assert rig.wanted == [1, 2]
    rig.pass_time(0.1)
    assert rig.wanted == [1, 2, 2]


def test_a_log_that_nobody_has_written_to_yet_is_waited_for() -> None:
    rig = ReaderRig(state(epoch=0))
    for _ in range(100):
        rig.pass_time(0.1)
        if len(rig.wanted) > 1:
            rig.tell(state(epoch=0))
    assert 10 <= len(rig.wanted) <= 20  # in 10 seconds
    rig.tell(THREE)
    assert set(rig.asks) == {1, 2, 3}


def poll(rig: ReaderRig, seconds: int, released: Lsn) -> None:
    """Let long polls end, once a second, with the answers of nodes that have nothing."""
    for _ in range(seconds):
        rig.pass_time(1.0)
        for node in sorted(rig.asks):
            rig.answer(node, up_to=0, released=released)


def test_an_idle_log_is_waited_for_without_asking_for_its_state() -> None:
    rig = ReaderRig(THREE)
    poll(rig, 60, released=make(1, 0))
    assert rig.wanted == [1]


def test_the_state_of_a_log_that_all_nodes_forgot_is_asked_for_now_and_then() -> None:
    rig = ReaderRig(THREE)
    poll(rig, 60, released=make(1, 0))
    poll(rig, 2, released=0)  # all of the log was trimmed, or it was deleted
    assert rig.wanted == [1, 1]
    for _ in range(10):
        rig.tell(THREE)
        poll(rig, 2, released=0)
    assert rig.wanted == [1, 1]
    poll(rig, 4, released=0)
    assert rig.wanted == [1, 1, 1]


def test_the_state_of_a_log_whose_nodes_all_fail_is_asked_for_now_and_then() -> None:
    rig = ReaderRig(THREE)
    poll(rig, 1, released=make(1, 0))
    for _ in range(10):
        rig.pass_time(1.0)
        for node in sorted(rig.asks):
            rig.fail(node)
    assert rig.wanted == [1, 1]
    rig.tell(state(metadata(1, 2, 3), metadata(4, 5, since=2), epoch=2, last_clean=1))
    assert set(rig.asks) >= {4, 5}  # they took the place of those that are gone


def test_nodes_that_stay_are_known_as_they_were() -> None:
    rig = ReaderRig(THREE)
    rig.fail(2)
    rig.answer(1, bridge(at(1)), up_to=last_of(1))
    rig.tell(state(metadata(1, 2, 3), metadata(2, 4, since=2), epoch=2))
    assert rig.request(4).known_down == {2}


def test_an_epoch_that_lies_on_the_same_nodes_is_read_without_a_pause() -> None:
    rig = ReaderRig(state(metadata(1, 2, 3), epoch=2, last_clean=1, ends=(end(1, 1),)))
    rig.answer(1, data(at(1)), bridge(at(2)), data(make(2, 1)), up_to=make(2, 1))
    assert rig.delivered == [lsns(1, 1), lsns(1, 1, epoch=2)]
    assert rig.wanted == [1]


def test_a_closed_log_ends_with_its_last_record() -> None:
    rig = ReaderRig(THREE)
    rig.answer(1, data(at(1)), up_to=1)
    assert rig.delivered == [lsns(1, 1)]
    rig.tell(state(metadata(1, 2, 3), epoch=2, last_clean=1, tail=at(1), closed=True))
    assert rig.finished
    assert rig.gaps == []


def test_a_log_that_is_being_closed_has_no_end_yet() -> None:
    rig = ReaderRig(THREE)
    rig.tell(
        state(metadata(1, 2, 3), epoch=3, last_clean=1, tail=at(1), closed=True, ends=(end(1, 1),))
    )
    rig.answer(1, data(at(1)), up_to=last_of(1))
    assert rig.delivered == [lsns(1, 1)]
    assert not rig.finished
