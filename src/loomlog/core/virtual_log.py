"""The virtual log: one log over a chain of loglets, which may be switched while it is used. Pure.

Every operation is a generator: it yields what to ask next and is sent the answer. Who drives it
owns the network and the patience; an answer that does not come is `Lost`, after which the same may
be asked again: everything but an append is harmless when it is done twice.

A switch, by whoever wants it or finds it:

    prepare    write the successor down                       Swap     appends go on
    make       its loglet, empty; or give the switch up       Make
    ready      from here on there is no way back              Swap
    seal       the active loglet, and learn its tail          Seal     appends wait
    extend     record the end; the successor starts above     Swap
    begin      tell its loglet where it starts                Begin    appends go on
    discard    older loglets of which nothing is left         Discard

Each line may be done by another party than the one before, and by several at once: what is decided
is decided by swaps of the whole chain, each of which is computed from the chain that it replaces.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from loomlog.core.loglet import Tail
from loomlog.core.segments import Chain, Segment, Settings, Successor, SwitchState
from loomlog.errors import AppendUnknown, InvalidArgument, NotFound, NotYetWritten, Sealed
from loomlog.types import Glsn, LogId

# ---- what is asked


class GetChain(NamedTuple):
    """The Chain as it is now."""


class Swap(NamedTuple):
    """Done if `expected` is the chain now, and `chain` from then on; Refused if it is not."""

    expected: Chain
    chain: Chain


class NewLoglet(NamedTuple):
    """An id that was never given before."""


class Make(NamedTuple):
    """Done: the loglet is there and takes nothing yet. Refused: it cannot be made."""

    successor: Successor


class Begin(NamedTuple):
    """Done: the loglet takes appends, from the segment's start on; or it did before."""

    segment: Segment


class Seal(NamedTuple):
    """The position of its last entry, as Loglet.seal says; also of a loglet that never began."""

    segment: Segment


class GetTail(NamedTuple):
    """A Tail."""

    segment: Segment


class Append(NamedTuple):
    """The first position; IsSealed; or NotBegun."""

    segment: Segment
    values: Sequence[Any]


class Read(NamedTuple):
    """What stands there, or None."""

    segment: Segment
    position: Glsn


class Trim(NamedTuple):
    """Done."""

    segment: Segment
    position: Glsn


class Discard(NamedTuple):
    """Done: whatever there is of this loglet is gone, or will be. Who asks for it later is told
    that it is sealed."""

    loglet: LogId


Request: TypeAlias = (
    GetChain | Swap | NewLoglet | Make | Begin | Seal | GetTail | Append | Read | Trim | Discard
)

# ---- what is answered, where it is not the value itself


class Done(NamedTuple):
    pass


class Refused(NamedTuple):
    """Nothing was done."""

    reason: str = ""


class IsSealed(NamedTuple):
    """Certainly nothing was appended."""


class NotBegun(NamedTuple):
    """Certainly nothing was appended; the loglet has to be told its start."""


class Lost(NamedTuple):
    """No answer: it may have happened, or may happen later."""


R = TypeVar("R")
Operation: TypeAlias = Generator[Request, Any, R]


def certainly(request: Request) -> Operation[Any]:
    """The answer, however often one has to ask."""
    while isinstance(answer := (yield request), Lost):
        pass
    return answer


# ---- switching


def switch(wanted: Settings) -> Operation[Chain]:
    """Have the log run with these settings: the chain in which it does. InvalidArgument if it
    cannot.

    If others switch at the same time theirs is finished first; then what is active is compared
    with what is wanted, again and again."""
    mine: set[LogId] = set()
    while True:
        chain: Chain = yield from certainly(GetChain())
        if any(segment.loglet in mine for segment in chain.segments):
            return chain  # it was active, whatever came after it
        if chain.successor is not None:
            reason = yield from _step(chain, chain.successor)
            if reason is not None and chain.successor.settings == wanted:
                raise InvalidArgument(reason)
        elif chain.active.settings == wanted:
            return chain
        else:
            loglet: LogId = yield from certainly(NewLoglet())
            mine.add(loglet)
            yield Swap(chain, chain.prepare(loglet, wanted))


