"""The quorum round log on simulated hosts: disks that forget, networks that part, pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.core.quorum import leader
from loomlog.core.quorum.leader import Choice as Tail
from loomlog.core.quorum.leader import LeaderLog, Sealed
from loomlog.core.quorum.member import Configuration, MemberId
from loomlog.metadata.rounds.member_disk import MemberDisk
from loomlog.storage.files import Step

CHUNKS = 4
SEEDS_PER_CHUNK = 10
SEEDS = 20  # within which what is wrong is found


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_was_acknowledged_is_found_by_every_later_leader(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed, "rounds"))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def is_found(faults: str) -> bool:
    return any(run_seed(Choice(seed, "rounds", faults)).error for seed in range(SEEDS))


def test_a_member_that_answers_before_it_has_synced_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = MemberDisk.append

    def only_write(self: MemberDisk, epoch: int, records: Sequence[bytes]) -> list[Step]:
        return append(self, epoch, records)[:1]

    monkeypatch.setattr(MemberDisk, "append", only_write)
    assert is_found("crashes")


def test_a_takeover_that_trusts_a_minority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(configuration: Configuration, answers: Mapping[MemberId, Sealed]) -> Tail | None:
        best = max(sorted(answers), key=lambda member: answers[member].knows, default=None)
        return None if best is None else Tail(best, answers[best].knows)

    monkeypatch.setattr(leader, "choose", trusting)
    monkeypatch.setattr(LeaderLog, "_eligible", lambda self, answer: True)
    assert is_found("network")
