"""Find the entries of a stream whose rounds are no longer kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from loomlog.types import Glsn, Llsn


class Span(NamedTuple):
    """Entries of a stream, [first, end), whose positions are in (after, high_watermark]."""

    first: Llsn
    end: Llsn
    after: Glsn
    high_watermark: Glsn


def holes_in(lacked: Span, given: Iterable[Span]) -> list[Span]:
    """Return the parts of `lacked` that `given`, sorted by position, does not cover."""
    holes: list[Span] = []
    llsn, after = lacked.first, lacked.after
    if llsn >= lacked.end:
        return holes
    for span in given:
        if span.end <= llsn:
            continue
        if span.first > llsn:
            holes.append(Span(llsn, span.first, after, span.after))
        llsn, after = span.end, span.high_watermark
    if llsn < lacked.end:
        holes.append(Span(llsn, lacked.end, after, lacked.high_watermark))
    return holes
