"""Replaces references by the rows that they name.

Readers see only rows, each with its position, stream and LLSN in the log, and with value, key and
timestamp from the staging log. A reference may name more rows than fit into memory, so they are
read a batch at a time, as they are consumed.

Each stream of the staging log has a cursor: a subscription that continues from one reference to the
next, since rows are mostly published in the order in which they were staged.

If the staging log has lost rows, exactly their positions are lost in the log that is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from loomlog.client.subscribe.pieces import Piece, Pieces, Referred, Stored
from loomlog.errors import Corrupt, DataLoss, NotFound, Trimmed
from loomlog.references import LLSN_MAX, Range
from loomlog.types import Gap, Glsn, Llsn, StreamId

SKIP_ROWS_MAX: Final = 64 * 1024  # skipping up to this is cheaper than opening another cursor
CURSORS_MAX: Final = 8  # each holds its read-ahead in memory

_GONE = (Trimmed, NotFound, DataLoss)


OpenStaged: TypeAlias = Callable[[str, StreamId, Llsn], Pieces[Stored]]
"""Opens a stream of a staging log at an LLSN, with gaps."""


class _Position(NamedTuple):
    """The place of the next row of a reference, in the log that is read."""

    position: Glsn
    stream: StreamId
    llsn: Llsn

    def after(self, rows: int) -> _Position:
        return _Position(self.position + rows, self.stream, self.llsn + rows)


class WithoutReferences:
    """Pieces in which references are replaced by rows, for one consumer at a time."""

    def __init__(
        self,
        pieces: Pieces[Stored],
        log: str,
        head: Callable[[], Awaitable[Glsn]],
        open_staged: OpenStaged,
        *,
        gaps: bool = False,
    ) -> None:
        """`head` returns the first position of the log that is kept."""
        self._pieces = pieces
        self._log = log
        self._head = head
        self._open_staged = open_staged
        self._gaps = gaps
        self._cursors: dict[tuple[str, StreamId], _Cursor] = {}  # least recently used first
        self._staging = ""
        self._ranges: deque[Range] = deque()  # remaining ranges of the current reference
        self._at = _Position(0, 0, 0)

    async def next(self) -> Piece | Gap | None:
        """Return the next records; None at the end."""
        while True:
            ready = self._from_cursor()
            if ready is not None:
                return ready
            if self._ranges:
                if gone := await self._fetch(self._ranges[0]):
                    return await self._pass(gone)
                continue
            piece = await self._pieces.next()
            if not isinstance(piece, Referred):
                return piece
            self._begin(piece)

    def next_ready(self) -> Piece | Gap | None:
        """Return the next records if they have arrived."""
        while True:
            if self._ranges:
                return self._from_cursor()
            piece = self._pieces.next_ready()
            if not isinstance(piece, Referred):
                return piece
            self._begin(piece)

    def close(self) -> None:
        self._pieces.close()
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()

    def _begin(self, piece: Referred) -> None:
        header = piece.header
        first = _Position(header.first_position, header.stream_id, header.first_llsn)
        self._at = first.after(piece.skip)
        self._staging = piece.reference.staging
        self._ranges.extend(piece.reference.clipped(piece.skip, piece.rows))

    # ---- rows of the staging log

    def _from_cursor(self) -> Piece | None:
        """Return the next rows of the reference if they have arrived."""
        while self._ranges:
            wanted = self._ranges[0]
            cursor = self._cursors.get((self._staging, wanted.stream))
            if cursor is None or not cursor.reaches(wanted.first):
                return None
            staged = cursor.take(wanted)
            return None if staged is None else self._placed(staged)
        return None

    def _placed(self, staged: Piece) -> Piece:
        """Return staged rows with their positions in the log that is read."""
        batch = staged.batch.placed(staged.skip, staged.rows, **self._at._asdict())
        self._advance(staged.rows)
        return Piece(batch, 0, staged.rows)

    def _advance(self, rows: int) -> None:
        """Continue after the next `rows` rows, which are in the first range."""
        wanted = self._ranges.popleft()
        self._at = self._at.after(rows)
        if rows < wanted.rows:
            self._ranges.appendleft(Range(wanted.stream, wanted.first + rows, wanted.rows - rows))

    async def _fetch(self, wanted: Range) -> int:
        """Wait until a cursor has the first wanted row, and return 0. If that row is gone, return
        how many rows are gone from there."""
        cursor = self._cursors.pop((self._staging, wanted.stream), None)
        try:
            if cursor is not None and cursor.reaches(wanted.first):
                try:
                    return await cursor.fetch(wanted)
                except _GONE:
                    pass  # rows before the wanted ones were trimmed: open another cursor
            if cursor is not None:
                cursor.close()
            cursor = self._cursor(wanted)
            try:
                return await cursor.fetch(wanted)
            except _GONE as error:
                cursor.close()
                cursor = None
                is_trimmed = isinstance(error, Trimmed)
                return await self._count_trimmed(wanted) if is_trimmed else wanted.rows
        finally:
            if cursor is not None:
                self._cursors[self._staging, wanted.stream] = cursor
            if len(self._cursors) > CURSORS_MAX:
                self._cursors.pop(next(iter(self._cursors))).close()

    def _cursor(self, wanted: Range) -> _Cursor:
        pieces = self._open_staged(self._staging, wanted.stream, wanted.first)
        return _Cursor(pieces, wanted.first)

    async def _count_trimmed(self, wanted: Range) -> int:
        """Return how many of the wanted rows are trimmed, given that the first one is."""
        trimmed, kept = 1, wanted.rows  # lower and upper bound of the result
        while trimmed < kept:
            rows = (trimmed + kept) // 2
            rest = Range(wanted.stream, wanted.first + rows, wanted.rows - rows)
            cursor = self._cursor(rest)
            try:
                await cursor.fetch(rest)
                kept = rows
            except _GONE:
                trimmed = rows + 1
            finally:
                cursor.close()
        return kept

    async def _pass(self, gone: int) -> Gap:
        """Continue after rows that are gone, and return them as a gap. Raise Trimmed if the
        reference was trimmed as well, and DataLoss unless gaps are wanted."""
        first, (stream, llsn, _) = self._at.position, self._ranges[0]
        last = first + gone - 1
        if await self._head() > first:
            raise Trimmed(
                f"position {first} of log {self._log!r} was trimmed while it was read: subscribe "
                "from 'earliest'"
            )
        if not self._gaps:
            raise DataLoss(
                f"positions {first} to {last} of log {self._log!r} are rows of log "
                f"{self._staging!r} (stream {stream}, LLSN {llsn} to {llsn + gone - 1}) that are "
                f"gone: continue at {last + 1}, or ask for gaps, too (gaps=True, --gaps)"
            )
        self._advance(gone)
        return Gap(first, last, "dataloss")


class _Cursor:
    """Follows one stream of a staging log, whose LLSNs may have gaps.

    Invariant: the held piece has the LLSNs from `_begin` to before `_end`; rows before `_begin`
    that were not taken are gone."""

    def __init__(self, pieces: Pieces[Stored], first: Llsn) -> None:
        self._pieces = pieces
        self._next = first  # the LLSN after the last row taken
        self._begin = first
        self._end = first
        self._held: Piece | None = None

    def reaches(self, llsn: Llsn) -> bool:
        """Return whether skipping to `llsn` is cheaper than opening another cursor there."""
        return self._next <= llsn <= self._next + SKIP_ROWS_MAX

    async def fetch(self, wanted: Range) -> int:
        """Wait for the first wanted row. Return how many rows are gone, or 0 if it has arrived."""
        while self._end <= wanted.first:
            self._hold(await self._pieces.next())
        return max(0, min(self._begin, wanted.end) - wanted.first)

    def take(self, wanted: Range) -> Piece | None:
        """Return the first of the wanted rows if they have arrived."""
        while self._end <= wanted.first:
            if (piece := self._pieces.next_ready()) is None:
                return None
            self._hold(piece)
        held = self._held
        if held is None or wanted.first < self._begin:
            return None
        offset = wanted.first - self._begin
        rows = min(held.rows - offset, wanted.rows)
        self._next = wanted.first + rows
        return Piece(held.batch, held.skip + offset, rows)

    def _hold(self, piece: Stored | None) -> None:
        if piece is None:  # the stream has ended
            self._begin = self._end = LLSN_MAX + 1
            self._held = None
        elif isinstance(piece, Gap):
            self._begin = self._end = piece.last + 1
            self._held = None
        elif isinstance(piece, Piece):
            self._begin, self._end = piece.first_llsn, piece.first_llsn + piece.rows
            self._held = piece
        else:
            raise Corrupt("a staging log must hold rows, but this one holds a reference")

    def close(self) -> None:
        self._pieces.close()


class OneReference:
    """A sequence that consists of one reference."""

    def __init__(self, piece: Referred) -> None:
        self._piece: Referred | None = piece

    async def next(self) -> Referred | None:
        return self.next_ready()

    def next_ready(self) -> Referred | None:
        piece, self._piece = self._piece, None
        return piece

    def close(self) -> None:
        self._piece = None
