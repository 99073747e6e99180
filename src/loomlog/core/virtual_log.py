"""The virtual log: one log over a sequence of loglets, switched while it is used. Pure.

A switch consists of these steps, whether a party wants it or finds it unfinished:

    prepare    write the successor down                       Swap     appends continue
    make       create its loglet, empty; or give up           Make
    ready      from here on there is no way back              Swap
    seal       seal the active loglet and learn its tail      Seal     appends wait
    extend     record the end; the successor starts above     Swap
    begin      start the new loglet at its first position     Begin    appends continue
    discard    drop older loglets that are empty by now       Discard

Each step may be taken by a different party, or by several at once: all decisions are swaps of the
whole layout, each computed from the layout that it replaces. Every request may be repeated.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from loomlog.core.requests import Lost, Outcome, Steps
from loomlog.core.segments import Layout, Segment, Settings, Successor, SwitchState
from loomlog.errors import InvalidArgument
from loomlog.types import Glsn, LogId

# ---- requests


class GetLayout(NamedTuple):
    """Answered with the current Layout."""


class Swap(NamedTuple):
    """Done if `expected` is the layout now, and `layout` from then on; Refused if it is not."""

    expected: Layout
    layout: Layout


class NewLoglet(NamedTuple):
    """Answered with an id that was never used before."""


class Make(NamedTuple):
    """Done: the loglet exists and takes no appends yet. Refused: it cannot be created."""

    successor: Successor


class Begin(NamedTuple):
    """Done: the loglet takes appends, from the segment's start on; or it did before."""

    segment: Segment


class Seal(NamedTuple):
    """Answered with the position of the last entry, also if the loglet never began."""

    segment: Segment


class Discard(NamedTuple):
    """Done: the loglet is deleted, or will be. Later requests find it sealed."""

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


def switch(wanted: Settings) -> SwitchSteps[Layout]:
    """Switch the log to these settings and return the layout that has them. Raise InvalidArgument
    if that is impossible. A switch that is already under way is finished first."""
    mine: set[LogId] = set()
    while True:
        layout: Layout = yield from certainly(GetLayout())
        if any(segment.loglet in mine for segment in layout.segments):
            return layout  # it was active, perhaps not any more
        if layout.successor is not None:
            reason = yield from _step(layout, layout.successor)
            if reason is not None and layout.successor.settings == wanted:
                raise InvalidArgument(reason)
        elif layout.active.settings == wanted:
            return layout
        else:
            loglet: LogId = yield from certainly(NewLoglet())
            mine.add(loglet)
            yield Swap(layout, layout.prepare(loglet, wanted))


def finish() -> SwitchSteps[Layout]:
    """Finish the switch that is under way, if any; return the layout afterwards."""
    while True:
        layout: Layout = yield from certainly(GetLayout())
        if layout.successor is None:
            return layout
        yield from _step(layout, layout.successor)


def _step(layout: Layout, successor: Successor) -> SwitchSteps[str | None]:
    """Take one step of the switch. Return why it was given up, if it was."""
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
