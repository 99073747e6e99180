"""How a node that was away gets rid of what recovery, without it, made void. Pure.

Until then it shows nothing of later epochs: `storage.epoch_to_purge` says when it is time. After
each purge the release that waits for it is decided again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from loomlog.core.copyset.asking import Answers, Ask, Round, Steps, ask_each, ask_store
from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import Epoch
from loomlog.core.copyset.messages import Done, EpochEnd, GetEnd, GetState, NotHere, Purge
from loomlog.types import LogId, NodeId


@dataclass(frozen=True, slots=True)
class Purged:
    end: EpochEnd


@dataclass(frozen=True, slots=True)
class NotPurged:
    """Try again, after a moment."""

    reason: str


def purge(
    log: LogId, epoch: Epoch, me: NodeId, authority: Mapping[NodeId, Authority]
) -> Steps[Purged | NotPurged]:
    """Learn what became of an epoch, and carry it out on this node."""
    state = yield from ask_store(GetState(log))
    if state is None:
        return NotPurged("the epoch store does not answer")
    if state.last_clean < epoch:
        return NotPurged(f"epoch {epoch} is not recovered yet")
    end = yield from _find_end(log, epoch, me, state.metadata_of(epoch), authority)
    if isinstance(end, NotPurged):
        return end
    [answer] = yield Round([Ask(me, Purge(log, end))])
    return Purged(end) if isinstance(answer, Done) else NotPurged("this node does not answer")


def _find_end(
    log: LogId,
    epoch: Epoch,
    me: NodeId,
    metadata: EpochMetadata,
    authority: Mapping[NodeId, Authority],
) -> Steps[EpochEnd | NotPurged]:
    """Some may know only of a recovery that was repeated by another one. The last one told all the
    nodes of a copyset; so one of an f-majority knows, and its end has the highest precedence."""
    known = {node: authority.get(node, Authority.FULL) for node in metadata.nodes}

    def enough(answers: Answers) -> bool:
        there = {me, *(n for n, a in answers.items() if isinstance(a, EpochEnd | NotHere))}
        return _is_enough(there, metadata, known)

    peers = [node for node in metadata.nodes if node != me]
    answers = yield from ask_each(peers, GetEnd(log, epoch), enough)
    ends = [answer for answer in answers.values() if isinstance(answer, EpochEnd)]
    if not ends or not enough(answers):
        return NotPurged(f"too few nodes of epoch {epoch} tell how it ended")
    return max(ends, key=lambda end: end.precedence)


def _is_enough(
    there: Collection[NodeId], metadata: EpochMetadata, authority: Mapping[NodeId, Authority]
) -> bool:
    if metadata.is_f_majority([n for n in there if authority.get(n) is Authority.FULL]):
        return True
    awaited = (Authority.FULL, Authority.UNDERREPLICATED)
    return all(node in there for node, known in authority.items() if known in awaited)
