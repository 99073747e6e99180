"""References replaced by the rows that they stand for, wherever somebody reads.

A reader of a log sees rows only: each at its own position, stream and LLSN of the log, with value,
key and time from the staging log. A reference may name more rows than fit into memory, so they are
read as they are consumed, a batch at a time.

Per stream of the staging log there is a cursor: a subscription that goes on from one reference to
the next, since what is staged one after the other is mostly published one after the other, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from loomlog.client.pieces import Piece, Referred, Stored, StoredPieces
from loomlog.errors import Corrupt, DataLoss, LoomError, NotFound, Trimmed
from loomlog.references import Range
from loomlog.types import Gap, Glsn, Llsn, StreamId

SKIP_ROWS_MAX: Final = 64 * 1024  # of others between ours: cheaper read over than asked anew
CURSORS_MAX: Final = 8  # each has its read-ahead in memory

_GONE = (Trimmed, NotFound, DataLoss)


OpenStaged: TypeAlias = Callable[[str, StreamId, Llsn], StoredPieces]
"""Follows a stream of a staging log from an LLSN on."""


class _Position(NamedTuple):
    """Where the next row of a reference stands in the log that is read."""

    position: Glsn
    stream: StreamId
    llsn: Llsn

    def after(self, rows: int) -> _Position:
        return _Position(self.position + rows, self.stream, self.llsn + rows)


class Expanded:
    """Records in which no reference is left; gaps stay. For one consumer at a time."""

    def __init__(
        self,
        pieces: StoredPieces,
        log: str,
        head: Callable[[], Awaitable[Glsn]],
        open_staged: OpenStaged,
    ) -> None:
        """`head`: the first position of the log that is kept."""
        self._pieces = pieces
        self._log = log
        self._head = head
        self._open_staged = open_staged
        self._cursors: dict[tuple[str, StreamId], _Cursor] = {}  # the one used last at the end
        self._staging = ""
        self._ranges: deque[Range] = deque()  # of the reference that is being expanded
        self._at = _Position(0, 0, 0)

    async def next(self) -> Piece | Gap | None:
        """The next records; None at the end."""
        while True:
            ready = self._from_cursor()
            if ready is not None:
                return ready
            if self._ranges:
                await self._fetch(self._ranges[0])
                continue
            piece = await self._pieces.next()
            if not isinstance(piece, Referred):
                return piece
            self._begin(piece)

    def next_ready(self) -> Piece | Gap | None:
        """The next records if they are here already."""
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
        """The next rows of the reference if they are here already."""
        while self._ranges:
            wanted = self._ranges[0]
            cursor = self._cursors.get((self._staging, wanted.stream))
            if cursor is None or not cursor.reaches(wanted.first):
                return None
            found = cursor.take(wanted)
            if found is None:
                return None
            return self._placed(wanted, found)
        return None

    def _placed(self, wanted: Range, found: Piece) -> Piece:
        batch = found.batch.placed(found.skip, found.rows, **self._at._asdict())
        self._at = self._at.after(found.rows)
        self._ranges.popleft()
        if found.rows < wanted.rows:
            rest = Range(wanted.stream, wanted.first + found.rows, wanted.rows - found.rows)
            self._ranges.appendleft(rest)
        return Piece(batch, 0, found.rows)

    async def _fetch(self, wanted: Range) -> None:
        """Have the cursor hold the first of the wanted rows."""
        cursor = self._cursors.pop((self._staging, wanted.stream), None)
        try:
            if cursor is not None and cursor.reaches(wanted.first):
                try:
                    await cursor.fetch(wanted.first)
                    return
                except _GONE:
                    pass  # what it waited for was trimmed, which need not be what is wanted
            if cursor is not None:
                cursor.close()
            pieces = self._open_staged(self._staging, wanted.stream, wanted.first)
            cursor = _Cursor(pieces, wanted.first)
            try:
                await cursor.fetch(wanted.first)
            except _GONE as error:
                raise await self._explained(error) from error
        finally:
            if cursor is not None:
                self._cursors[self._staging, wanted.stream] = cursor
            if len(self._cursors) > CURSORS_MAX:
                self._cursors.pop(next(iter(self._cursors))).close()

    async def _explained(self, error: LoomError) -> LoomError:
        """Rows that a reference names are gone: with it, or without."""
        first, wanted = self._at.position, self._ranges[0]
        if await self._head() > first:
            return Trimmed(
                f"position {first} of log {self._log!r} was trimmed while it was read: subscribe "
                "from 'earliest'"
            )
        last = first + wanted.rows - 1
        return DataLoss(
            f"positions {first} to {last} of log {self._log!r} are rows of log {self._staging!r} "
            f"(stream {wanted.stream}, LLSN {wanted.first} to {wanted.end - 1}) that are gone: "
            f"{error}"
        )


class _Cursor:
    """Follows one stream of a staging log, forwards. LLSNs may be left out there."""

    def __init__(self, pieces: StoredPieces, first: Llsn) -> None:
        self._pieces = pieces
        self._next = first  # the LLSN of the first row held, or of the next one to come
        self._held: Piece | None = None

    def reaches(self, llsn: Llsn) -> bool:
        """It is cheaper to go on to `llsn` than to begin there."""
        return self._next <= llsn <= self._next + SKIP_ROWS_MAX

    async def fetch(self, llsn: Llsn) -> None:
        """Hold the row `llsn` and what comes with it."""
        while not self._holds(llsn):
            self._hold(await self._pieces.next())

    def take(self, wanted: Range) -> Piece | None:
        """The first wanted rows, if they are here already."""
        while not self._holds(wanted.first):
            piece = self._pieces.next_ready()
            if piece is None:
                return None
            self._hold(piece)
        held = self._held
        assert held is not None
        offset = wanted.first - self._next
        rows = min(held.rows - offset, wanted.rows)
        used = offset + rows
        self._next += used
        rest = Piece(held.batch, held.skip + used, held.rows - used)
        self._held = rest if rest.rows else None
        return Piece(held.batch, held.skip + offset, rows)

    def _holds(self, llsn: Llsn) -> bool:
        """What is held goes as far as `llsn`; else it is passed over."""
        if self._held is None:
            return False
        if llsn < self._next:
            raise DataLoss(f"LLSN {llsn} is not there; the next one is {self._next}")
        if llsn < self._next + self._held.rows:
            return True
        self._next += self._held.rows
        self._held = None
        return False

    def _hold(self, piece: Stored | None) -> None:
        if not isinstance(piece, Piece):
            raise Corrupt("a staging log holds rows, and this one a reference")
        self._held = piece
        self._next = piece.first_llsn

    def close(self) -> None:
        self._pieces.close()


class Single:
    """A sequence of one."""

    def __init__(self, piece: Referred) -> None:
        self._piece: Referred | None = piece

    async def next(self) -> Referred | None:
        return self.next_ready()

    def next_ready(self) -> Referred | None:
        piece, self._piece = self._piece, None
        return piece

    def close(self) -> None:
        self._piece = None
