"""Opens the entries of one log as sequences; the package's docstring shows how they are stacked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from loomlog import limits
from loomlog.client.arguments import STARTS, check_number, is_int
from loomlog.client.loglets.contract import FollowOptions
from loomlog.client.loglets.registry import Loglets
from loomlog.client.servers import CachedLog
from loomlog.client.subscribe.numbering import ByPosition, InStream
from loomlog.client.subscribe.pieces import Piece, Pieces, Referred, Shown, Stored, WithoutPayloads
from loomlog.client.subscribe.references import OneReference, WithoutReferences
from loomlog.client.subscribe.subscription import OpenSubscriptions, Subscription
from loomlog.client.subscribe.with_archive import ArchivedLog, WithArchive
from loomlog.errors import InvalidArgument
from loomlog.types import Entry, Glsn, Llsn, StreamId

_ROW_READ_AHEAD_BYTES: Final = limits.KIB  # at least one batch is always sent


class LogPieces:
    """The sequences of one log, for one client."""

    def __init__(
        self,
        log: CachedLog,
        loglets: Loglets,
        archived: ArchivedLog,
        subscriptions: OpenSubscriptions,
        read_ahead_bytes: int,
        head: Callable[[], Awaitable[Glsn]],
        pieces_of: Callable[[str], LogPieces],
    ) -> None:
        """`head` returns the first position kept; `pieces_of` returns a staging log's pieces."""
        self._log = log
        self._loglets = loglets
        self._archived = archived
        self._subscriptions = subscriptions
        self._read_ahead_bytes = read_ahead_bytes
        self._head = head
        self._pieces_of = pieces_of

    # ---- rows, as users see them

    def rows(
        self,
        start: Glsn | str,
        stop: Glsn | None,
        *,
        archived: bool = True,
        gaps: bool = False,
        payloads: bool = True,
    ) -> Pieces[Shown]:
        if start not in STARTS:
            check_number("start", start, *STARTS)
        if stop is not None and not is_int(stop):
            raise InvalidArgument(f"stop must be a position or None, not {stop!r}")

        def from_log(start: Glsn | str) -> Pieces[Shown]:
            return self._without_references(self.stored(start, stop, gaps=gaps, payloads=payloads))

        if archived:
            pieces: Pieces[Shown] = WithArchive(self._archived, from_log, start, stop, gaps=gaps)
        else:
            pieces = from_log(start)
        return pieces if payloads else WithoutPayloads(pieces)

    def stream_rows(
        self, stream: StreamId, start_llsn: Llsn, stop_llsn: Llsn | None
    ) -> Pieces[Shown]:
        return self._without_references(self.stored_stream(stream, start_llsn, stop_llsn))

    async def row(self, referred: Referred) -> Entry:
        """Return the row that a reference names."""
        pieces = self._without_references(OneReference(referred), rows=1)
        try:
            piece = await pieces.next()
            assert isinstance(piece, Piece)
            return piece.entries()[0]
        finally:
            pieces.close()

    def _without_references(
        self, stored: Pieces[Stored], rows: int | None = None
    ) -> WithoutReferences:
        """Replace references; `rows` limits the staged rows read per range."""

        def open_staged(staging: str, stream: StreamId, first: Llsn) -> Subscription:
            pieces = self._pieces_of(staging)
            if rows is None:
                return pieces.stored_stream(stream, first, None)
            return pieces.stored_stream(stream, first, first + rows - 1, _ROW_READ_AHEAD_BYTES)

        return WithoutReferences(stored, self._log.name, self._head, open_staged)

    # ---- batches as stored, including references

    def stored(
        self,
        start: Glsn | str,
        stop: Glsn | None,
        *,
        gaps: bool = False,
        payloads: bool = True,
    ) -> Subscription:
        numbering = ByPosition(self._loglets)
        options = FollowOptions(numbering, self._read_ahead_bytes, gaps, payloads)
        return self._subscription(options, start, stop)

    def stored_stream(
        self,
        stream: StreamId,
        start_llsn: Llsn,
        stop_llsn: Llsn | None,
        read_ahead_bytes: int | None = None,
    ) -> Subscription:
        check_number("start_llsn", start_llsn)
        numbering = InStream(stream, self._loglets)
        options = FollowOptions(numbering, read_ahead_bytes or self._read_ahead_bytes)
        return self._subscription(options, start_llsn, stop_llsn)

    def _subscription(
        self, options: FollowOptions, start: int | str, stop: int | None
    ) -> Subscription:
        self._subscriptions.check_open()
        return Subscription(self._log, self._loglets, options, start, stop, self._subscriptions)
