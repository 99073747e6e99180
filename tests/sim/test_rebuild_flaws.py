"""Negative controls: rebuilding with one rule left out, which the judge must notice."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

import pytest
from rebuild_world import RebuildWorld
from violation import finds

from loomlog.core.copyset import log_state
from loomlog.core.copyset.messages import Reassign, Restore, Stored
from loomlog.core.copyset.rebuild import events, plan, restore
from loomlog.core.copyset.rebuild.donor import DonorAnswer, Steps, _Donor
from loomlog.core.copyset.rebuild.events import RebuildState
from loomlog.core.copyset.rebuild.restore import RestoreAnswer, RestoreRequest
from loomlog.core.copyset.storage import Change, LogStanding, Put, Records
from loomlog.types import NodeId, ShardId

SEEDS = 1500  # at most: most flaws are found in the first hundred
Patch = pytest.MonkeyPatch


def notices(
    complaint: str,
    *,
    first: int = 0,
    disaster: bool = False,
    late: bool = False,
    partly: bool = False,
) -> bool:
    """Return whether the judge complains in these words (a pattern), with some seed."""
    make = partial(RebuildWorld, disaster=disaster, late=late, partly=partly)
    return finds(complaint, make, range(first, first + SEEDS)) is not None


def test_donors_do_not_store_records_on_others(monkeypatch: Patch) -> None:
    def lazy(self: _Donor, *_: object) -> Steps[set[ShardId]]:
        yield from ()
        return set()

    monkeypatch.setattr(_Donor, "_store", lazy)
    assert notices("is only on")


def test_donors_scan_once(monkeypatch: Patch) -> None:
    has_scanned = events.has_scanned

    def hasty(state: RebuildState, shard: ShardId, donors: Collection[ShardId], _: int) -> bool:
        return has_scanned(state, shard, donors, 1)

    monkeypatch.setattr(events, "has_scanned", hasty)
    assert notices("is rebuilt, and node")


def test_one_donor_is_enough(monkeypatch: Patch) -> None:
    has_scanned = events.has_scanned

    def hasty(state: RebuildState, shard: ShardId, donors: Collection[ShardId], scans: int) -> bool:
        return any(has_scanned(state, shard, [donor], scans) for donor in donors)

    monkeypatch.setattr(events, "has_scanned", hasty)
    assert notices("is only on")


def test_shards_that_are_rebuilt_get_copies(monkeypatch: Patch) -> None:
    def all_of_them(state: RebuildState, shards: Iterable[ShardId]) -> list[ShardId]:
        return [*shards]

    monkeypatch.setattr(events, "targets", all_of_them)
    assert notices("is only on")


def test_what_is_trimmed_is_restored(monkeypatch: Patch) -> None:
    decide = restore.decide

    def forgetful(
        request: RestoreRequest, standing: LogStanding, records: Records, me: NodeId, version: int
    ) -> tuple[RestoreAnswer, list[Change]]:
        return decide(request, standing._replace(trimmed=0), records, me, version)

    monkeypatch.setattr(restore, "decide", forgetful)
    assert notices("which it trimmed", late=True)


def test_restored_copies_are_purged_as_leftovers(monkeypatch: Patch) -> None:
    def unprepared(request: Restore, *_: object) -> tuple[RestoreAnswer, list[Change]]:
        return Stored(), [Put(request.record)]

    monkeypatch.setattr(restore, "_restore", unprepared)
    assert notices("is only on|copies overlap", first=202)


def test_shards_that_are_refilled_are_not_asked_what_they_have(monkeypatch: Patch) -> None:
    def trusting(
        self: _Donor, shards: Collection[ShardId], request: RestoreRequest
    ) -> Steps[dict[ShardId, DonorAnswer]]:
        if isinstance(request, Reassign) and self._order.absent.intersection(shards):
            return dict.fromkeys(shards, Stored())
        return (yield from ask(self, shards, request))

    ask = _Donor._ask
    monkeypatch.setattr(_Donor, "_ask", trusting)
    assert notices("is only on|is rebuilt, and node")


def test_requests_of_older_versions_are_not_refused(monkeypatch: Patch) -> None:
    decide = restore.decide

    def careless(
        request: RestoreRequest, standing: LogStanding, records: Records, me: NodeId, version: int
    ) -> tuple[RestoreAnswer, list[Change]]:
        return decide(request, standing, records, me, 0)

    monkeypatch.setattr(restore, "decide", careless)
    assert notices("do not name", first=704, late=True)


def test_shards_count_as_rebuilt_although_that_is_not_certain(monkeypatch: Patch) -> None:
    monkeypatch.setattr(plan, "uncertain", lambda *_: [])
    assert notices("is said to be lost|is not shown", disaster=True)


def test_shards_leave_nodesets_of_which_that_is_not_certain(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RebuildWorld, "_kept", lambda self, shard: [])
    assert notices(r"left .* is only on", disaster=True, partly=True)


def test_what_donors_left_out_counts_as_rebuilt(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RebuildWorld, "_is_left_out", lambda self, shard: False)
    assert notices("is only on", partly=True)


def test_a_loss_is_known_by_the_nodesets_only(monkeypatch: Patch) -> None:
    """Nodesets are narrowed, and the loss is forgotten then."""
    repair = RebuildWorld._repair_nodesets

    def forgetful(self: RebuildWorld) -> None:
        repair(self)
        lost = {shard: node.lost_through for shard, node in self.nodes.items()}
        self.lossy = set(log_state.lossy_epochs(self.state, lost))

    monkeypatch.setattr(RebuildWorld, "_repair_nodesets", forgetful)
    assert notices("operators are not told", disaster=True)
