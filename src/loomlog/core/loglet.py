"""The contract of a loglet: what every protocol promises, whatever it does inside. Pure words.

A log is a chain of segments (segments.py); each of them is run by one loglet. The promises, which
tests/conformance/test_loglet_contract.py checks on every protocol:

    append   all records of a call or none, at consecutive positions; acknowledged means durable
    read     what stands at a position never changes; an acknowledged entry is there for whoever
             asks afterwards, until it is trimmed
    tail     at or above every entry acknowledged before the question, and never lower than before
    seal     from its answer on nothing is appended any more, by whomever; what was acknowledged is
             at or below the tail that it answers; asking again gives the same tail
    trim     drops a prefix; it holds for everybody who asks afterwards

A loglet that was sealed may still be given something by a writer who does not know it. Such a write
lies above the sealed tail and is nobody's business: readers stop at the recorded end of a segment,
and who knows no end asks for the tail first, which says whether the loglet is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from loomlog.types import Buffer, Entry, Glsn


class Tail(NamedTuple):
    """How far a loglet reaches."""

    position: Glsn  # the last one that is decided; below the loglet's start if there is none
    sealed: bool  # nothing will follow


class Loglet(Protocol):
    """One segment's worth of log, as a client of its protocol sees it.

    Positions begin at the `start` with which it was made, or above it, and only ever grow."""

    async def append(self, values: Sequence[Buffer]) -> Glsn:
        """Append all or none; the position of the first.

        Sealed: certainly nothing was appended here, now or later. AppendUnknown: it may have been.
        """

    async def read(self, position: Glsn) -> Entry:
        """The entry at `position`.

        Trimmed: it was dropped. NotYetWritten: nothing stands there yet; if the loglet is sealed,
        nothing ever will. NotFound: there is a gap, nothing ever will; go on behind it."""

    async def tail(self) -> Tail: ...

    async def trim(self, position: Glsn) -> None:
        """Drop everything up to and with `position`; InvalidArgument if it is above the tail."""

    async def seal(self) -> Glsn:
        """Take no more appends, for good; the position of the last one that counts, one below the
        start if there is none. Repeating it changes nothing."""
