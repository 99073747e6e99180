"""Opens the entries of one log as sequences of pieces, stacked as the package docstring shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from loomlog import limits
from loomlog.client.arguments import STARTS, check_flag, check_number, is_int
from loomlog.client.cached_log import CachedLog
from loomlog.client.loglets.contract import FollowOptions
from loomlog.client.loglets.registry import Loglets
from loomlog.client.subscribe.numbering import ByPosition, InStream
from loomlog.client.subscribe.pieces import Piece, Pieces, Referred, Shown, Stored, WithoutPayloads
from loomlog.client.subscribe.references import OneReference, WithoutReferences
from loomlog.client.subscribe.subscription import OpenSubscriptions, Subscription
from loomlog.client.subscribe.with_archive import ArchivedLog, WithArchive
from loomlog.client.transactions.decisions import Decisions, OnlyCommitted
from loomlog.errors import InvalidArgument, NotFound, shown
from loomlog.types import Entry, Glsn, Llsn, StreamId

_ROW_READ_AHEAD_BYTES: Final = limits.KIB  # at least one batch is always sent


class LogPieces:
    """Opens sequences of one log."""

    def __init__(
        self,
        log: CachedLog,
        loglets: Loglets,
        archived: ArchivedLog,
        subscriptions: OpenSubscriptions,
        read_ahead_bytes: int,
        head: Callable[[], Awaitable[Glsn]],
        pieces_of: Callable[[str], LogPieces],
        decisions: Callable[[], Decisions],
    ) -> None:
        """`head` returns the first position kept, `pieces_of` the LogPieces of another log, and
        `decisions` the decisions on transactions."""
        self._log = log
        self._loglets = loglets
        self._archived = archived
        self._subscriptions = subscriptions
        self._read_ahead_bytes = read_ahead_bytes
        self._head = head
        self._pieces_of = pieces_of
        self._decisions = decisions

    # ---- rows as users see them

    def rows(
        self,
        start: Glsn | str,
        stop: Glsn | None,
        *,
        archived: bool = True,
        gaps: bool = False,
        payloads: bool = True,
        passes_lost_files: bool | None = None,
    ) -> Pieces[Shown]:
        """Return rows from `start` to `stop`; the arguments are those of `Log.subscribe_arrow`. If
        `passes_lost_files` (by default, like `gaps`), missing files of the archive are reported as
        gaps; otherwise they raise an error, since they may come back."""
        if not isinstance(start, str) or start not in STARTS:
            check_number("start", start, *STARTS)
        _check_stop("stop", stop)
        for name, flag in (("archived", archived), ("gaps", gaps), ("payloads", payloads)):
            check_flag(name, flag)

        def from_log(start: Glsn | str) -> Pieces[Shown]:
            stored = self.stored(start, stop, gaps=gaps)
            return self._without_references(self._committed(stored, gaps), gaps=gaps)

        if archived:
            pieces: Pieces[Shown] = WithArchive(
                self._archived,
                from_log,
                start,
                stop,
                gaps=gaps,
                passes_lost_files=gaps if passes_lost_files is None else passes_lost_files,
            )
        else:
            pieces = from_log(start)
        return pieces if payloads else WithoutPayloads(pieces)

    def stream_rows(
        self, stream: StreamId, start_llsn: Llsn, stop_llsn: Llsn | None
    ) -> Pieces[Shown]:
        stored = self.stored_stream(stream, start_llsn, stop_llsn)
        return self._without_references(self._committed(stored))

    async def row(self, single: Referred | Piece) -> Entry:
        """Return the entry of a reference to one row, or of one row of a transaction; raise
        NotFound if that was not committed."""
        if isinstance(single, Piece):
            return await self._committed_entry(single)
        pieces = self._without_references(OneReference(single), rows=1)
        try:
            piece = await pieces.next()
            assert isinstance(piece, Piece)
            return next(iter(piece.entries()))
        finally:
            pieces.close()

    async def _committed_entry(self, piece: Piece) -> Entry:
        cell, [entry] = piece.header.cell, piece.entries()
        if cell is not None and not await self._decisions().is_committed(cell):
            raise NotFound(
                f"position {entry.position} of log {self._log.name!r} has no entry and never will: "
                "its transaction was not completed"
            )
        return entry

    def _committed(self, stored: Pieces[Stored], gaps: bool = False) -> OnlyCommitted:
        return OnlyCommitted(stored, self._log.name, self._decisions(), gaps=gaps)

    def _without_references(
        self, stored: Pieces[Stored], rows: int | None = None, *, gaps: bool = False
    ) -> WithoutReferences:
        """Replace references by rows. `rows` limits how many staged rows are read per range."""

        def open_staged(staging: str, stream: StreamId, first: Llsn) -> Subscription:
            last = None if rows is None else first + rows - 1
            ahead = None if rows is None else _ROW_READ_AHEAD_BYTES
            return self._pieces_of(staging).stored_stream(stream, first, last, ahead, gaps=True)

        return WithoutReferences(stored, self._log.name, self._head, open_staged, gaps=gaps)

    # ---- batches as they are stored, including references

    def stored(self, start: Glsn | str, stop: Glsn | None, *, gaps: bool = False) -> Subscription:
        numbering = ByPosition(self._loglets)
        options = FollowOptions(numbering, self._read_ahead_bytes, gaps)
        return self._subscription(options, start, stop)

    def stored_stream(
        self,
        stream: StreamId,
        start_llsn: Llsn,
        stop_llsn: Llsn | None,
        read_ahead_bytes: int | None = None,
        *,
        gaps: bool = False,
    ) -> Subscription:
        check_number("stream", stream)
        check_number("start_llsn", start_llsn)
        _check_stop("stop_llsn", stop_llsn)
        numbering = InStream(stream, self._loglets)
        options = FollowOptions(numbering, read_ahead_bytes or self._read_ahead_bytes, gaps)
        return self._subscription(options, start_llsn, stop_llsn)

    def _subscription(
        self, options: FollowOptions, start: int | str, stop: int | None
    ) -> Subscription:
        self._subscriptions.check_open()
        return Subscription(self._log, self._loglets, options, start, stop, self._subscriptions)


def _check_stop(name: str, stop: object) -> None:
    if stop is not None and not is_int(stop):
        raise InvalidArgument(f"{name} must be a position or None, not {shown(stop)}")
