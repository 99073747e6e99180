"""Fetches pieces of a log in the background, for consumers that also wait for other events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loomlog.client.subscribe.pieces import Pieces, Rows, Shown
from loomlog.errors import LoomError
from loomlog.types import Gap, Glsn


class PieceFetcher:
    """Reads a log from a given position, and sets `wake` whenever a piece has arrived."""

    def __init__(self, open_at: Callable[[Glsn], Pieces[Shown]], wake: asyncio.Event) -> None:
        self._open_at = open_at
        self._wake = wake
        self._pieces: Pieces[Shown] | None = None
        self._fetch: asyncio.Task[Shown | None] | None = None
        self._returned: Rows | LoomError | None = None

    def begin(self, start: Glsn) -> None:
        """Begin to fetch the next piece. `start` is where to open the log if it is not open yet."""
        if self._fetch is None:
            if self._pieces is None:
                self._pieces = self._open_at(start)
            self._fetch = asyncio.create_task(_next(self._pieces))
            self._fetch.add_done_callback(lambda _: self._wake.set())

    def ready(self) -> Rows | None:
        """Return the next rows if they have arrived, skipping gaps."""
        while isinstance(piece := self.piece(), Gap):
            pass
        return piece

    def piece(self) -> Shown | None:
        """Return the next piece if it has arrived."""
        if self._returned is not None:
            returned, self._returned = self._returned, None
            if isinstance(returned, LoomError):
                raise returned
            return returned
        if self._fetch is not None:
            if not self._fetch.done():
                return None
            fetch, self._fetch = self._fetch, None
            return fetch.result()
        return None if self._pieces is None else self._pieces.next_ready()

    def put_back(self, found: Rows | LoomError) -> None:
        """Return these rows again, or raise this error again, before what follows."""
        self._returned = found

    def close(self) -> None:
        self._returned = None
        fetch, self._fetch = self._fetch, None
        if fetch is not None and not fetch.cancel() and not fetch.cancelled():
            fetch.exception()  # marks it as retrieved
        if self._pieces is not None:
            self._pieces.close()
            self._pieces = None


async def _next(pieces: Pieces[Shown]) -> Shown | None:
    return await pieces.next()
