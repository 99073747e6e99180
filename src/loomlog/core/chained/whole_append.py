"""An append from its ticket to its outcome, across failures and epochs. Pure.

While the epoch of the ticket lasts, an interrupted block is written again; once a newer one has
begun, the outcome is looked up and certain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from loomlog.core.chained.append import Appended, Overtaken, append
from loomlog.core.chained.block import Block
from loomlog.core.chained.messages import EpochOver, HandedOut, InForce, Next, Renew, Steps, Ticket
from loomlog.core.chained.outcomes import Interrupted, Trimmed, stopped
from loomlog.core.chained.projection import Projection
from loomlog.core.chained.resolve import resolve
from loomlog.core.requests import Ask, Service
from loomlog.errors import AppendUnknown, Sealed

Report: TypeAlias = Callable[[Interrupted | None], None]
"""Called with None before a block is sent: from then on it may be written. Called with the last
interruption when everything that was sent was refused, so that nothing was written; and when the
block was overtaken, so that it never will be."""


def append_next(
    projection: Projection,
    count: int,
    place: Callable[[Ticket], Block],
    report: Report,
    *,
    once: bool,
) -> Steps[tuple[Ticket, Appended | Interrupted]]:
    """Take a ticket for `count` records and write the block that `place` makes for it; if that is
    overtaken, take another one. Interrupted only if it is tried `once`."""
    while True:
        ticket, projection = yield from next_ticket(projection, count)
        outcome, projection = yield from write(projection, ticket, place(ticket), report, once=once)
        if not isinstance(outcome, Overtaken):
            return ticket, outcome
        report(Interrupted(f"position {ticket.first} was filled before it was written"))


def next_ticket(projection: Projection, count: int) -> Steps[tuple[Ticket, Projection]]:
    """Return a ticket, and the projection of its epoch. Sealed: the segment has ended."""
    attempts = 0
    while True:
        if projection.closed:
            raise Sealed(f"segment {projection.log_id} has ended")
        [answer] = yield [Ask(Service.SEQUENCER, Next(projection.epoch, count))]
        if isinstance(answer, HandedOut):
            return answer.ticket, projection
        stop = stopped(answer)
        assert isinstance(stop, Interrupted)
        projection = yield from _renew(projection, stop, attempts)
        attempts += 0 if isinstance(answer, EpochOver) else 1


def write(
    projection: Projection,
    ticket: Ticket,
    block: Block,
    report: Report = lambda interrupted: None,
    *,
    once: bool = False,
) -> Steps[tuple[Appended | Overtaken | Interrupted, Projection]]:
    """Write a block where its ticket says. Return the outcome and the newest projection.

    Interrupted only if it is tried `once`. AppendUnknown: the position was trimmed before the
    outcome was known."""
    attempts = 0
    untouched = True
    while True:
        if projection.epoch == ticket.epoch:
            report(None)
            outcome = yield from append(projection, ticket, block)
        else:
            outcome = yield from resolve(projection, block)
        if isinstance(outcome, Trimmed):
            raise AppendUnknown(f"position {block.first} was trimmed meanwhile")
        if not isinstance(outcome, Interrupted) or once:
            return outcome, projection
        if projection.epoch == ticket.epoch:
            untouched = untouched and outcome.untouched
            if untouched:
                report(outcome)
        projection = yield from _renew(projection, outcome, attempts)
        attempts += 1


def _renew(projection: Projection, stop: Interrupted, attempts: int) -> Steps[Projection]:
    """Return the newest projection; if it is not newer, after a pause."""
    [answer] = yield [Ask(Service.METADATA, Renew(projection.epoch, stop.epoch, attempts))]
    assert isinstance(answer, InForce)
    return answer.projection
