"""Look into the keepers of a running metadata repository."""

from __future__ import annotations

from loomlog.metadata.ordered.keeper import OrderedKeeper
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.metadata.server import MetadataRepository


def ordered_keeper(repository: MetadataRepository) -> OrderedKeeper:
    assert repository.term is not None
    keeper = repository.term.keepers["ordered"]
    assert isinstance(keeper, OrderedKeeper)
    return keeper


def stream_records(repository: MetadataRepository) -> StreamRecords:
    return ordered_keeper(repository).records
