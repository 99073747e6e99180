"""Short procedures: fence older sequencers, mend damaged copies, purge void records, resolve open
appends, look for repeated ones. Pure.

Like recovery (recovery.py) they are generators of requests to nodes and to the epoch store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from loomlog.core import requests
from loomlog.core.copyset.evidence import is_lost, knows_of_loss, marked_at
from loomlog.core.copyset.messages import (
    Delivered,
    Done,
    EpochStoreRequest,
    FindBatch,
    FoundBatch,
    GetState,
    LogState,
    Mend,
    Miss,
    NodeAnswer,
    NodeRequest,
    Preempted,
    Purge,
    Read,
    Seal,
    SealedAt,
    Stored,
    Trim,
)
from loomlog.core.copyset.nodeset import Authority, shuffled
from loomlog.core.copyset.record import (
    Epoch,
    Kind,
    Lsn,
    Offset,
    Record,
    epoch_of,
    last_of,
    offset_of,
)
from loomlog.core.requests import Ask, Lost, Outcome, Service
from loomlog.types import LogId, ShardId

CopysetAsk: TypeAlias = Ask[ShardId | Service, NodeRequest | EpochStoreRequest]
Answer: TypeAlias = NodeAnswer | LogState | Lost
Answers: TypeAlias = Mapping[ShardId, Answer]


def _never(answers: Answers) -> bool:
    return False


class Exchange(NamedTuple):
    """Requests that are sent all at once. They are answered in the same order."""

    asks: Sequence[CopysetAsk]
    enough: Callable[[Answers], bool] = _never  # then wait only briefly for the rest


Steps: TypeAlias = requests.Steps[Exchange, Sequence[Answer], Outcome]


def ask_each(
    nodes: Sequence[ShardId],
    request: NodeRequest,
    enough: Callable[[Answers], bool] = _never,
) -> Steps[dict[ShardId, Answer]]:
    """Send the same request to several nodes."""
    answers = yield Exchange([Ask(node, request) for node in nodes], enough)
    return dict(zip(nodes, answers, strict=True))


def ask_store(request: EpochStoreRequest) -> Steps[LogState | None]:
    """Return the state of the log afterwards; None if it is unknown what happened."""
    [answer] = yield Exchange([Ask(Service.METADATA, request)])
    return answer if isinstance(answer, LogState) else None


# ---- fence


_TAKING_NONE: Final = (Authority.EMPTY, Authority.UNAVAILABLE)  # take no records


def fence(
    log: LogId, epoch: Epoch, state: LogState, authority: Mapping[ShardId, Authority]
) -> Steps[dict[ShardId, Lsn] | Preempted | None]:
    """Make sure that sequencers of epochs before `epoch` can have nothing acknowledged any more.
    Return the nodes that have copies of this epoch or a later one, and up to where: unless this
    sequencer stored them itself, the epoch was taken before. None: too few nodes answered, try
    again.

    An append that begins after another was acknowledged comes behind it. A sequencer that was
    replaced without knowing it would break that. So its successor takes and stores appends at once,
    but acknowledges none before the fence, which is one round trip before recovery."""
    unclean = {state.metadata_of(older) for older in range(state.last_clean + 1, epoch)}
    away = {node for node, its in authority.items() if its in _TAKING_NONE}

    def is_done(answers: Answers) -> bool:
        sealed = {node for node, answer in answers.items() if isinstance(answer, SealedAt)}
        return all(metadata.is_f_majority(sealed | away) for metadata in unclean)

    nodesets = {*unclean, state.metadata_of(epoch)}  # its own nodes know whether the epoch is new
    nodes = sorted({node for metadata in nodesets for node in metadata.shards} - away)
    answers = yield from ask_each(nodes, Seal(log, epoch - 1, wave=0), is_done)
    preemptions = (answer for answer in answers.values() if isinstance(answer, Preempted))
    if (preempted := next(preemptions, None)) is not None:
        return preempted
    sealed = {node: answer for node, answer in answers.items() if isinstance(answer, SealedAt)}
    newer = {node: answer.newer for node, answer in sealed.items() if answer.newer}
    return newer if is_done(answers) else None


# ---- mend


class Mending(Enum):
    """The result for a damaged copy."""

    MENDED = "mended"
    NOT_NOW = "not now"  # a shard that may have the batch did not send it
    LOST = "lost"  # no other shard has it any more, or theirs is damaged


def mend(
    log: LogId,
    head: Record,
    me: ShardId,
    state: LogState | None = None,
    gone: Mapping[ShardId, Epoch] | None = None,
) -> Steps[Mending]:
    """Give the damaged copy of a record here its batch back, from another shard of its copyset. In
    a recovered epoch, any other shard of the nodeset may have it, and nobody else gets it later.
    Shards that are `gone`, up to an epoch, are away and lost what they had."""
    read = Read(log, head.first, head.last, bytes_max=1, everything=True)
    nodeset = _settled_nodeset(state, head.epoch)
    copyset = shuffled(head.copyset, head.first)
    result = Mending.LOST
    for shard in dict.fromkeys((*copyset, *nodeset)):
        if shard == me:
            continue
        answers = yield from ask_each([shard], read)
        answer = answers[shard]
        for record in answer.records if isinstance(answer, Delivered) else ():
            stored = yield from ask_each([me], Mend(log, record))
            if isinstance(stored[me], Stored):
                return Mending.MENDED
        is_gone = gone is not None and gone.get(shard, 0) >= head.epoch
        is_settled = isinstance(answer, Delivered) and answer.next_lsn > head.last
        is_known = is_settled if shard in nodeset else bool(nodeset)  # or it left the nodeset
        if not (is_gone or is_known or _has_lost(answer, head.first)):
            result = Mending.NOT_NOW
    return result


def _settled_nodeset(state: LogState | None, epoch: Epoch) -> tuple[ShardId, ...]:
    """Return the shards that may have a record of a recovered epoch; none of another epoch."""
    if state is None or not state.history[0].since <= epoch <= state.last_clean:
        return ()
    return state.metadata_of(epoch).shards


def _has_lost(answer: Answer, lsn: Lsn) -> bool:
    """Return whether a shard said that it has no sound copy any more. One that never had a copy
    says nothing about others: they may have got theirs later."""
    return isinstance(answer, Delivered) and (
        answer.lost_through >= epoch_of(lsn)
        or any(first <= lsn <= last for first, last in answer.damaged)
    )


# ---- purge


def purge(log: LogId, epoch: Epoch, me: ShardId, lng: Offset) -> Steps[str]:
    """Remove records that the recovery of an epoch made void while this node was away. Return why
    that was not possible now; "" if it is done. `lng` is the one that this node knows of the epoch:
    if it shows that acknowledged records were made void, that is recorded first.

    Until then the node shows nothing of later epochs: `storage.epoch_to_purge` says when it is
    time. After each purge the release that waits for it is decided again."""
    state = yield from ask_store(GetState(log))
    if state is None:
        return "the epoch store does not answer"
    end = state.end_of(epoch)
    if end is None:
        return f"epoch {epoch} is not recovered yet"
    if knows_of_loss(end, me, lng):
        state = yield from ask_store(Miss(log, epoch, lng))
        end = None if state is None else state.end_of(epoch)
        if state is None or end is None or knows_of_loss(end, me, lng):
            return "the epoch store does not note a loss"
    requests: list[NodeRequest] = [Purge(log, end)]
    if last_of(epoch) <= state.trimmed:
        # Its end is forgotten: the node must know of the trim before it calls the epoch empty.
        requests.insert(0, Trim(log, state.trimmed))
    for request in requests:
        [answer] = yield Exchange([Ask(me, request)])
        if not isinstance(answer, Done):
            return "this node does not answer"
    return ""


# ---- resolve


@dataclass(frozen=True, slots=True)
class Appended:
    """The record is at its LSN, as if it had been acknowledged."""

    record: Record  # without its batch


@dataclass(frozen=True, slots=True)
class Nowhere:
    """The record is not in the log, and never will be: append it again."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The outcome is unknown: the record may be in the log."""

    reason: str
    for_good: bool = False  # otherwise try again, after a moment


