"""All disks of a copyset log are replaced by older copies, and the newer ones are put back later.
Readers get the records of a recovered epoch that these disks have, but no record in a place that
recovery turned into a hole."""

from __future__ import annotations

from collections.abc import Sequence

import copyset_parties
import pytest
from copyset_rolled_back_world import PutBackWorld, RolledBackWorld
from seed_chunks import chunks
from violation import Violation

from loomlog.core.copyset import recovery
from loomlog.core.copyset.effects import GapKind
from loomlog.core.copyset.reader import CopysetReader
from loomlog.core.copyset.record import OFFSET_MAX, Kind, Offset, epoch_of, last_of
from loomlog.core.copyset.settlement import Span

CHUNKS = 20
PER_CHUNK = 20


def notices(complaint: str, world: type[RolledBackWorld] = RolledBackWorld) -> bool:
    for seed in range(PER_CHUNK):
        try:
            world(seed).run()
        except Violation as violation:
            if complaint in str(violation):
                return True
    return False


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_the_copies_have_is_read(chunk: int) -> None:
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        world = RolledBackWorld(seed)
        try:
            world.run()
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_what_newer_copies_have_is_read_when_they_are_put_back(chunk: int) -> None:
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        try:
            PutBackWorld(seed).run()
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation


def test_purges_delete_what_recovery_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "unmarked", lambda spans, after: ())
    assert notices("purged the last copy")


def test_purges_keep_what_recovery_did_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "unmarked", lambda spans, after: ((1, OFFSET_MAX),))
    assert notices("and Void", PutBackWorld)


def test_purges_delete_what_recovery_did_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(spans: Sequence[Span], after: Offset) -> tuple[tuple[Offset, Offset], ...]:
        return tuple((span.first, span.last) for span in spans if span.kind is Kind.DATA)

    monkeypatch.setattr(recovery, "unmarked", found)
    assert notices("purged the last copy", PutBackWorld)


def test_readers_pass_an_end_that_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    class HastyReader(CopysetReader):
        def _step(self, now: float) -> bool:
            if self._window.first != self.head and self._is_behind_end(exact=False):
                self._gap(last_of(epoch_of(self.head)), GapKind.DATALOSS, exact=False)
                return True
            return super()._step(now)

    monkeypatch.setattr(copyset_parties, "CopysetReader", HastyReader)
    assert notices("was acknowledged and is shown as dataloss", PutBackWorld)
