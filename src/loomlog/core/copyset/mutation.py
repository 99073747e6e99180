"""Plan the writes that bring the result of recovery to the nodes. Pure.

Every piece gets one copyset: the nodes that have a copy there, right or wrong, and more of them
until it is fully stored. All copies get one wave, above all that is there. So nothing else is left
on these nodes afterwards, and a later recovery finds the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import Lsn, make
from loomlog.core.copyset.placement import shuffled
from loomlog.core.copyset.record import Kind, Record
from loomlog.core.copyset.settlement import Digests, Piece, overlapping, piece_of
from loomlog.types import NodeId


class Mutation(NamedTuple):
    """One change, to be sent to the nodes of one copyset."""

    record: Record  # without its batch
    amend: tuple[NodeId, ...]  # have the batch
    store: tuple[NodeId, ...]
    sources: tuple[NodeId, ...]  # have the batch; empty: the record has none

    @property
    def needs_batch(self) -> bool:
        return bool(self.store and self.sources)


def plan(
    pieces: Sequence[Piece],
    digests: Digests,
    writable: Collection[NodeId],
    metadata: EpochMetadata,
    like: Record,
) -> list[Mutation]:
    """Return the mutations for all pieces. `like` is a record with all that they have in common,
    and the timestamp of marks."""
    mutations = []
    for piece, found in zip(pieces, _look_up(pieces, digests), strict=True):
        first = make(like.epoch, piece.first)
        copyset = completed(found.keys() & set(writable), writable, metadata, first)
        sources = {node: copy for node, copy in found.items() if _has_batch(copy, piece)}
        times = [copy.timestamp_us for copy in sources.values()]
        record = like._replace(
            first=first,
            count=piece.last - piece.first + 1,
            kind=piece.kind,
            timestamp_us=max(times, default=like.timestamp_us),
            copyset=copyset,
        )
        mutations.append(_mutation(record, tuple(sources)))
    return mutations


def _look_up(pieces: Sequence[Piece], digests: Digests) -> list[dict[NodeId, Record]]:
    """Return for each piece the nodes with a copy there, and the copy if it is of that piece."""
    found: list[dict[NodeId, Record]] = [{} for _ in pieces]
    for node, digest in digests.items():
        for record in digest:
            for index in overlapping(pieces, piece_of(record)):
                if node not in found[index] or _has_batch(record, pieces[index]):
                    found[index][node] = record
    return found


def _has_batch(copy: Record, piece: Piece) -> bool:
    return piece.kind is Kind.DATA and piece_of(copy) == piece


def _mutation(record: Record, sources: tuple[NodeId, ...]) -> Mutation:
    amend = tuple(node for node in record.copyset if node in sources)
    store = tuple(node for node in record.copyset if node not in sources)
    return Mutation(record, amend, store, sources)


def completed(
    touched: Collection[NodeId],
    writable: Collection[NodeId],
    metadata: EpochMetadata,
    lsn: Lsn,
) -> tuple[NodeId, ...]:
    """Return a copyset with all of `touched`, or all writable nodes if they are too few for one."""
    chosen = set(touched)
    if metadata.can_hold_a_copyset(chosen):
        return tuple(sorted(chosen))
    domain_of = {member.node_id: member.domain for member in metadata.nodeset}
    domains = {domain_of[node] for node in chosen}
    others = shuffled(set(writable) - chosen, lsn)
    for node in others:
        if len(domains) < metadata.domains_wanted and domain_of[node] not in domains:
            chosen.add(node)
            domains.add(domain_of[node])
    rest = [node for node in others if node not in chosen]
    chosen.update(rest[: max(0, metadata.replication - len(chosen))])
    return tuple(sorted(chosen))
