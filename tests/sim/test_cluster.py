"""The whole cluster under faults, from one seed each. A failing seed is named with its replay line.

The negative controls break one rule each and must be found: a simulation that cannot fail
proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from other_process import fingerprints
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.client.append.appender import Attempt
from loomlog.client.append.delivery import Delivery
from loomlog.core.ordered.columns import StreamColumns
from loomlog.core.ordered.replica import Replica
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.packed import HeldReplica
from loomlog.errors import Unavailable
from loomlog.metadata.ordered import packed_reports
from loomlog.metadata.rounds import Done
from loomlog.metadata.rounds.round_files import FileRoundLog
from loomlog.node.appends import WaitingAppends
from loomlog.node.ordered import service
from loomlog.storage.ordered import journal
from loomlog.types import Llsn

CHUNKS = 8  # test_takeovers.py has more, with three metadata repositories
SEEDS_PER_CHUNK = 5


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_was_acknowledged_is_read_once_and_everything_heals(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


def test_the_same_holds_if_all_reports_and_commits_are_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "LEAST", 1)
    monkeypatch.setattr(packed_reports, "LEAST", 1)
    entered = 0

    def enter(self: StreamColumns, stream: StreamRounds, reports: Sequence[HeldReplica]) -> bool:
        nonlocal entered
        has_entered = plain_enter(self, stream, reports)
        entered += has_entered
        return has_entered

    plain_enter = StreamColumns.enter
    monkeypatch.setattr(StreamColumns, "enter", enter)
    for seed in range(SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"
    assert entered


def test_the_same_seed_is_the_same_run_whatever_the_hash_seed() -> None:
    first, again, other = fingerprints("cluster", (1, 1, 2), hash_seed=1)
    assert first == again != other
    assert fingerprints("cluster", (1, 1, 2), hash_seed=2) == [first, again, other]


# ---- negative controls


def is_found(faults: str, *, by: str = "", first: int = 0, seeds: int = 60) -> bool:
    """Return whether a seed from `first` on goes wrong, in the way that `by` names."""
    choices = (Choice(seed, faults=faults) for seed in range(first, first + seeds))
    errors = (run_seed(choice).error for choice in choices)
    return any(error is not None and by in error for error in errors)


def test_a_node_that_reports_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_sync", lambda target: None)
    assert is_found("crashes")


def test_commits_told_before_their_round_is_durable_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = FileRoundLog.append

    def append_and_answer(self: FileRoundLog, epoch: int, record: bytes, done: Done) -> None:
        append(self, epoch, record, lambda error: None)
        done(None)

    monkeypatch.setattr(FileRoundLog, "append", append_and_answer)
    assert is_found("crashes", first=21)


def test_uncommitted_entries_kept_over_a_seal_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Replica.seal

    def keep_all(self: Replica, epoch: int, last_committed_llsn: Llsn) -> Llsn:
        before, end = self.next_llsn, self.context.uncommitted_llsn_end
        seal(self, epoch, last_committed_llsn)
        self.next_llsn, self.context.uncommitted_llsn_end = before, end
        return before - 1

    monkeypatch.setattr(Replica, "seal", keep_all)
    assert is_found("all", first=3)


def test_streams_removed_before_they_are_trimmed_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StreamRounds, "is_trimmed", property(lambda stream: stream.sealed_at > 0))
    assert is_found("all", first=44)


def test_waiting_appends_that_a_seal_does_not_refuse_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such appends would be answered with the positions of later ones."""
    monkeypatch.setattr(WaitingAppends, "refuse", lambda self, after_llsn, error: None)
    assert is_found("all", by="violations", first=34)


def test_a_client_that_repeats_what_may_have_happened_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def repeat(self: Delivery, attempt: Attempt, why: str) -> bool:
        return self.refused(attempt, Unavailable(why))

    monkeypatch.setattr(Delivery, "lost", repeat)
    assert is_found("all", by="ONCE", first=17)
