"""That no older sequencer can have a record acknowledged any more. Pure.

An append that begins after another was acknowledged stands behind it. A sequencer that was replaced
and does not know would break that. So its successor takes appends and stores them at once, but
acknowledges none before this is done: one round trip, before recovery and part of no attempt of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from loomlog.core.copyset.asking import Answers, Steps, ask_each
from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.lsn import Epoch
from loomlog.core.copyset.messages import LogState, Preempted, Seal, SealedAt
from loomlog.types import LogId, NodeId

_TAKING_NONE: Final = (Authority.EMPTY, Authority.UNAVAILABLE)  # no records, from nobody


def fence(
    log: LogId, epoch: Epoch, state: LogState, authority: Mapping[NodeId, Authority]
) -> Steps[bool | Preempted]:
    """By the sequencer of `epoch`. False: too few nodes answered, try again."""
    unclean = {state.metadata_of(older) for older in range(state.last_clean + 1, epoch)}
    away = {node for node, its in authority.items() if its in _TAKING_NONE}

    def is_done(answers: Answers) -> bool:
        sealed = {node for node, answer in answers.items() if isinstance(answer, SealedAt)}
        return all(metadata.is_f_majority(sealed | away) for metadata in unclean)

    nodes = sorted({node for metadata in unclean for node in metadata.nodes} - away)
    answers = yield from ask_each(nodes, Seal(log, epoch - 1, wave=0), is_done)
    preempted = (answer for answer in answers.values() if isinstance(answer, Preempted))
    return next(preempted, None) or is_done(answers)