def finish() -> Operation[Chain]:
    """Finish the switch that is under way, if there is one: the chain as it is then."""
    while True:
        chain: Chain = yield from certainly(GetChain())
        if chain.successor is None:
            return chain
        yield from _step(chain, chain.successor)


def _step(chain: Chain, successor: Successor) -> Operation[str | None]:
    """One step further, by this party or another; or why the switch was given up."""
    if chain.switch is SwitchState.PREPARING:
        made = yield from certainly(Make(successor))
        if isinstance(made, Refused):
            if isinstance((yield Swap(chain, chain.give_up())), Done):
                yield Discard(successor.loglet)
                return made.reason
        else:
            yield Swap(chain, chain.ready())
    else:
        tail: Glsn = yield from certainly(Seal(chain.active))
        extended = chain.extend(tail)
        if isinstance((yield Swap(chain, extended)), Done):
            yield Begin(extended.active)
            yield from _discard_dropped(chain, extended)
    return None


def _discard_dropped(before: Chain, after: Chain) -> Operation[None]:
    for segment in before.segments:
        if after.settings_of(segment.loglet) is None:
            yield Discard(segment.loglet)


# ---- using


def append(values: Sequence[Any], known: Chain | None = None) -> Operation[Glsn]:
    """Append to the active segment, whichever that is by then; the position of the first.

    AppendUnknown if the answer was lost. Sealed if somebody sealed the log without a successor."""
    chain = known or (yield from certainly(GetChain()))
    while True:
        answer = yield Append(chain.active, values)
        match answer:
            case IsSealed():
                newer = yield from finish()
                if newer.active.loglet == chain.active.loglet:
                    raise Sealed("the log is sealed, and nothing was chosen to go on with")
                chain = newer
            case NotBegun():
                yield Begin(chain.active)
                chain = yield from certainly(GetChain())
            case Lost():
                raise AppendUnknown("no answer: it may or may not have been appended")
            case first:
                return int(first)


def read(position: Glsn, known: Chain | None = None) -> Operation[Any]:
    """What stands at a position. Trimmed, NotYetWritten or NotFound (a gap) if nothing does."""
    chain = known or (yield from certainly(GetChain()))
    segment = yield from _holder(chain, position)
    found = yield from certainly(Read(segment, position))
    if found is None:
        chain = yield from certainly(GetChain())
        chain.segment_of(position)  # Trimmed meanwhile?
        raise NotFound(f"nothing stands at position {position}: go on behind it")
    return found


def _holder(chain: Chain, position: Glsn) -> Operation[Segment]:
    """The segment of a position that is decided: what is found there counts."""
    segment = chain.segment_of(position)
    if segment.end is not None:
        return segment
    last: Tail = yield from certainly(GetTail(segment))
    if last.sealed:  # so its end may be recorded, and what is found above it does not count
        newer = yield from finish()
        if newer.active.loglet != segment.loglet:
            return (yield from _holder(newer, position))
    if position > last.position:
        raise NotYetWritten(f"position {position} is not written; the last is {last.position}")
    return segment


def tail() -> Operation[Glsn]:
    """The last position of the log."""
    chain: Chain = yield from certainly(GetChain())
    while True:
        last: Tail = yield from certainly(GetTail(chain.active))
        if not last.sealed:
            return last.position
        newer = yield from finish()
        if newer.active.loglet == chain.active.loglet:
            return last.position
        chain = newer


def trim(position: Glsn) -> Operation[None]:
    """Drop everything up to and with `position`, and loglets of which nothing is left.
    InvalidArgument if it is above the tail."""
    last = yield from tail()
    if position > last:
        raise InvalidArgument(f"the log ends at {last}: it cannot be trimmed up to {position}")
    while True:
        before: Chain = yield from certainly(GetChain())
        after = before.trim(position)
        if after == before or isinstance((yield Swap(before, after)), Done):
            break
    yield from _discard_dropped(before, after)
    for segment in after.segments:
        if segment.start <= position:
            yield Trim(segment, position)
