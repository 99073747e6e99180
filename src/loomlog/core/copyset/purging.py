"""How a node that was away gets rid of what recovery, without it, made void. Pure.

Until then it shows nothing of later epochs: `storage.epoch_to_purge` says when it is time. After
each purge the release that waits for it is decided again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loomlog.core.copyset.asking import Answers, Ask, Lost, Round, Steps, ask_each, ask_store
from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import OFFSET_MAX, Epoch, Lsn
from loomlog.core.copyset.messages import (
    Done,
    EpochEnd,
    GetEnd,
    GetState,
    NotHere,
    Purge,
    Trim,
)
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
    if epoch < state.history[0].since:
        return (yield from _drop(log, epoch, me, state.trimmed))
    end = yield from _find_end(log, epoch, me, state.metadata_of(epoch), authority)
    if isinstance(end, NotPurged):
        return end
    [answer] = yield Round([Ask(me, Purge(log, end))])
    return Purged(end) if isinstance(answer, Done) else NotPurged("this node does not answer")


def _drop(log: LogId, epoch: Epoch, me: NodeId, trimmed: Lsn) -> Steps[Purged | NotPurged]:
    """All of it is trimmed, and where it was is forgotten: nobody can be asked, nor has to be. The
    node is to know of the trim first: then nobody takes the epoch for an empty one."""
    end = EpochEnd(epoch, lng=0, last=0, seal=epoch, wave=0)
    for request in (Trim(log, trimmed), Purge(log, end)):
        [answer] = yield Round([Ask(me, request)])
        if not isinstance(answer, Done):
            return NotPurged("this node does not answer")
    return Purged(end)


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
        return _is_enough(me, answers, metadata, known)

    peers = [node for node in metadata.nodes if node != me]
    answers = yield from ask_each(peers, GetEnd(log, epoch), enough)
    if not enough(answers):
        return NotPurged(f"too few nodes of epoch {epoch} tell how it ended")
    ends = [answer for answer in answers.values() if isinstance(answer, EpochEnd)]
    return max(ends, key=lambda end: end.precedence, default=_nobody_knows(epoch))


def _is_enough(
    me: NodeId,
    answers: Answers,
    metadata: EpochMetadata,
    authority: Mapping[NodeId, Authority],
) -> bool:
    """An f-majority; or all that there will ever be."""
    told = {me, *(n for n, answer in answers.items() if isinstance(answer, EpochEnd | NotHere))}
    full = {node for node, known in authority.items() if known is Authority.FULL}
    if metadata.is_f_majority(full & told):
        return True
    forgetful = {n for n, known in authority.items() if known is Authority.UNDERREPLICATED}
    there = {me, *(n for n, answer in answers.items() if not isinstance(answer, Lost))}
    return full <= told and forgetful <= there


def _nobody_knows(epoch: Epoch) -> EpochEnd:
    """They have lost their disks: what this node has may be all that is left. It stays, and what
    is missing shows as lost."""
    return EpochEnd(epoch, lng=OFFSET_MAX - 1, last=OFFSET_MAX - 1, seal=epoch, wave=0)
