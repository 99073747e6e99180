"""Replaces references by the rows that they name.

Readers see only rows: each with its own position, stream and LLSN in the log, and with value, key
and time from the staging log. A reference may name more rows than fit into memory, so they are
read as they are consumed, a batch at a time.

Each stream of the staging log has a cursor: a subscription that continues from one reference to
the next, since rows are mostly published in the order in which they were staged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from loomlog.client.subscribe.pieces import Piece, Pieces, Referred, Stored
from loomlog.errors import Corrupt, DataLoss, LoomError, NotFound, Trimmed
from loomlog.references import Range
from loomlog.types import Gap, Glsn, Llsn, StreamId

SKIP_ROWS_MAX: Final = 64 * 1024  # rows that are cheaper to skip than to open another cursor
CURSORS_MAX: Final = 8  # each has its read-ahead in memory

_GONE = (Trimmed, NotFound, DataLoss)


OpenStaged: TypeAlias = Callable[[str, StreamId, Llsn], Pieces[Stored]]
"""Follows a stream of a staging log from an LLSN on."""


class _Position(NamedTuple):
    """The position of a reference's next row in the log that is read."""

    position: Glsn
    stream: StreamId
    llsn: Llsn

    def after(self, rows: int) -> _Position:
        return _Position(self.position + rows, self.stream, self.llsn + rows)


class WithoutReferences:
    """Pieces with references replaced by rows, for one consumer at a time."""

    def __init__(
        self,
        pieces: Pieces[Stored],
        log: str,
        head: Callable[[], Awaitable[Glsn]],
        open_staged: OpenStaged,
    ) -> None:
        """`head` returns the first position of the log that is kept."""
        self._pieces = pieces
        self._log = log
        self._head = head
        self._open_staged = open_staged
        self._cursors: dict[tuple[str, StreamId], _Cursor] = {}  # least recently used first
        self._staging = ""
        self._ranges: deque[Range] = deque()  # of the reference that is being expanded
        self._at = _Position(0, 0, 0)

    async def next(self) -> Piece | Gap | None:
        """Return the next records; None at the end."""
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
        """Wait until a cursor holds the first of the wanted rows."""
        cursor = self._cursors.pop((self._staging, wanted.stream), None)
        try:
            if cursor is not None and cursor.reaches(wanted.first):
                try:
                    await cursor.fetch(wanted.first)
                    return
                except _GONE:
                    pass  # rows before the wanted ones were trimmed: open another cursor
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
        """Return Trimmed if the reference was trimmed with its rows, else DataLoss."""
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
    """Follows one stream of a staging log; its LLSNs may have gaps."""

    def __init__(self, pieces: Pieces[Stored], first: Llsn) -> None:
        self._pieces = pieces
        self._next = first  # the LLSN of the first row held, or of the next one to arrive
        self._held: Piece | None = None

    def reaches(self, llsn: Llsn) -> bool:
        """Return whether it is cheaper to skip to `llsn` than to open another cursor there."""
        return self._next <= llsn <= self._next + SKIP_ROWS_MAX

    async def fetch(self, llsn: Llsn) -> None:
        """Wait until the row `llsn` is held."""
        while not self._holds(llsn):
            self._hold(await self._pieces.next())

    def take(self, wanted: Range) -> Piece | None:
        """Return the first wanted rows if they have arrived."""
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
        """Return whether the row `llsn` is held; drop held rows that end before it."""
        if self._held is None:
            return False
        if llsn < self._next:
            raise DataLoss(f"LLSN {llsn} is missing; the next one is {self._next}")
        if llsn < self._next + self._held.rows:
            return True
        self._next += self._held.rows
        self._held = None
        return False

    def _hold(self, piece: Stored | None) -> None:
        if not isinstance(piece, Piece):
            raise Corrupt("a staging log must hold rows, but this one holds a reference")
        self._held = piece
        self._next = piece.first_llsn

    def close(self) -> None:
        self._pieces.close()


class OneReference:
    """A sequence of one reference."""

    def __init__(self, piece: Referred) -> None:
        self._piece: Referred | None = piece

    async def next(self) -> Referred | None:
        return self.next_ready()

    def next_ready(self) -> Referred | None:
        piece, self._piece = self._piece, None
        return piece

    def close(self) -> None:
        self._piece = None
