"""Conditional appends: they succeed only if no entry has a position after the expected tail.

A protocol refuses such a batch if anything else has, or may get, a position after the expected one.
That may not become an entry: it may be a hole that a writer left, the end of a sequencer or of a
segment, or an append or a transaction that fails. So after a refusal the log is read from the
expected position. If there is an entry, it is the conflict; after positions that will never have
one, the append is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from loomlog.client.append.appender import Appender
from loomlog.client.append.options import AppendOptions
from loomlog.client.context import Client, Retries
from loomlog.client.subscribe.log_pieces import LogPieces
from loomlog.errors import Conflict, NotYetWritten, PermissionDenied, Timeout, Trimmed, seconds
from loomlog.types import Buffer, Gap, Glsn, Position

NEVER_WRITTEN: Final = ("hole", "bridge")  # kinds of gaps where there was never an entry
SETTLED_S: Final = 0.5  # after this, appends in flight have become entries or were given up


class ConditionalAppends:
    """Conditional appends to one log."""

    def __init__(
        self,
        log: str,
        appender: Appender,
        pieces: LogPieces,
        tail: Callable[[], Awaitable[Glsn]],
        client: Client,
    ) -> None:
        self._log = log
        self._appender = appender
        self._pieces = pieces
        self._tail = tail
        self._rng = client.rng
        self._timeout_s = client.settings.append_timeout_s
        self._read_s = SETTLED_S + 2 * client.settings.hole_timeout_s

    async def append(
        self,
        encoder: Callable[..., Buffer],
        count: int,
        size: int,
        options: AppendOptions,
        expected_tail: Glsn,
    ) -> Position:
        """Append one batch if no entry has a position above `expected_tail`; otherwise raise
        Conflict."""
        timeout_s = self._timeout_s if options.timeout_s is None else options.timeout_s
        retries = Retries(self._rng, timeout_s)
        attempt = partial(self._appender.append_whole, encoder, count, size)
        tail = expected_tail
        try:
            while True:
                left_s = retries.deadline_s - asyncio.get_running_loop().time()
                try:
                    return await attempt(options._replace(timeout_s=left_s, expected_tail=tail))
                except (Conflict, NotYetWritten):
                    pass
                async with asyncio.timeout_at(retries.deadline_s):
                    tail = await self._empty_up_to(tail, expected_tail)
                if not await retries.pause():
                    raise TimeoutError
        except TimeoutError:
            raise Timeout(
                f"append to log {self._log!r}: not appended within {seconds(timeout_s)}: other "
                f"appends behind position {expected_tail} are under way; try again"
            ) from None

    async def _empty_up_to(self, empty: Glsn, expected: Glsn) -> Glsn:
        """Return a position up to which there is no entry after the expected one. `empty` is such a
        position that is already known. Raise Conflict if there is an entry."""
        tail = await self._tail()
        if tail < expected:
            raise self._conflict(expected, f"the tail is {tail}")
        pieces = self._pieces.rows(empty + 1, max(tail, empty + 1), archived=False, gaps=True)
        try:
            async with asyncio.timeout(self._read_s):
                while (piece := await pieces.next()) is not None:
                    if not isinstance(piece, Gap) or piece.kind not in NEVER_WRITTEN:
                        raise self._conflict(expected, f"position {empty + 1} is taken")
                    empty = piece.last
        except TimeoutError:
            pass  # nothing has become an entry so far
        except Trimmed:
            raise self._conflict(expected, f"position {empty + 1} was trimmed") from None
        except PermissionDenied:
            raise self._conflict(expected, f"the tail is {tail}, or about to be higher") from None
        finally:
            pieces.close()
        return empty

    def _conflict(self, expected: Glsn, why: str) -> Conflict:
        return Conflict(
            f"append to log {self._log!r}: nothing was appended, since {expected} is not the tail: "
            f"{why}; read on from there, then decide"
        )
