"""Bring restored metadata up to date with what the storage nodes know: `loom metadata catch-up`.

A stand-in asks the nodes for their state (offline/collector.py). draft.py, the drafts of the
protocols and core/ordered/rebuild.py decide what follows from it. Nothing is written before
everything is certain. The history is written last: until it names the runs that the nodes know, no
metadata repository uses this metadata. Nothing is deleted on any node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from loomlog.core.leases import EPOCHS_SKIPPED
from loomlog.errors import NotFound
from loomlog.metadata.catalog.records import (
    HISTORY,
    ClusterRecord,
    HistoryRecord,
    MetadataRecord,
    decode,
    encode,
)
from loomlog.metadata.nodes.registration import record_of
from loomlog.metadata.offline.collector import Collector
from loomlog.metadata.offline.outdated import Past
from loomlog.metadata.offline.rebuild import Findings, copied
from loomlog.metadata.offline.transfer import MovableStore
from loomlog.metadata.registry import DRAFTS, REBUILD
from loomlog.metadata.rollback.draft import Draft
from loomlog.metadata.rollback.gate import fields_of, seen_from_wire
from loomlog.metadata.store.contract import StoredItem
from loomlog.types import LogId, NodeId

VERSIONS_ABOVE: Final = 1_000_000  # for changes that no node knows of


@dataclass(frozen=True, slots=True)
class CatchUpPlan:
    """The metadata after the catch-up."""

    changes: dict[str, MetadataRecord | None]
    notes: tuple[str, ...]  # what is restored, and what cannot be restored
    reasons: tuple[str, ...]  # why the plan must not be carried out; empty: it may
    rounds: Findings

    @property
    def certain(self) -> bool:
        return not self.reasons and self.rounds.certain


class MetadataCatchUp:
    """Plans and writes the update of restored metadata. Created by `catching_up`."""

    def __init__(
        self, store: MovableStore, items: dict[str, StoredItem], collector: Collector
    ) -> None:
        self._store = store
        self._items = items
        self._past = Past(items)
        self._collector = collector

    @property
    def address(self) -> str:
        return self._collector.address

    async def plan(
        self,
        *,
        without: Collection[NodeId],
        leave: Collection[LogId],
        deleted: Collection[str],
        was_away: Collection[NodeId] = (),
        timeout_s: float,
        waiting: Callable[[list[NodeId]], None],
    ) -> CatchUpPlan:
        """Ask all nodes except those in `without`. `leave` are unknown loglets of unknown logs,
        `deleted` are logs that no node has because they were deleted since, and nodes in `was_away`
        know less than others only because they were away."""
        known = self._past.nodes
        wanted = [node for node in known if node not in without]
        await self._collector.wait_for(wanted, timeout_s, waiting)
        callers = self._collector.callers
        absent = [node for node in wanted if node not in callers]
        protocols = [new_draft() for new_draft in DRAFTS.values()]
        for caller in list(callers.values()):
            holdings = await self._collector.holdings(caller)
            for protocol in protocols:
                protocol.add(caller, holdings)
        lease_epochs = self._past.record.lease_epochs + EPOCHS_SKIPPED
        draft = Draft(self._items, protocols, [*known, *callers], lease_epochs)
        draft.make(
            {n: record_of(caller.registration) for n, caller in callers.items()}, leave, deleted
        )
        draft.doubt_ends(self._past.outdated(callers, was_away), without)
        changes = draft.changes
        seen = [seen_from_wire(caller.registration.known_run) for caller in callers.values()]
        history, before = self._past.history.adopt(seen), self._past.record
        gone = tuple(dict.fromkeys((*before.without, *without)))
        changes[HISTORY] = HistoryRecord(fields_of(history), gone, "", lease_epochs)
        rounds = await self._rebuild_rounds(changes, without, was_away)
        draft.seal_changed()
        reasons = [f"node {node} did not come: start its vsn, or give it up" for node in absent]
        return CatchUpPlan(changes, tuple(draft.notes), (*reasons, *draft.reasons), rounds)

    async def write(self, plan: CatchUpPlan) -> None:
        """Write the plan, except for the rounds and the history."""
        callers = self._collector.callers.values()
        known = (caller.registration.known_run.revision for caller in callers)
        version = max([await self._store.last_version(), *known])
        await self._store.raise_versions(version + VERSIONS_ABOVE)
        for key, record in plan.changes.items():
            if key != HISTORY:
                await self._put(key, None if record is None else encode(record))
        for key, item in self._items.items():  # so that swaps based on lost changes conflict
            if key.startswith("register/"):
                await self._put(key, item.value)

    async def finish(self, plan: CatchUpPlan) -> None:
        """Write the history; from then on a metadata repository may start."""
        record = plan.changes[HISTORY]
        assert record is not None
        await self._put(HISTORY, encode(record))

    async def _put(self, key: str, value: bytes | None) -> None:
        item = await self._store.get(key)
        if item is not None or value is not None:
            await self._store.compare_and_swap(key, item.version if item else 0, value)

    async def _rebuild_rounds(
        self,
        changes: Mapping[str, MetadataRecord | None],
        without: Collection[NodeId],
        was_away: Collection[NodeId],
    ) -> Findings:
        """Rebuild the rounds from the drafted records."""
        values = {key: item.value for key, item in self._items.items()}
        values |= {key: encode(record) for key, record in changes.items() if record is not None}
        for key in [key for key, record in changes.items() if record is None]:
            values.pop(key, None)
        cluster = decode(ClusterRecord, "cluster", values["cluster"])
        copy, catalog = await copied(values, cluster)
        rebuild = await REBUILD.load(copy, catalog, self._collector, self._past)
        return await rebuild.examine(
            without=without, was_away=was_away, timeout_s=0, waiting=lambda _: None
        )


@asynccontextmanager
async def catching_up(store: MovableStore, listen: str) -> AsyncIterator[MetadataCatchUp]:
    """Act as the metadata repository until the end of the block."""
    items = await store.list("")
    if "cluster" not in items:
        raise NotFound("there is no metadata of a cluster: nothing can be brought up to date")
    cluster = decode(ClusterRecord, "cluster", items["cluster"].value)
    collector = Collector(cluster)
    await collector.start(listen)
    try:
        yield MetadataCatchUp(store, items, collector)
    finally:
        await collector.close()
