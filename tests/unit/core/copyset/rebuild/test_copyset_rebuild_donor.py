"""A donor: what it sends, in which order, and what it does when others fail."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from loomlog.core.copyset.messages import (
    Delivered,
    EpochEnd,
    LogState,
    NotHere,
    Read,
    Reassign,
    Restore,
    Stored,
    Superseded,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.rebuild.donor import (
    DonorAnswer,
    DonorAsk,
    RebuildOrder,
    Scan,
    scan,
)
from loomlog.core.copyset.rebuild.plan import donor_of
from loomlog.core.copyset.rebuild.restore import RestoreAnswer
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.core.requests import Lost

NODES = (1, 2, 3, 4, 5)
ME, OTHER, GONE = 1, 2, 3
METADATA = EpochMetadata(1, tuple(Member(node) for node in NODES), 3)
END = EpochEnd(1, 9, 9, 1, 1)
STATE = LogState(2, 1, (METADATA,), last_clean=1, tail=make(1, 9), ends=(END,))
LSN = next(
    lsn for lsn in (make(1, n) for n in range(1, 99)) if donor_of((ME, OTHER), lsn, ()) == ME
)
RECORD = Record(LSN, 1, Kind.DATA, 0, (ME, OTHER, GONE), 1, 0, batch=b"batch")
HEAD = RECORD._replace(batch=b"")


def order(me: int = ME, *, absent: bool = True) -> RebuildOrder:
    gone = frozenset([GONE])
    usable = frozenset(NODES) - gone
    return RebuildOrder(1, 7, me, {GONE: 1}, gone if absent else frozenset(), usable)


class Others:
    """The shards, which answer as a test says."""

    def __init__(
        self, answers: Mapping[int, RestoreAnswer | Lost] | None = None, *, damaged: bool = False
    ) -> None:
        self._answers = answers or {}
        self._damaged = damaged
        self.sent: list[DonorAsk] = []

    def run(self, order: RebuildOrder, scans: int = 1, state: LogState = STATE) -> Scan:
        result = Scan()
        steps = scan(order, state, scans, result)
        try:
            asks = next(steps)
            while True:
                asks = steps.send([self._answer(ask, order.me) for ask in asks])
        except StopIteration:
            return result

    def _answer(self, ask: DonorAsk, me: int) -> DonorAnswer:
        if isinstance(ask.request, Read):
            is_damaged = self._damaged and ask.target == me and ask.request.batches
            record = RECORD if ask.request.batches else HEAD
            records = [] if is_damaged else [record]
            damaged = [(RECORD.first, RECORD.last)] if is_damaged else []
            until = ask.request.until
            return Delivered(records, until + 1, 0, until, damaged=damaged)
        self.sent.append(ask)
        return self._answers.get(ask.target, Stored())

    def story(self) -> list[tuple[str, int]]:
        return [(type(ask.request).__name__, ask.target) for ask in self.sent]


def test_the_record_is_stored_then_the_others_name_it_then_this_copy() -> None:
    others = Others()
    result = others.run(order())
    [(first, target), *rest] = others.story()
    assert first == "Restore"
    assert target in (4, 5)
    assert rest == [("Reassign", OTHER), ("Reassign", target), ("Reassign", ME)]
    for ask in others.sent:
        assert isinstance(ask.request, Restore | Reassign)
        assert ask.request.record.copyset == tuple(sorted((ME, OTHER, target)))
        assert ask.request.version == 7
    assert (result.records[GONE], result.size_bytes[GONE], result.left) == (1, 5, 0)


def test_the_first_scan_leaves_records_to_others_and_the_second_does_not() -> None:
    others = Others()
    assert others.run(order(OTHER)).records.total() == 0
    assert not others.sent
    assert others.run(order(OTHER), scans=2).records[GONE] == 1


def test_a_target_that_fails_is_replaced() -> None:
    [chosen] = [target for kind, target in _story_of(Others()) if kind == "Restore"]
    others = Others({chosen: Lost()})
    assert others.run(order()).left == 0
    targets = [target for kind, target in others.story() if kind == "Restore"]
    assert sorted(targets) == [4, 5]
    assert targets[0] == chosen


def _story_of(others: Others) -> list[tuple[str, int]]:
    others.run(order())
    return others.story()


def test_a_copy_that_is_missing_is_made_up_for() -> None:
    others = Others({OTHER: NotHere()})
    assert others.run(order()).left == 0
    last = others.sent[-1].request
    assert isinstance(last, Reassign)
    assert last.record.copyset == (ME, 4, 5)


def test_this_copy_keeps_its_copyset_while_another_does_not_answer() -> None:
    others = Others({OTHER: Lost()})
    assert others.run(order()).left == 1
    assert ("Reassign", ME) not in others.story()


def test_a_newer_version_ends_the_scan() -> None:
    others = Others({OTHER: Superseded(9)})
    result = others.run(order())
    assert result.superseded == 9
    assert ("Reassign", ME) not in others.story()


def test_the_batch_of_a_damaged_copy_comes_from_another() -> None:
    others = Others(damaged=True)
    assert others.run(order()).left == 0
    [restored] = [ask.request for ask in others.sent if isinstance(ask.request, Restore)]
    assert restored.record.batch == b"batch"


def test_nothing_is_restored_before_the_epoch_is_recovered() -> None:
    others = Others()
    unclean = LogState(1, 1, (METADATA,), last_clean=0, tail=0)
    assert others.run(order(), state=unclean).left == 1
    assert not others.sent


def refilled() -> RebuildOrder:
    return order()._replace(usable=frozenset(NODES))


def test_a_shard_that_is_refilled_gets_its_own_copies_again() -> None:
    others = Others({GONE: NotHere()})
    others.run(refilled())
    assert others.story()[:2] == [("Reassign", GONE), ("Restore", GONE)]
    [restored] = [a.request for a in others.sent[:2] if isinstance(a.request, Restore)]
    assert restored.record.copyset == HEAD.copyset
    assert others.story()[2][1] in (4, 5), "it did not take it"


def test_a_shard_that_is_refilled_is_asked_for_every_copy_and_sent_what_it_lacks() -> None:
    others = Others()
    result = others.run(refilled(), scans=2)
    assert others.story() == [("Reassign", GONE), ("Reassign", OTHER)]
    assert (result.left, result.records.total()) == (0, 0), "nothing had to be sent"


def test_a_drained_shard_restores_its_own_records() -> None:
    alone = order(GONE, absent=False)
    others = Others()
    result = others.run(alone, scans=2)
    assert result.records[GONE] == 1
    assert others.story()[-1] == ("Reassign", GONE)
    last = others.sent[-1].request
    assert isinstance(last, Reassign)
    assert GONE not in last.record.copyset


def test_a_shard_that_left_the_nodeset_while_this_one_was_away_does_not_count() -> None:
    others = Others()
    nodeset = tuple(Member(node) for node in NODES if node != OTHER)
    state = LogState(2, 1, (METADATA._replace(nodeset=nodeset),), 1, make(1, 9), ends=(END,))
    assert others.run(order(), state=state).left == 0
    assert {target for _, target in others.story()} == {ME, 4, 5}
    last = others.sent[-1].request
    assert isinstance(last, Reassign)
    assert last.record.copyset == (ME, 4, 5)


class OneLog:
    """A shard with small records, all of which are due, and others that take everything."""

    def __init__(self, count: int) -> None:
        lsns = (lsn for lsn in range(make(1, 1), make(1, 99 * count)))
        mine = (lsn for lsn in lsns if donor_of((ME, OTHER), lsn, ()) == ME)
        self._records = [RECORD._replace(first=next(mine)) for _ in range(count)]
        self.restored: set[int] = set()
        self.reads = 0

    def answer(self, ask: DonorAsk) -> DonorAnswer:
        request = ask.request
        if isinstance(request, Restore):
            assert request.record.batch == RECORD.batch
            self.restored.add(request.record.first)
        if not isinstance(request, Read):
            return Stored()
        self.reads += 1
        found = [r for r in self._records if request.first <= r.first <= request.until]
        if not request.batches:
            found = [record._replace(batch=b"") for record in found]
        return Delivered(found, request.until + 1, 0, request.until)


def test_many_small_records_that_are_due_cost_few_steps() -> None:
    log = OneLog(1000)
    steps, exchanges = scan(order(), STATE, 1, Scan()), 1
    with suppress(StopIteration):
        asks = next(steps)
        while True:
            asks = steps.send([log.answer(ask) for ask in asks])
            exchanges += 1
    assert len(log.restored) == 1000
    assert log.reads == 1
    assert exchanges <= 1 + 3 * 4  # store, name the new copyset, here too: 4 times for all
