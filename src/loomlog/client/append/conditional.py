"""Appends that happen only if nothing was appended behind an expected position.

A protocol refuses such a batch if anything else has, or may get, a position behind the expected
one. That may turn out to be nothing: a hole that a writer left, the end of a sequencer or of a
segment, or an append or a transaction that fails. So after a refusal the log is read on from the
expected position. An entry there is the conflict; behind positions that will never have one, the
append is repeated.
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

NOTHING: Final = ("hole", "bridge")  # gaps where no entry ever was
SETTLED_S: Final = 0.5  # within this, what is under way has become an entry or was given up


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
        self._look_s = SETTLED_S + 2 * client.settings.hole_timeout_s

    async def append(
        self,
        encoder: Callable[..., Buffer],
        count: int,
        size: int,
        options: AppendOptions,
        expected_tail: Glsn,
    ) -> Position:
        """Append one batch if nothing stands behind `expected_tail`, else raise Conflict."""
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

    async def _empty_up_to(self, known: Glsn, expected: Glsn) -> Glsn:
        """Return a position up to which there is no entry behind the expected one, at least the
        `known` one. Raise Conflict if there is an entry."""
        tail = await self._tail()
        if tail < expected:
            raise self._conflict(expected, f"the tail is {tail}")
        pieces = self._pieces.rows(known + 1, max(tail, known + 1), archived=False, gaps=True)
        try:
            async with asyncio.timeout(self._look_s):
                while (piece := await pieces.next()) is not None:
                    if not isinstance(piece, Gap) or piece.kind not in NOTHING:
                        raise self._conflict(expected, f"position {known + 1} is taken")
                    known = piece.last
        except TimeoutError:
            pass  # what was under way has not become an entry so far
        except Trimmed:
            raise self._conflict(expected, f"position {known + 1} was trimmed") from None
        except PermissionDenied:
            raise self._conflict(expected, f"the tail is {tail}, or about to be higher") from None
        finally:
            pieces.close()
        return known

    def _conflict(self, expected: Glsn, why: str) -> Conflict:
        return Conflict(
            f"append to log {self._log!r}: nothing was appended, since {expected} is not the tail: "
            f"{why}; read on from there, then decide"
        )