Resolution: TypeAlias = Appended | Nowhere | Unresolved


def resolve(log: LogId, lsn: Lsn) -> Steps[Resolution]:
    """Find the outcome of an append that its sequencer left open at `lsn`.

    An LSN is given to one append only: a batch at that LSN is the one appended. Once its epoch is
    recovered the answer never changes."""
    state = yield from ask_store(GetState(log))
    if state is None:
        return Unresolved("the epoch store does not answer")
    if state.trimmed >= lsn:
        return Unresolved("what was there is trimmed", for_good=True)
    end = state.end_of(epoch_of(lsn))
    if end is None:
        return Unresolved(f"epoch {epoch_of(lsn)} is not recovered yet")
    if offset_of(lsn) > end.last and end.exact:
        return Nowhere()
    if is_lost(end, offset_of(lsn)) or offset_of(lsn) > end.last:
        return Unresolved("its copies may be lost", for_good=True)
    is_marked = marked_at(end, offset_of(lsn)).is_marked
    if is_marked:
        return Nowhere()

    def judged(answers: Answers) -> Resolution | None:
        return _judge(lsn, answers, are_marks_void=is_marked is False)

    nodes = state.metadata_of(epoch_of(lsn)).shards
    look = Read(log, lsn, lsn, bytes_max=1, everything=True, batches=False)
    answers = yield from ask_each(nodes, look, lambda answers: judged(answers) is not None)
    return judged(answers) or Unresolved("the nodes that know do not answer")


def _judge(lsn: Lsn, answers: Answers, *, are_marks_void: bool) -> Resolution | None:
    delivered = [answer for answer in answers.values() if isinstance(answer, Delivered)]
    records = [record for answer in delivered for record in answer.records]
    if are_marks_void:
        records = [record for record in records if record.kind is Kind.DATA]
    if records:
        newest = max(records, key=lambda record: record.precedence)
        return Appended(newest) if newest.kind is Kind.DATA else Nowhere()
    if any(answer.trimmed >= lsn for answer in delivered):
        return Unresolved("what was there is trimmed", for_good=True)
    return None


# ---- repeated appends


def look_back(
    log: LogId, producer_id: int, sequence: int, state: LogState
) -> Steps[FoundBatch | None]:
    """Find where a repeated append was placed before, in older epochs: return where the batch was
    to be stored, and whether these are all places. None: too few nodes answered.

    Every record that counts is on R nodes, and each of them has seen its batch. If enough nodes
    have certainly not seen it, the batch is nowhere."""

    def are_enough(nodes: Collection[ShardId]) -> bool:
        return all(metadata.is_f_majority(nodes) for metadata in state.history)

    def is_certain(answers: Answers) -> bool:
        found = ((node, a) for node, a in answers.items() if isinstance(a, FoundBatch))
        return are_enough([node for node, answer in found if answer.certain])

    answers = yield from ask_each(
        state.all_shards, FindBatch(log, producer_id, sequence), is_certain
    )
    found = {node: a for node, a in answers.items() if isinstance(a, FoundBatch)}
    if not are_enough(found):
        return None
    lsns = {lsn for answer in found.values() for lsn in answer.lsns}
    return FoundBatch(tuple(sorted(lsns)), is_certain(found))
