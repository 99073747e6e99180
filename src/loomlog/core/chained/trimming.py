"""Removing the oldest positions. Pure.

Only positions up to a decided block are trimmed: then a log never begins within a hole, where
nobody could say what the next address is. A block that is cut by the trim stays until all of it is
trimmed.
"""

from __future__ import annotations

from loomlog.core.chained.filling import decide_at
from loomlog.core.chained.messages import Ask, Done, Found, Steps, Trim
from loomlog.core.chained.outcomes import NotWritten, Stop, Trimmed, first_stop
from loomlog.core.chained.projection import Projection
from loomlog.types import Glsn


def trim(projection: Projection, position: Glsn) -> Steps[Trimmed | NotWritten | Stop]:
    """Trimmed; NotWritten if the log does not reach so far."""
    outcome = yield from decide_at(projection, position)
    if not isinstance(outcome, Found | Trimmed):
        return outcome
    request = Trim(projection.epoch, position)
    answers = yield [Ask(replica, request) for replica in projection.replicas]
    return first_stop(answers, Done) or Trimmed(position)
