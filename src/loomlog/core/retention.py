"""Decide how far a log may be trimmed because of its retention. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from loomlog.core.requests import Steps
from loomlog.core.segments import Segment
from loomlog.types import Glsn


class FindTime(NamedTuple):
    """Answered with a position from `first` on before which the whole segment is too old, or with
    None if the protocol of the segment cannot tell."""

    segment: Segment
    first: Glsn


def last_expired(segments: Iterable[Segment], trimmed: Glsn) -> Steps[FindTime, Glsn | None, Glsn]:
    """Return the position up to which everything is too old. Whatever is in doubt is kept."""
    kept_from = trimmed + 1
    for segment in segments:
        if segment.end is not None and kept_from > segment.end:
            continue
        found = yield FindTime(segment, max(segment.start, kept_from))
        if found is None:
            break
        kept_from = found
        if segment.end is None or kept_from <= segment.end:
            break
    return kept_from - 1
