"""Finding out whether an unanswered append is in the log, once its epoch is recovered."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from copyset_node import CopysetNode

from loomlog.core.copyset.messages import (
    Clean,
    EpochEnd,
    LogState,
    NodeRequest,
    Release,
    Seal,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.procedures import (
    Answer,
    Appended,
    CopysetAsk,
    Nowhere,
    Resolution,
    Unresolved,
    resolve,
)
from loomlog.core.copyset.record import Kind, Lsn, Record, make
from loomlog.core.requests import Lost, Service

LOG = 1
METADATA = EpochMetadata(1, tuple(Member(node) for node in (1, 2, 3, 4, 5)), 3)
KEPT = Record(make(1, 2), 2, Kind.DATA, 7, (1, 2, 3), 1, 0, recovered=2, batch=b"batch")
HOLE = Record(make(1, 1), 1, Kind.HOLE, 7, (2, 3, 4), 1, 0, recovered=2)
END = EpochEnd(1, 0, 3, seal=1, wave=1)
BRIDGE = Record(make(1, 4), 1, Kind.BRIDGE, 7, (3, 4, 5), 1, 0, recovered=2)


@pytest.fixture
def nodes() -> dict[int, CopysetNode]:
    """Epoch 1 is recovered: a hole, a record, a bridge."""
    nodes = {node: CopysetNode(node) for node in METADATA.shards}
    for number, node in nodes.items():
        node.answer(Seal(LOG, 1))
        for record in (KEPT, HOLE, BRIDGE):
            if number in record.copyset:
                node.answer(Store(LOG, record))
        node.answer(Clean(LOG, 1, END))
        node.answer(Release(LOG, make(2, 0)))
    return nodes


def run(
    nodes: dict[int, CopysetNode],
    lsn: Lsn,
    *,
    silent: Collection[int] = (),
    last_clean: int = 1,
    trimmed: Lsn = 0,
    exact: bool = True,
) -> Resolution:
    ends = (replace(END, exact=exact),) if last_clean == END.epoch else ()
    state = LogState(2, 1, (METADATA,), last_clean, KEPT.last, trimmed=trimmed, ends=ends)

    def answer(ask: CopysetAsk) -> Answer:
        if isinstance(ask.target, Service):
            return Lost() if last_clean < 0 else state
        assert isinstance(ask.request, NodeRequest)
        return Lost() if ask.target in silent else nodes[ask.target].answer(ask.request)

    steps = resolve(LOG, lsn)
    try:
        asked = next(steps)
        while True:
            asked = steps.send([answer(ask) for ask in asked.asks])
    except StopIteration as ended:
        resolution: Resolution = ended.value
        return resolution


def test_a_record_that_was_kept_stands(nodes: dict[int, CopysetNode]) -> None:
    assert run(nodes, KEPT.first) == Appended(KEPT._replace(batch=b""))
    assert run(nodes, KEPT.first, silent=[1, 2, 4, 5]) == Appended(KEPT._replace(batch=b""))


def test_a_hole_and_what_is_behind_the_end_are_nowhere(nodes: dict[int, CopysetNode]) -> None:
    assert run(nodes, HOLE.first) == Nowhere()
    assert run(nodes, BRIDGE.first) == Nowhere()
    assert run(nodes, make(1, 9)) == Nowhere()
    assert run(nodes, make(1, 9), silent=METADATA.shards) == Nowhere()


def test_behind_an_end_that_nobody_knows_it_may_have_been_lost(
    nodes: dict[int, CopysetNode],
) -> None:
    outcome = run(nodes, make(1, 9), exact=False)
    assert isinstance(outcome, Unresolved)
    assert outcome.for_good


def test_nobody_concludes_from_silence(nodes: dict[int, CopysetNode]) -> None:
    assert isinstance(run(nodes, KEPT.first, silent=[1, 2, 3]), Unresolved)


def test_an_epoch_that_is_not_recovered_is_waited_for(nodes: dict[int, CopysetNode]) -> None:
    resolution = run(nodes, KEPT.first, last_clean=0)
    assert isinstance(resolution, Unresolved)
    assert not resolution.for_good
    assert isinstance(run(nodes, KEPT.first, last_clean=-1), Unresolved)


def test_what_is_trimmed_cannot_be_told_any_more(nodes: dict[int, CopysetNode]) -> None:
    too_late = Unresolved("what was there is trimmed", for_good=True)
    assert run(nodes, KEPT.first, trimmed=KEPT.last) == too_late
    for node in nodes.values():
        node.answer(Trim(LOG, KEPT.last))
    assert run(nodes, KEPT.first) == too_late
