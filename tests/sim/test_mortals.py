"""Clients that die in the midst of appends to logs of every protocol, while servers fail. The
negative controls break one rule each of the nodes and of the metadata repository."""

from __future__ import annotations

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.core.chained import reconfigure, replica
from loomlog.core.chained.chain import Projection
from loomlog.core.chained.messages import Steps
from loomlog.metadata.chained.sequencers import Sequencers

CHUNKS = 6
SEEDS_PER_CHUNK = 3


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_dead_clients_leave_behind_holds_nobody_up(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed, workload="mortals"))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def is_found(first: int, seeds: int = 40) -> bool:
    choices = (Choice(seed, "protocols", "all") for seed in range(first, first + seeds))
    return any(run_seed(choice).error is not None for choice in choices)


def test_nodes_that_serve_every_epoch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "_check_epoch", lambda request, standing: None)
    assert is_found(first=196)


def test_a_sequencer_that_begins_below_what_is_written_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Sequencers.begin

    def below(self: Sequencers, projection: Projection) -> None:
        start = max(projection.first, projection.start - 3)
        begin(self, projection._replace(start=start))

    monkeypatch.setattr(Sequencers, "begin", below)
    assert is_found(first=5)


def test_a_newcomer_that_joins_without_a_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_copy(*_: object) -> Steps[int]:
        yield from ()
        return 0

    monkeypatch.setattr(reconfigure, "copy", no_copy)
    assert is_found(first=60)
