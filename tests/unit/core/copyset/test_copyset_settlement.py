"""The end of an epoch is settled, and brought to the nodes."""

from __future__ import annotations

from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.record import OFFSET_MAX, Kind, Record, make
from loomlog.core.copyset.settlement import Settled, Span, completed, plan, settle, unmarked

DATA, HOLE, BRIDGE = Kind.DATA, Kind.HOLE, Kind.BRIDGE


def copy(first: int, last: int, kind: Kind = DATA, *, wave: int = 1, recovered: int = 0) -> Record:
    return Record(make(1, first), last - first + 1, kind, 7, (), wave, 0, recovered)


def settled(*copies: Record, after: int = 0, authoritative: bool = True) -> Settled:
    """Each on a node of its own."""
    digests = {node: [record] for node, record in enumerate(copies)}
    return settle(digests, after, authoritative=authoritative)


def pieces(*copies: Record, after: int = 0, authoritative: bool = True) -> list[Span]:
    return list(settled(*copies, after=after, authoritative=authoritative).spans)


def test_what_was_found_stays_the_rest_are_holes_and_behind_the_last_one_is_a_bridge() -> None:
    assert settled(copy(3, 4), copy(7, 7), copy(3, 4, wave=2), after=1) == Settled(
        (
            Span(2, 2, HOLE),
            Span(3, 4, DATA),
            Span(5, 6, HOLE),
            Span(7, 7, DATA),
            Span(8, OFFSET_MAX, BRIDGE),
        ),
        last=7,
        exact=True,
    )


def test_an_epoch_without_anything_stays_so() -> None:
    assert settled() == Settled((), 0, exact=True)


def test_behind_what_was_fully_stored_is_a_bridge() -> None:
    assert settled(after=5) == Settled((Span(6, OFFSET_MAX, BRIDGE),), 5, exact=True)


def test_a_hole_of_an_older_recovery_voids_what_it_covers() -> None:
    hole = copy(1, 4, HOLE, recovered=3)
    found = pieces(copy(2, 3, wave=9), hole, copy(5, 5))
    assert found == [
        Span(1, 4, HOLE),
        Span(5, 5, DATA),
        Span(6, OFFSET_MAX, BRIDGE),
    ]


def test_a_newer_recovery_found_what_an_older_one_did_not() -> None:
    hole = copy(1, 4, HOLE, recovered=3)
    found = pieces(copy(2, 3, recovered=4), hole, copy(5, 5))
    assert found[:3] == [
        Span(1, 1, HOLE),
        Span(2, 3, DATA),
        Span(4, 4, HOLE),
    ]


def test_a_later_attempt_counts_more_than_an_earlier_one() -> None:
    hole = copy(1, 4, HOLE, recovered=3, wave=1)
    assert Span(2, 3, DATA) in pieces(copy(2, 3, recovered=3, wave=2), hole)


def test_a_bridge_voids_what_comes_long_after_it() -> None:
    bridge = copy(3, OFFSET_MAX, BRIDGE, recovered=3)
    found = pieces(copy(1, 2), copy(9, 9), bridge)
    assert found == [Span(1, 2, DATA), Span(3, OFFSET_MAX, BRIDGE)]


def test_what_a_newer_recovery_found_behind_a_bridge_stays() -> None:
    bridge = copy(3, OFFSET_MAX, BRIDGE, recovered=3)
    found = pieces(copy(1, 2), copy(5, 5), copy(9, 9, recovered=4), bridge)
    assert found == [
        Span(1, 2, DATA),
        Span(3, 8, HOLE),
        Span(9, 9, DATA),
        Span(10, OFFSET_MAX, BRIDGE),
    ]


def test_leftovers_of_a_void_epoch_are_covered() -> None:
    """A record that another recovery found nothing of must not be found by the next one."""
    assert settled(copy(2, 2), copy(1, 3, HOLE, recovered=3)) == Settled(
        (Span(1, OFFSET_MAX, BRIDGE),), 0, exact=True
    )


def test_without_authority_no_marks_are_made_and_those_there_are_stay() -> None:
    hole = copy(4, 6, HOLE, recovered=3)
    found = settled(copy(2, 2), copy(5, 5), hole, copy(9, 9), authoritative=False)
    assert found == Settled(
        (Span(2, 2, DATA), Span(4, 6, HOLE), Span(9, 9, DATA)),
        9,
        exact=False,
    )


def test_copies_may_stay_wherever_there_is_no_mark() -> None:
    certain = settled(copy(3, 4), copy(7, 7), after=1)
    assert unmarked(certain.spans, 1) == ((3, 4), (7, 7))
    hole = copy(4, 6, HOLE, recovered=3)
    uncertain = settled(copy(2, 2), hole, authoritative=False)
    assert unmarked(uncertain.spans, 1) == ((2, 3), (7, OFFSET_MAX))


# ---- mutations

RACKS = EpochMetadata(1, tuple(Member(n, f"rack {n % 3}") for n in range(1, 7)), 3)
LIKE = copy(1, 1, HOLE, wave=4, recovered=5)._replace(timestamp_us=99)


def test_holders_are_amended_others_overwritten_and_more_are_added() -> None:
    digests = {1: [copy(2, 2)], 2: [copy(1, 3, HOLE, recovered=2)], 3: [], 4: []}
    nodes = EpochMetadata(1, tuple(Member(n) for n in digests), 3)
    [mutation] = plan([Span(2, 2, DATA)], digests, digests, nodes, LIKE)
    assert mutation.amend == (1,)
    assert set(mutation.store) > {2}
    assert mutation.record.copyset == tuple(sorted({*mutation.amend, *mutation.store}))
    assert len(mutation.record.copyset) == 3
    assert mutation.record.precedence == (5, 4)
    assert mutation.record.timestamp_us == 7  # as it was stored
    assert mutation.sources == (1,)


def test_marks_have_no_batch_to_be_fetched() -> None:
    digests = {1: [copy(2, 2)], 2: [], 3: []}
    nodes = EpochMetadata(1, tuple(Member(n) for n in digests), 2)
    [mutation] = plan([Span(2, 9, HOLE)], digests, digests, nodes, LIKE)
    assert mutation.amend == ()
    assert 1 in mutation.store
    assert not mutation.needs_batch
    assert mutation.record.timestamp_us == 99


def test_a_batch_may_come_from_a_node_that_is_not_written_to() -> None:
    digests = {1: [copy(2, 2)], 2: [], 3: [], 4: []}
    nodes = EpochMetadata(1, tuple(Member(n) for n in digests), 3)
    [mutation] = plan([Span(2, 2, DATA)], digests, [2, 3, 4], nodes, LIKE)
    assert mutation.record.copyset == (2, 3, 4) == mutation.store
    assert mutation.sources == (1,)


def test_copysets_lie_in_as_many_racks_as_they_should() -> None:
    for lsn in range(50):
        copyset = completed([1, 4], RACKS.shards, RACKS, lsn)
        assert RACKS.can_hold_a_copyset(copyset)
        assert len(copyset) == 4  # two of them are in one rack


def test_copysets_are_not_all_the_same() -> None:
    assert len({completed([], RACKS.shards, RACKS, lsn) for lsn in range(50)}) > 5


def test_when_too_few_are_writable_all_are_taken() -> None:
    assert completed([1], [1, 2], RACKS, 7) == (1, 2)
