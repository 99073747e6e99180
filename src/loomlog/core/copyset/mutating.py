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
    """Of each piece, who has a copy there; if it is the piece itself, then that one."""
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
    """A copyset with all of `touched`; if they are too few for one, all that are writable."""
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
