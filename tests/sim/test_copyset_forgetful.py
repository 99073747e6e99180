"""Recoveries of a copyset log that die after its disks forgot writes, and without the rules."""

from __future__ import annotations

from dataclasses import replace

import copyset_forgetful_world
import pytest
from copyset_forgetful_world import ForgetfulWorld
from seed_chunks import chunks
from violation import finds, run_world

from loomlog.core.copyset import log_state, procedures, reader_knowledge, storage
from loomlog.core.copyset.evidence import Loss, loss_at
from loomlog.core.copyset.messages import EpochEnd, LogState, Seal
from loomlog.core.copyset.record import Offset
from loomlog.core.copyset.recovery import EpochRecovery
from loomlog.core.copyset.storage import Decision, LogStanding, Records

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


def test_writers_keep_losses_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copyset_forgetful_world, "to_report", lambda state, ranges: [])
    assert finds("was acknowledged and is passed", ForgetfulWorld, range(SEEDS)) is not None


def test_a_segment_ends_before_a_loss_that_is_found_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_state, "_is_doubtful", lambda state, end: False)
    assert finds("was acknowledged and is passed", ForgetfulWorld, range(SEEDS)) is not None


def test_a_node_believes_a_recovery_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForgetfulWorld, "_hear", lambda self: None)
    seeds = range(3_000, 3_500)
    assert finds("was acknowledged and is passed", ForgetfulWorld, seeds) is not None


def test_the_next_recovery_does_not_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = storage._seal

    def forget(request: Seal, standing: LogStanding, records: Records) -> Decision:
        return seal(replace(request, recovered=0), standing, records)

    monkeypatch.setattr(storage, "_seal", forget)
    seeds = range(1_500, 2_000)
    assert finds("was acknowledged and is passed", ForgetfulWorld, seeds) is not None


def test_what_nobody_can_confirm_is_a_certain_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def certain(end: EpochEnd | None, offset: Offset) -> Loss | None:
        loss = loss_at(end, offset)
        is_behind = end is None or offset > end.last
        return loss if loss is None or is_behind else loss._replace(exact=True)

    monkeypatch.setattr(reader_knowledge, "loss_at", certain)
    seeds = range(2_500, 3_000)
    assert finds("is said to be lost, and was not acknowledged", ForgetfulWorld, seeds) is not None
