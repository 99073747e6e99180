"""How the nodes that recovery writes to come to have what was settled. Pure.

Every piece gets one copyset: the nodes that have a copy there, be it the right one or another, and
more of them until it is fully stored. All copies are of one wave, above all that is there. So when
it is done, nothing else is left on these nodes, and whoever looks later finds the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import Lsn, make
from loomlog.core.copyset.record import Kind, Record
from loomlog.core.copyset.settling import Digests, Piece, overlapping, piece_of
from loomlog.core.copyset.shuffle import shuffled
from loomlog.types import NodeId


class Mutation(NamedTuple):
    """What the nodes of one copyset are told."""

    record: Record  # without its batch
    amend: tuple[NodeId, ...]  # they have the batch
    store: tuple[NodeId, ...]
    sources: tuple[NodeId, ...]  # who has the batch; none: it has none

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
    """`like`: a record with all that the mutations have in common, and the timestamp of marks."""
    found = {node: [piece_of(record) for record in digest] for node, digest in digests.items()}
    times = {record.first: record.timestamp_us for digest in digests.values() for record in digest}
    mutations = []
    for piece in pieces:
        sources = tuple(node for node in found if _has(found[node], piece))
        touched = {n for n in writable if overlapping(found[n], piece.first, piece.last)}
        first = make(like.epoch, piece.first)
        copyset = completed(touched, writable, metadata, first)
        amend = tuple(node for node in copyset if node in sources)
        record = like._replace(
            first=first,
            count=piece.last - piece.first + 1,
            kind=piece.kind,
            timestamp_us=times[first] if piece.kind is Kind.DATA else like.timestamp_us,
            copyset=copyset,
        )
        store = tuple(node for node in copyset if node not in sources)
        mutations.append(Mutation(record, amend, store, sources))
    return mutations


def completed(
    touched: Collection[NodeId],
    writable: Collection[NodeId],
    metadata: EpochMetadata,
    lsn: Lsn,
) -> tuple[NodeId, ...]:
    """A copyset with all of `touched`; if they are too few for one, all that are writable."""
    chosen = set(touched)
    domain_of = {member.node_id: member.domain for member in metadata.nodeset}
    for node in shuffled(set(writable) - chosen, lsn):
        domains = {domain_of[node] for node in chosen}
        if len(domains) < metadata.domains_spanned and domain_of[node] not in domains:
            chosen.add(node)
    for node in shuffled(set(writable) - chosen, lsn):
        if not metadata.can_hold_a_copyset(chosen):
            chosen.add(node)
    return tuple(sorted(chosen))


def _has(pieces: Sequence[Piece], piece: Piece) -> bool:
    return piece.kind is Kind.DATA and piece in overlapping(pieces, piece.first, piece.last)
