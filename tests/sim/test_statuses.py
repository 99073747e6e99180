"""No condition means: every acknowledged entry has all its copies."""

from __future__ import annotations

import pytest
from copies_judge import CopiesJudge
from run_seeds import Choice, Outcome, run_seed

from loomlog.core.chained import conditions as of_chains
from loomlog.core.conditions import Condition
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.chained.keeper import ChainedKeeper
from loomlog.metadata.copyset.keeper import CopysetKeeper
from loomlog.metadata.ordered.keeper import OrderedKeeper
from loomlog.metadata.ordered.status import StreamStatus
from loomlog.metadata.protocol import ProtocolKeeper
from loomlog.types import Glsn

SEEDS = 10
REGRESSIONS = (
    4,  # what a rebuilt shard had as the only one counted as restored
    70,  # deleting the old data that was in the way of a replica woke nobody
)
OPERATED = (
    1,
    1028,  # a node that was just replaced could be marked as to be replaced once more
    1042,  # nobody recovered an epoch that was taken by a leader which ended at once
    1350,  # a node failed to learn that its copies are restored when their log was trimmed away
)


def run(seed: int, workload: str = "statuses") -> Outcome:
    return run_seed(Choice(seed, workload, "none"))


@pytest.mark.parametrize("seed", OPERATED)
def test_so_it_is_while_nodes_are_drained_and_logs_trimmed_and_switched(seed: int) -> None:
    outcome = run(seed, "statuses-operated")
    assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_without_conditions_every_acknowledged_entry_has_all_its_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judges: list[CopiesJudge] = []
    look = CopiesJudge.look

    def noted(judge: CopiesJudge) -> object:
        judges.append(judge) if judge not in judges else None
        return look(judge)

    monkeypatch.setattr(CopiesJudge, "look", noted)
    for seed in sorted({*range(SEEDS), *REGRESSIONS}):
        outcome = run(seed)
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"
    counted = [judge.healthy for judge in judges]
    assert sum(map(bool, counted)) > SEEDS / 2, f"too few moments to judge: {counted}"


def found(*seeds: int, workload: str = "statuses") -> bool:
    return any("has only copies on" in (run(seed, workload).error or "") for seed in seeds)


def test_the_judge_notices_short_streams_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamStatus, "conditions", lambda self, log: [])
    assert found(22, 29, 30)


def test_the_judge_notices_short_chains_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_chains, "_shortages", lambda view: iter(()))
    monkeypatch.setattr(of_chains, "_work", lambda view: iter(()))
    assert found(1, 13, 54, 72)


def test_the_judge_notices_lost_copies_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopysetKeeper, "conditions", lambda self, log: [])
    monkeypatch.setattr(CopysetKeeper, "node_conditions", lambda self, node: [])
    assert found(3, 4, 5, 14, 17)


def test_the_judge_notices_switched_logs_that_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blind(keeper: ProtocolKeeper, log: LogRecord) -> list[Condition]:
        is_switched = len(log.layout.segments) > 1
        return [] if is_switched else look[type(keeper)](keeper, log)

    kinds: list[type[ProtocolKeeper]] = [OrderedKeeper, ChainedKeeper, CopysetKeeper]
    look = {kind: kind.conditions for kind in kinds}
    for kind in kinds:
        monkeypatch.setattr(kind, "conditions", blind)
        monkeypatch.setattr(kind, "node_conditions", lambda self, node: [])
    assert found(*range(20, 32), workload="statuses-operated")


def test_the_judge_notices_trims_that_go_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trim_log = Catalog.trim_log

    async def trim_more(catalog: Catalog, name: str, position: Glsn) -> LogRecord:
        return await trim_log(catalog, name, position + 2)

    monkeypatch.setattr(Catalog, "trim_log", trim_more)
    assert found(*range(23, 35), workload="statuses-operated")
