"""The last batches of each producer in a range of a stream, by which a retry is recognised.

Kept per data file and saved in its index, so that a restart knows them without reading the data.
As many batches per producer as a client may have in flight: any of them may be sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from loomlog.batch import Header
from loomlog.limits import APPENDS_IN_FLIGHT_MAX
from loomlog.types import Llsn


class ProducerMark(NamedTuple):
    """A stored batch: what it was numbered by its producer and where it stands."""

    producer_id: int
    sequence: int
    first_llsn: Llsn
    count: int  # type: ignore[assignment]  # the batch header's word


class Producers:
    """The marks of one data file. Producer 0 is nobody."""

    __slots__ = ("_marks",)

    def __init__(self, marks: Iterable[ProducerMark] = ()) -> None:
        self._marks: dict[int, deque[ProducerMark]] = {}
        for mark in marks:
            self._add(mark)

    def note(self, header: Header) -> None:
        if header.producer_id:
            self._add(
                ProducerMark(header.producer_id, header.sequence, header.first_llsn, header.count)
            )

    def cut(self, last_llsn: Llsn) -> None:
        """Forget the batches above `last_llsn`."""
        for marks in self._marks.values():
            while marks and marks[-1].first_llsn > last_llsn:
                marks.pop()

    def _add(self, mark: ProducerMark) -> None:
        marks = self._marks.get(mark.producer_id)
        if marks is None:
            marks = self._marks[mark.producer_id] = deque(maxlen=APPENDS_IN_FLIGHT_MAX)
        marks.append(mark)

    def __iter__(self) -> Iterator[ProducerMark]:
        """Per producer, oldest first."""
        for marks in self._marks.values():
            yield from marks
