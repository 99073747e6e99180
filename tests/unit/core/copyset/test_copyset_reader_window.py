"""Records that come before their turn are put in order, each once; memory has a bound."""

from __future__ import annotations

import random

from copyset_reader_rig import START, bridge, data, hole, lsns

from loomlog.core.copyset.reader_window import ReadWindow, Room, WindowSpan
from loomlog.core.copyset.record import HEAD_BYTES, Kind, make


def window_of(room: Room | None = None) -> ReadWindow:
    return ReadWindow(room or Room(1 << 20))


def drain(window: ReadWindow) -> list[tuple[int, int, Kind]]:
    """Return what stands where, as offsets."""
    pieces = []
    while window.first is not None:
        piece = window.pop(window.first)
        assert piece is not None
        pieces.append((piece.first - START + 1, piece.last - START + 1, piece.record.kind))
    return pieces


def test_records_come_out_in_order() -> None:
    window = window_of()
    for offset in (5, 1, 3):
        window.add(data(make(1, offset), 2), 1, START)
    assert drain(window) == [(1, 2, Kind.DATA), (3, 4, Kind.DATA), (5, 6, Kind.DATA)]


def test_copies_of_a_record_count_once() -> None:
    window = window_of()
    for node in (1, 2, 3):
        window.add(data(make(1, 3), 2, wave=node), node, START)
    assert drain(window) == [(3, 4, Kind.DATA)]


def test_only_the_piece_at_the_head_is_taken() -> None:
    window = window_of()
    window.add(data(make(1, 3)), 1, START)
    assert window.pop(START) is None
    assert window.pop(make(1, 3)) is not None


def test_of_a_record_that_begins_before_the_head_the_rest_counts() -> None:
    window = window_of()
    window.add(data(make(1, 1), 5), 1, make(1, 3))
    window.add(data(make(1, 1), 2), 1, make(1, 3))
    assert drain(window) == [(3, 5, Kind.DATA)]


def test_what_the_head_passes_goes() -> None:
    window = window_of()
    window.add(data(make(1, 1), 2), 1, START)
    window.add(data(make(1, 3), 4), 1, START)
    window.drop_below(make(1, 5))
    assert drain(window) == [(5, 6, Kind.DATA)]


def test_a_hole_that_recovery_left_beats_a_batch_that_a_sequencer_stored() -> None:
    for records in (
        [data(make(1, 3), 3), hole(*lsns(2, 6))],
        [hole(*lsns(2, 6)), data(make(1, 3))],
    ):
        window = window_of()
        for record in records:
            window.add(record, 1, START)
        assert drain(window) == [(2, 6, Kind.HOLE)]


def test_a_later_recovery_beats_an_earlier_one_and_leaves_the_rest_of_its_holes() -> None:
    older, newer = hole(*lsns(2, 9), recovered=2), data(make(1, 4), 2, recovered=3)
    for records in ([older, newer], [newer, older]):
        window = window_of()
        for record in records:
            window.add(record, 1, START)
        assert drain(window) == [(2, 3, Kind.HOLE), (4, 5, Kind.DATA), (6, 9, Kind.HOLE)]


def test_a_batch_counts_as_a_whole_or_not_at_all() -> None:
    window = window_of()
    window.add(data(make(1, 2), 4), 1, START)
    window.add(hole(*lsns(5, 5)), 2, START)
    assert drain(window) == [(5, 5, Kind.HOLE)]


def test_a_bridge_covers_the_rest_of_its_epoch() -> None:
    window = window_of()
    window.add(data(make(1, 7)), 1, START)
    window.add(bridge(make(1, 5)), 2, START)
    [(first, _, kind)] = drain(window)
    assert (first, kind) == (5, Kind.BRIDGE)


def test_whatever_comes_pieces_never_overlap_and_room_is_given_back() -> None:
    for seed in range(200):
        pick = random.Random(seed)
        room = Room(1000)
        window = window_of(room)
        for _ in range(pick.randint(1, 12)):
            first, recovered = make(1, pick.randint(1, 20)), pick.randint(0, 3)
            last = first + pick.randint(0, 5)
            batch = data(first, last - first + 1, recovered=recovered, wave=pick.randint(1, 3))
            record = batch if pick.random() < 0.6 else hole(first, last, recovered=recovered)
            window.add(record, pick.randint(1, 3), make(1, 4))
        window.drop_below(make(1, pick.randint(4, 8)))
        expected = make(1, 4)
        while window.first is not None:
            piece = window.pop(window.first)
            assert piece is not None
            assert piece.first >= expected
            expected = piece.last + 1
            room.give_back(piece)
        assert [room.free_for(node, 1) for node in (1, 2, 3)] == [1000] * 3


def test_each_node_has_a_share_of_the_room_until_its_records_are_consumed() -> None:
    room = Room(1000)
    piece = WindowSpan(START, START, data(START, size=300 - HEAD_BYTES), 1)
    room.take(piece)
    assert room.free_for(1, 2) == 0  # less than half of its share: not worth a question
    assert room.free_for(2, 2) == 500
    room.delivered(piece)
    assert room.free_for(1, 2) == 0
    room.consumed(1)
    assert room.free_for(1, 2) == 500
