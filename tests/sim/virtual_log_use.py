"""An oracle for a client that uses a log while it is switched: every append, read, tail and
trim goes to the right segment, whatever layout the client believes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from loomlog.core import virtual_log
from loomlog.core.requests import Lost, Outcome, Steps
from loomlog.core.segments import Layout, Segment
from loomlog.core.virtual_log import Begin, Done, GetLayout, Swap
from loomlog.errors import AppendUnknown, InvalidArgument, NotFound, NotYetWritten, Sealed
from loomlog.types import Glsn

UseSteps: TypeAlias = Steps[Any, Any, Outcome]


def certainly(request: Any) -> UseSteps[Any]:
    """Repeat a request until it is answered."""
    while isinstance(answer := (yield request), Lost):
        pass
    return answer


class Tail(NamedTuple):
    """The tail of a loglet."""

    position: Glsn  # the last one that is decided; below the loglet's start if there is none
    sealed: bool  # nothing will follow


class GetTail(NamedTuple):
    """A Tail."""

    segment: Segment


class Append(NamedTuple):
    """The first position; IsSealed; or NotBegun."""

    segment: Segment
    values: Sequence[Any]


class Read(NamedTuple):
    """Read the entry at a position; the answer is None if there is none."""

    segment: Segment
    position: Glsn


class Trim(NamedTuple):
    """Done."""

    segment: Segment
    position: Glsn


class IsSealed(NamedTuple):
    """Certainly nothing was appended."""


class NotBegun(NamedTuple):
    """Certainly nothing was appended; the loglet has to be told its start."""


def append(values: Sequence[Any], known: Layout | None = None) -> UseSteps[Glsn]:
    """Append to the segment that is active by then, and return the position of the first value.

    Raise AppendUnknown if the answer was lost, and Sealed if the log was sealed without a
    successor."""
    layout = known or (yield from certainly(GetLayout()))
    while True:
        answer = yield Append(layout.active, values)
        match answer:
            case IsSealed():
                newer = yield from virtual_log.finish()
                if newer.active.loglet == layout.active.loglet:
                    raise Sealed("the log is sealed, and nothing was chosen to go on with")
                layout = newer
            case NotBegun():
                yield Begin(layout.active)
                layout = yield from certainly(GetLayout())
            case Lost():
                raise AppendUnknown("no answer: it may or may not have been appended")
            case first:
                return int(first)


def read(position: Glsn, known: Layout | None = None) -> UseSteps[Any]:
    """Return the entry at a position; raise Trimmed, NotYetWritten or NotFound (a gap)."""
    layout = known or (yield from certainly(GetLayout()))
    segment = yield from _holder(layout, position)
    found = yield from certainly(Read(segment, position))
    if found is None:
        layout = yield from certainly(GetLayout())
        layout.segment_of(position)  # Trimmed meanwhile?
        raise NotFound(f"nothing stands at position {position}: go on behind it")
    return found


def _holder(layout: Layout, position: Glsn) -> UseSteps[Segment]:
    """Return the segment of a position that is decided: what is found there counts."""
    segment = layout.segment_of(position)
    if segment.end is not None:
        return segment
    last: Tail = yield from certainly(GetTail(segment))
    if last.sealed:  # so its end may be recorded, and what is found above it does not count
        newer = yield from virtual_log.finish()
        if newer.active.loglet != segment.loglet:
            return (yield from _holder(newer, position))
    if position > last.position:
        raise NotYetWritten(f"position {position} is not written; the last is {last.position}")
    return segment


def tail() -> UseSteps[Glsn]:
    """Return the last position of the log."""
    layout: Layout = yield from certainly(GetLayout())
    while True:
        last: Tail = yield from certainly(GetTail(layout.active))
        if not last.sealed:
            return last.position
        newer = yield from virtual_log.finish()
        if newer.active.loglet == layout.active.loglet:
            return last.position
        layout = newer


def trim(position: Glsn) -> UseSteps[None]:
    """Drop everything up to and with `position`, and loglets of which nothing is left.
    InvalidArgument if it is above the tail."""
    last = yield from tail()
    if position > last:
        raise InvalidArgument(f"the log ends at {last}: it cannot be trimmed up to {position}")
    while True:
        before: Layout = yield from certainly(GetLayout())
        after = before.trim(position)
        if after == before or isinstance((yield Swap(before, after)), Done):
            break
    yield from virtual_log.discard_dropped(before, after)
    for segment in after.segments:
        if segment.start <= position:
            yield Trim(segment, position)
