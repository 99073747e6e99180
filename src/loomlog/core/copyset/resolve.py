"""Find the outcome of an append that its sequencer left open. Pure.

An LSN is given to one append only: a batch at that LSN is the one appended. Once its epoch is
recovered the answer never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from loomlog.core.copyset.lsn import Lsn, epoch_of, offset_of
from loomlog.core.copyset.messages import Delivered, GetState, Read
from loomlog.core.copyset.record import Kind, Record
from loomlog.core.copyset.requests import Answers, Steps, ask_each, ask_store
from loomlog.types import LogId


@dataclass(frozen=True, slots=True)
class Appended:
    """The record is at its LSN, as if it had been acknowledged."""

    record: Record  # without its batch


@dataclass(frozen=True, slots=True)
class Nowhere:
    """The record is not in the log, and never will be: append it again."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    reason: str
    for_good: bool = False  # otherwise try again, after a moment


Resolution: TypeAlias = Appended | Nowhere | Unresolved


def resolve(log: LogId, lsn: Lsn) -> Steps[Resolution]:
    """Find the outcome of the append that was given `lsn`."""
    state = yield from ask_store(GetState(log))
    if state is None:
        return Unresolved("the epoch store does not answer")
    if state.trimmed >= lsn:
        return Unresolved("what was there is trimmed", for_good=True)
    end = state.end_of(epoch_of(lsn))
    if end is None:
        return Unresolved(f"epoch {epoch_of(lsn)} is not recovered yet")
    if offset_of(lsn) > end.last:
        return Nowhere() if end.exact else Unresolved("its copies may be lost", for_good=True)
    nodes = state.metadata_of(epoch_of(lsn)).nodes
    look = Read(log, lsn, lsn, bytes_max=1, everything=True, batches=False)
    answers = yield from ask_each(nodes, look, lambda answers: _judge(lsn, answers) is not None)
    return _judge(lsn, answers) or Unresolved("the nodes that know do not answer")


def _judge(lsn: Lsn, answers: Answers) -> Resolution | None:
    delivered = [answer for answer in answers.values() if isinstance(answer, Delivered)]
    records = [record for answer in delivered for record in answer.records]
    if records:
        found = max(records, key=lambda record: record.precedence)
        return Appended(found) if found.kind is Kind.DATA else Nowhere()
    if any(answer.trimmed >= lsn for answer in delivered):
        return Unresolved("what was there is trimmed", for_good=True)
    return None
