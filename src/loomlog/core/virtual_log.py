"""The virtual log: one log over a sequence of loglets, switched while it is in use. Pure.

A switch consists of these steps. A party that finds a switch unfinished continues it:

    prepare    record the successor                           Swap     appends continue
    make       create its empty loglet, or give up            Make
    ready      the point of no return                         Swap
    seal       seal the active loglet and learn its tail      Seal     appends wait
    extend     record the end; the successor starts above     Swap
    begin      start the new loglet at its first position     Begin    appends continue
    discard    drop older loglets that have become empty      Discard

Different parties may take the steps, even concurrently: each decision is a compare-and-swap of the
whole layout, computed from the layout that it replaces. Every request may be repeated.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from loomlog.core.requests import Lost, Outcome, Steps
from loomlog.core.segments import Layout, Segment, Settings, Successor, SwitchState
from loomlog.errors import InvalidArgument
from loomlog.types import Glsn, LogId, NodeId

# ---- requests


class GetLayout(NamedTuple):
    """Answered with the current Layout."""


class Swap(NamedTuple):
    """Done if the layout was `expected` and has been replaced by `layout`; else Refused."""

    expected: Layout
    layout: Layout


class NewLoglet(NamedTuple):
    """Answered with an id that was never used before."""


class Make(NamedTuple):
    """Done: the loglet exists, but takes no appends yet. Refused: it cannot be created."""

    successor: Successor


class Begin(NamedTuple):
    """Done: the loglet takes appends, starting at the segment's start, or has already begun."""

    segment: Segment


class Seal(NamedTuple):
    """Answered with the position of the last entry, even if the loglet never began."""

    segment: Segment


class Discard(NamedTuple):
    """Done: the loglet is deleted, or will be. It is sealed for later requests."""

    loglet: LogId


Request: TypeAlias = GetLayout | Swap | NewLoglet | Make | Begin | Seal | Discard

# ---- answers other than plain values


class Done(NamedTuple):
    pass


class Refused(NamedTuple):
    """Nothing was done."""

    reason: str = ""


SwitchSteps: TypeAlias = Steps[Request, Any, Outcome]


def certainly(request: Request) -> SwitchSteps[Any]:
    """Repeat a request until it is answered."""
    while isinstance(answer := (yield request), Lost):
        pass
    return answer


# ---- switching


def switch(wanted: Settings, nodes: tuple[tuple[NodeId, ...], ...] = ()) -> SwitchSteps[Layout]:
    """Switch the log to these settings and return a layout that has them. Raise InvalidArgument if
    that is impossible. A switch that is already in progress is finished first. `nodes`: where each
    set of replicas is to be."""
    mine: set[LogId] = set()
    while True:
        layout: Layout = yield from certainly(GetLayout())
        if any(segment.loglet in mine for segment in layout.segments):
            return layout  # the switch is done; later ones may have followed
        if layout.successor is not None:
            reason = yield from _step(layout, layout.successor)
            if reason is not None and layout.successor.settings == wanted:
                raise InvalidArgument(reason)
        elif layout.active.settings == wanted:
            return layout
        else:
            loglet: LogId = yield from certainly(NewLoglet())
            mine.add(loglet)
            yield Swap(layout, layout.prepare(loglet, wanted, nodes))


def finish() -> SwitchSteps[Layout]:
    """Finish the switch that is in progress, if any. Return the layout afterwards."""
    while True:
        layout: Layout = yield from certainly(GetLayout())
        if layout.successor is None:
            return layout
        yield from _step(layout, layout.successor)


def _step(layout: Layout, successor: Successor) -> SwitchSteps[str | None]:
    """Take one step of the switch. Return the reason if it was given up."""
    if layout.switch is SwitchState.PREPARING:
        made = yield from certainly(Make(successor))
        if isinstance(made, Refused):
            if isinstance((yield Swap(layout, layout.give_up())), Done):
                yield Discard(successor.loglet)
                return made.reason
        else:
            yield Swap(layout, layout.ready())
    else:
        tail: Glsn = yield from certainly(Seal(layout.active))
        extended = layout.extend(tail)
        if isinstance((yield Swap(layout, extended)), Done):
            yield Begin(extended.active)
            yield from discard_dropped(layout, extended)
    return None


def discard_dropped(before: Layout, after: Layout) -> SwitchSteps[None]:
    for segment in before.segments:
        if after.settings_of(segment.loglet) is None:
            yield Discard(segment.loglet)
