"""Make sure that no older sequencer can have a record acknowledged any more. Pure.

An append that begins after another was acknowledged comes behind it. A sequencer that was replaced
without knowing it would break that. So its successor takes and stores appends at once, but
acknowledges none before the fence, which is one round trip before recovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from loomlog.core.copyset.epoch_metadata import Authority
from loomlog.core.copyset.lsn import Epoch, Lsn
from loomlog.core.copyset.messages import LogState, Preempted, Seal, SealedAt
from loomlog.core.copyset.requests import Answers, Steps, ask_each
from loomlog.types import LogId, NodeId


class Fenced(NamedTuple):
    """The nodes that have copies of this sequencer's epoch or a later one, and up to where. Unless
    it stored them itself, the epoch was taken before."""

    newer: dict[NodeId, Lsn]


_TAKING_NONE: Final = (Authority.EMPTY, Authority.UNAVAILABLE)  # take no records


def fence(
    log: LogId, epoch: Epoch, state: LogState, authority: Mapping[NodeId, Authority]
) -> Steps[Fenced | Preempted | None]:
    """Fence all older sequencers, for that of `epoch`. None: too few nodes answered, try again."""
    unclean = {state.metadata_of(older) for older in range(state.last_clean + 1, epoch)}
    away = {node for node, its in authority.items() if its in _TAKING_NONE}

    def is_done(answers: Answers) -> bool:
        sealed = {node for node, answer in answers.items() if isinstance(answer, SealedAt)}
        return all(metadata.is_f_majority(sealed | away) for metadata in unclean)

    asked = {*unclean, state.metadata_of(epoch)}  # its own nodes know whether the epoch is new
    nodes = sorted({node for metadata in asked for node in metadata.nodes} - away)
    answers = yield from ask_each(nodes, Seal(log, epoch - 1, wave=0), is_done)
    preempted = (answer for answer in answers.values() if isinstance(answer, Preempted))
    if (found := next(preempted, None)) is not None:
        return found
    sealed = {node: answer for node, answer in answers.items() if isinstance(answer, SealedAt)}
    newer = {node: answer.newer for node, answer in sealed.items() if answer.newer}
    return Fenced(newer) if is_done(answers) else None
