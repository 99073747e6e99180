"""The copies that a scrub takes for missing."""

from __future__ import annotations

import pytest

from loomlog.core.copyset.comparison import Compared, Comparison, Missing, compare
from loomlog.core.copyset.messages import Delivered, EpochEnd, LogState, NodeAnswer, Read, Stored
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.procedures import Exchange
from loomlog.core.copyset.record import Kind, Record, make

ME, OTHER = 1, 2
LSN = make(1, 1)
RECORD = Record(LSN, 1, Kind.DATA, 0, (ME, OTHER), 1, 0, batch=b"batch")


def run(*nodeset: int, record: Record = RECORD) -> Compared:
    """Compare with others that have nothing."""

    def answer(shard: object, request: object) -> NodeAnswer:
        if not isinstance(request, Read):
            return Stored()
        found = record if request.batches else record._replace(batch=b"")
        return Delivered([found] if shard == ME else [], request.until + 1, 0, request.until)

    metadata = EpochMetadata(1, tuple(map(Member, nodeset)), 2)
    end = EpochEnd(1, 1, 1, 1, 1)
    state = LogState(2, 1, (metadata,), last_clean=1, tail=LSN, ends=(end,))
    steps = compare(Comparison(7, ME, state, frozenset({OTHER, 3, 4}), 0), LSN, LSN)
    try:
        asked = next(steps)
        while True:
            assert isinstance(asked, Exchange)
            asked = steps.send([answer(ask.target, ask.request) for ask in asked.asks])
    except StopIteration as stop:
        result: Compared = stop.value
        return result


@pytest.mark.parametrize(
    ("nodeset", "missing"),
    [((ME, OTHER, 3), [Missing(OTHER, LSN, restored=True)]), ((ME, 3, 4), [])],
)
def test_only_shards_of_the_nodeset_miss_a_copy(
    nodeset: tuple[int, ...], missing: list[Missing]
) -> None:
    assert run(*nodeset).missing == missing


@pytest.mark.parametrize(
    ("nodeset", "copyset"),
    [((ME, OTHER, 3), (OTHER, 3)), ((OTHER, 3, 4), (OTHER, 3)), ((OTHER, 3, 4), (ME, OTHER))],
    ids=["it is not named", "neither named nor in the nodeset", "not in the nodeset"],
)
def test_a_copy_that_was_left_behind_says_nothing_about_others(
    nodeset: tuple[int, ...], copyset: tuple[int, ...]
) -> None:
    compared = run(*nodeset, record=RECORD._replace(copyset=copyset))
    assert (compared.missing, compared.left) == ([], 0)
