"""Check the copies of nodes that crashed: which nodes that needs, and what is lost. Pure.

A node that crashed gets what it forgot from other shards that have it (comparison.py). If those
that did not crash and can be asked are an f-majority of an epoch, every record of it is on one of
them, and the rest need not be there. Otherwise all are needed, and entries may be on no shard any
more. The end of an epoch says where its records are: everywhere up to its LNG (last known good
offset), and above it where recovery left no mark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from loomlog.core.copyset.comparison import PART_BYTES
from loomlog.core.copyset.messages import Delivered, EpochEnd, LogState, Read
from loomlog.core.copyset.nodeset import node_of
from loomlog.core.copyset.procedures import Exchange, Steps
from loomlog.core.copyset.record import Epoch, Kind, Lsn, epoch_of, make
from loomlog.core.requests import Ask
from loomlog.types import LogId, NodeId, ShardId


class Check(NamedTuple):
    """The check of nodes that crashed since recovered epochs began."""

    awaited: tuple[ShardId, ...]  # have to be there first
    shards: tuple[ShardId, ...]  # compare their records with those of the nodes
    epochs: tuple[Epoch, ...]  # entries of these may be on no shard


def check_of(
    state: LogState,
    crashed: Collection[NodeId],
    there: Collection[ShardId],
    given_up: Collection[ShardId] = (),
) -> Check:
    """Return how to check nodes that crashed. The shards that are `there` can be asked, and lost
    nothing that they know of. Those that are `given_up` never have again what they had."""
    awaited: set[ShardId] = set()
    shards: set[ShardId] = set()
    epochs = []
    for end in state.ends:
        metadata = state.metadata_of(end.epoch)
        checked = {shard for shard in metadata.shards if node_of(shard) in crashed}
        if not checked or not any(_ranges(end, state.trimmed)):
            continue
        here = set(metadata.shards).intersection(there)
        shards |= here
        awaited |= checked - here
        if not metadata.is_f_majority(here - checked):
            awaited |= set(metadata.shards) - here
            epochs.append(end.epoch)
    awaited.difference_update(given_up)
    if awaited:
        epochs = []
    return Check(tuple(sorted(awaited)), tuple(sorted(shards)), tuple(epochs))


def lost_epochs(
    log: LogId, state: LogState, epochs: Collection[Epoch], gone: Collection[ShardId] = ()
) -> Steps[list[Epoch] | None]:
    """Return those of the recovered epochs that have entries which no shard has; None: some shards
    do not tell. Those that are `gone` with what they had need not tell. Others that are rebuilt
    must: one that is drained has its copies, and one that is away may return with them."""
    lost = []
    for end in state.ends:
        if end.epoch not in epochs:
            continue
        shards = state.metadata_of(end.epoch).shards
        for first, last in _ranges(end, state.trimmed):
            is_covered = yield from _is_covered(log, shards, gone, first, last)
            if is_covered is None:
                return None
            if not is_covered:
                lost.append(end.epoch)
                break
    return lost


def _ranges(end: EpochEnd, trimmed: Lsn) -> Iterator[tuple[Lsn, Lsn]]:
    """Yield where the records of an epoch are that are not trimmed."""
    for first, last in ((1, end.lng), *end.found):
        begin, until = make(end.epoch, first), make(end.epoch, min(last, end.last))
        if (begin := max(begin, trimmed + 1)) <= until:
            yield begin, until


def _is_covered(
    log: LogId, shards: Sequence[ShardId], gone: Collection[ShardId], first: Lsn, last: Lsn
) -> Steps[bool | None]:
    """Return whether every LSN of [first, last], which is of one epoch, is on some shard; None: one
    does not tell."""
    looked = dict.fromkeys(shards, first)  # up to where
    spans: list[tuple[Lsn, Lsn]] = []
    while first <= last:
        slowest = min(looked.values())
        if first < slowest:
            return False
        asked = [shard for shard, lsn in looked.items() if lsn == slowest]
        read = Read(log, slowest, last, PART_BYTES, everything=True, batches=False)
        answers = yield Exchange([Ask(shard, read) for shard in asked])
        for shard, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, Delivered) or answer.next_lsn <= slowest:
                if shard not in gone:
                    return None
                looked[shard] = last + 1
                continue
            if answer.lost_through >= epoch_of(last) and shard not in gone:
                return None
            looked[shard] = answer.next_lsn
            spans += [(r.first, r.last) for r in answer.records if r.kind is Kind.DATA]
            spans.append((0, answer.trimmed))
        for begin, until in sorted(spans):
            if begin <= first <= until:
                first = until + 1
        spans = [span for span in spans if span[1] >= first]
    return True
