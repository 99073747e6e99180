"""Storage nodes and restored copies: whatever is sealed, never in place of another record."""

from __future__ import annotations

from copyset_node import CopysetNode

from loomlog.core.copyset.messages import (
    Delivered,
    EpochEnd,
    NotHere,
    Occupied,
    Purge,
    Read,
    Reassign,
    Release,
    Restore,
    Seal,
    Store,
    Stored,
    Superseded,
    Trim,
)
from loomlog.core.copyset.rebuild.restore import RestoreAnswer, RestoreRequest, decide
from loomlog.core.copyset.record import Kind, Record, make

LOG = 1
ME = 2
END = EpochEnd(1, lng=2, last=9, seal=1, wave=1)


def record(offset: int, copyset: tuple[int, ...] = (1, 2), wave: int = 1, count: int = 1) -> Record:
    return Record(make(1, offset), count, Kind.DATA, 0, copyset, wave, 0, batch=b"%d" % offset)


def ask(node: CopysetNode, request: RestoreRequest, known: int = 0) -> RestoreAnswer:
    records = node.records(LOG)
    answer, changes = decide(request, records.standing, records, node.node_id, known)
    for change in changes:
        records.apply(change)
    return answer


def copies(node: CopysetNode) -> list[Record]:
    return node.records(LOG).all()


def test_a_copy_is_restored_whatever_is_sealed_and_then_shown() -> None:
    node = CopysetNode(ME)
    node.answer(Seal(LOG, 5))
    assert ask(node, Restore(LOG, record(3), END, 1)) == Stored()
    node.answer(Release(LOG, make(6, 1)))
    delivered = node.answer(Read(LOG, 1, make(2, 0), 1000, everything=True))
    assert isinstance(delivered, Delivered)
    assert [each.batch for each in delivered.records] == [b"3"]


def test_leftovers_are_purged_first_and_the_restored_copy_never() -> None:
    node = CopysetNode(ME)
    node.answer(Store(LOG, record(3, (2, 7))))
    node.answer(Store(LOG, record(4, (2, 7))))
    restored = record(3)._replace(recovered=2)
    assert ask(node, Restore(LOG, restored, END, 1)) == Stored()
    node.answer(Purge(LOG, END))
    assert copies(node) == [restored]


def test_an_epoch_that_had_no_copies_here_gets_its_end_with_the_first() -> None:
    node = CopysetNode(ME)
    node.answer(Release(LOG, make(2, 1)))  # epoch 1 is clean here, because nothing of it is here
    assert node.records(LOG).standing.last_clean == 1
    assert ask(node, Restore(LOG, record(3), END, 1)) == Stored()
    assert node.records(LOG).end_of(1) == END
    assert copies(node) == [record(3)]


def test_another_record_stays() -> None:
    node = CopysetNode(ME)
    other = record(3, count=2)
    assert ask(node, Restore(LOG, other, END, 1)) == Stored()
    assert ask(node, Restore(LOG, record(4), END, 1)) == Occupied(make(1, 4))
    different = other._replace(batch=b"another")
    assert ask(node, Restore(LOG, different, END, 1)) == Occupied(make(1, 3))
    assert copies(node) == [other]


def test_a_newer_copy_stays_and_counts() -> None:
    node = CopysetNode(ME)
    newer = record(3, wave=2)
    ask(node, Restore(LOG, newer, END, 1))
    assert ask(node, Restore(LOG, record(3, (2, 9)), END, 1)) == Stored()
    assert ask(node, Reassign(LOG, record(3, (2, 9)), 1)) == Stored()
    assert copies(node) == [newer]


def test_what_is_trimmed_does_not_come_back() -> None:
    node = CopysetNode(ME)
    node.answer(Trim(LOG, make(1, 3)))
    assert ask(node, Restore(LOG, record(3), END, 1)) == Stored()
    assert ask(node, Reassign(LOG, record(3), 1)) == Stored()
    assert copies(node) == []


def test_a_copy_is_reassigned_and_keeps_its_batch() -> None:
    node = CopysetNode(ME)
    assert ask(node, Reassign(LOG, record(3), 1)) == NotHere()
    ask(node, Restore(LOG, record(3), END, 1))
    assert ask(node, Reassign(LOG, record(3, (2, 5))._replace(batch=b""), 1)) == Stored()
    assert copies(node) == [record(3, (2, 5))]


def test_requests_of_an_older_version_change_nothing() -> None:
    node = CopysetNode(ME)
    assert ask(node, Restore(LOG, record(3), END, 6), known=7) == Superseded(7)
    assert ask(node, Restore(LOG, record(3), END, 7), known=7) == Stored()
    assert ask(node, Reassign(LOG, record(3, (2, 5)), 6), known=7) == Superseded(7)
    assert copies(node) == [record(3)]
