"""Trim the oldest positions. Pure.

Only positions up to a decided block are trimmed, so that a log never begins within a hole, where
the next address would be unknown. A block that is cut by the trim stays until all of it is trimmed.
"""

from __future__ import annotations

from loomlog.core.chained.fill import decide_at
from loomlog.core.chained.messages import Done, Found, Steps, Trim
from loomlog.core.chained.outcomes import NotWritten, Stop, Trimmed, first_stop
from loomlog.core.chained.projection import Projection
from loomlog.core.requests import Ask
from loomlog.types import Glsn


def trim(projection: Projection, position: Glsn) -> Steps[Trimmed | NotWritten | Stop]:
    """Trim up to a position. NotWritten if the log does not reach that far."""
    outcome = yield from decide_at(projection, position)
    if not isinstance(outcome, Found | Trimmed):
        return outcome
    request = Trim(projection.epoch, position)
    answers = yield [Ask(replica, request) for replica in projection.replicas]
    return first_stop(answers, Done) or Trimmed(position)
