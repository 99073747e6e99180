"""Recoveries of a copyset log that die after its disks forgot writes, and without the rules."""

from __future__ import annotations

import pytest
from copyset_forgetful_world import ForgetfulWorld
from seed_chunks import chunks
from violation import finds, run_world

from loomlog.core.copyset import procedures
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.recovery import EpochRecovery

CHUNKS = 20
PER_CHUNK = 500
SEEDS = 3_000


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_is_known_to_be_acknowledged_is_read_or_said_to_be_lost(chunk: int) -> None:
    worlds = [run_world(ForgetfulWorld, chunk * PER_CHUNK + seed) for seed in range(PER_CHUNK)]
    assert any(world.lost for world in worlds)
    assert sum(world.deaths for world in worlds) > PER_CHUNK / 4


def test_what_recoveries_presumed_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogState, "presumed_in", lambda self, epoch: None)
    assert finds("was acknowledged and is passed", ForgetfulWorld, range(SEEDS)) is not None


def test_absent_nodes_keep_losses_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procedures, "knows_of_loss", lambda end, me, lng: False)
    assert finds("was acknowledged and is passed", ForgetfulWorld, range(SEEDS)) is not None


def test_nodes_that_crashed_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochRecovery, "_absent", lambda self, there: ())
    assert finds("was acknowledged and is passed", ForgetfulWorld, range(SEEDS)) is not None
