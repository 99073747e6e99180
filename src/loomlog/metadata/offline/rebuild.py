"""Rebuild the rounds from the nodes, when every round log is lost.

The protocol that has rounds decides what is certain (metadata/registry.py names it). Nothing is
written before everything is certain. Then the nodes that an operator gave up are written, and last,
by the caller, the rounds: no metadata repository starts before those exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from loomlog.core.history import Doubt
from loomlog.errors import Corrupt, NotFound
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import ClusterRecord, decode
from loomlog.metadata.offline.collector import Collector
from loomlog.metadata.offline.outdated import Past
from loomlog.metadata.store.contract import MetaStore
from loomlog.metadata.store.memory import MemoryStore
from loomlog.types import Glsn, NodeId, StreamId


@dataclass(frozen=True, slots=True)
class LogFinding:
    """The findings about a log."""

    name: str
    tail: Glsn | None  # None: its newest segment has no rounds; its nodes know its end
    doubts: tuple[Doubt, ...]
    rounds: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings about a cluster."""

    logs: tuple[LogFinding, ...]
    absent: dict[
        NodeId, tuple[StreamId, ...]
    ]  # did not register, and the streams that wait for them
    given_up: dict[NodeId, tuple[StreamId, ...]]  # did not have to register
    outdated: str  # why the metadata is too old; empty: it is not
    epoch: int  # above those of all leaders

    @property
    def certain(self) -> bool:
        return not (self.absent or self.outdated or any(log.doubts for log in self.logs))

    @property
    def records(self) -> list[bytes]:
        """Return the records of the new round log."""
        return [round_ for log in self.logs for round_ in log.rounds]


class RoundRebuild(ABC):
    """Asks nodes about lost rounds. Created by `listening`, or by `load`."""

    def __init__(self, catalog: Catalog, collector: Collector, past: Past) -> None:
        self._catalog = catalog
        self._collector = collector
        self._past = past

    @classmethod
    @asynccontextmanager
    async def listening(cls, store: MetaStore, address: str) -> AsyncIterator[Self]:
        """Act as the metadata repository during the block. The store is only read."""
        items = await store.list("")
        if "cluster" not in items:
            raise NotFound("there is no metadata of a cluster: without it nothing can be rebuilt")
        values = {key: item.value for key, item in items.items()}
        cluster = decode(ClusterRecord, "cluster", values["cluster"])
        copy, catalog = await copied(values, cluster)
        collector = Collector(cluster, catalog.nodes)
        await collector.start(address)
        try:
            yield await cls.load(copy, catalog, collector, Past(items))
        finally:
            await collector.close()

    @classmethod
    @abstractmethod
    async def load(
        cls, store: MetaStore, catalog: Catalog, collector: Collector, past: Past
    ) -> Self:
        """Read the records of the protocol. `past` is according to the metadata as it is stored."""

    @property
    def address(self) -> str:
        return self._collector.address

    def check_nodes(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self._catalog.node(node)

    @abstractmethod
    async def examine(
        self,
        *,
        without: Collection[NodeId],
        was_away: Collection[NodeId] = (),
        timeout_s: float,
        waiting: Callable[[list[NodeId]], None],
    ) -> Findings:
        """Wait for all nodes with replicas, except those in `without`, and ask them. Nodes that do
        not register in time are absent. Nodes that `was_away` names have no older copies of their
        data, even if they know less than others."""

    @staticmethod
    @abstractmethod
    async def give_up(store: MetaStore, nodes: Collection[NodeId]) -> None:
        """Record that the cluster continues without these nodes."""


async def copied(
    values: Mapping[str, bytes], cluster: ClusterRecord
) -> tuple[MemoryStore, Catalog]:
    """Return a copy of the metadata, so that loading may complete what a crash interrupted."""
    copy = MemoryStore()
    for key, value in values.items():
        await copy.compare_and_swap(key, 0, value)
    return copy, await Catalog.load(copy, cluster.cluster_id, _no_secret)


def _no_secret() -> str:
    raise Corrupt("the cluster has no record")
