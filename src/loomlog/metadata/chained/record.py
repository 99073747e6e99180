"""The record of a loglet of protocol `chained`, as the metadata store keeps it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from loomlog.core.chained.chain import Projection, Replica
from loomlog.types import Glsn, LogId, StreamId


@dataclass(frozen=True, slots=True)
class ChainedRecord:
    """A loglet of protocol `chained`. It outlives its segment until all replicas are removed."""

    loglet: LogId
    log_id: LogId
    stream_id: StreamId  # of the one stream that its segment shows
    projection: Projection  # in force; before the segment begins, `first` is 0
    made: bool = False  # its replicas exist and are sealed; until then it may be recreated
    joining: tuple[Replica, ...] = ()  # are being filled
    dropping: tuple[Replica, ...] = ()  # are to be removed from their nodes
    trimmed: Glsn = 0  # on all replicas

    def __post_init__(self) -> None:
        """Convert the plain tuples of a stored record."""
        object.__setattr__(self, "projection", _projection(self.projection))
        for name in ("joining", "dropping"):
            object.__setattr__(self, name, tuple(Replica(*r) for r in getattr(self, name)))

    @property
    def begun(self) -> bool:
        return self.projection.first > 0

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Return all replicas that may exist on any node."""
        return (*self.projection.replicas, *self.joining, *self.dropping)


def _projection(fields: Projection) -> Projection:
    projection = Projection(*fields)
    chains = tuple(tuple(Replica(*r) for r in chain) for chain in projection.chains)
    return projection._replace(chains=chains)
