"""Subscriptions for programs without an event loop. Entries are fetched ahead in chunks, so that
iterating costs one thread switch per chunk, not per entry."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Self, TypeVar

from loomlog.client.blocking.loop_thread import LoopThread
from loomlog.client.subscribe.pieces import Pieces, Shown
from loomlog.errors import Timeout, Unavailable, seconds
from loomlog.types import Gap

T = TypeVar("T")

CHUNK_ENTRIES: Final = 4096  # enough to make the cost of switching threads negligible


class BlockingSubscription(Iterator[T]):
    """An iterator over a subscription, for one consumer at a time. Any thread may close it, which
    ends the iteration; as a context manager it is closed on exit."""

    def __init__(
        self,
        thread: LoopThread,
        log: str,
        subscription: Pieces[Shown],
        items: Callable[[Shown], list[T]],
        timeout_s: float | None = None,
    ) -> None:
        self._chunks = _Chunks(thread, log, subscription, items, timeout_s)
        self._all = _iterate(self._chunks)

    def __iter__(self) -> Iterator[T]:
        return self._all  # a generator is cheaper per item than __next__

    def __next__(self) -> T:
        return next(self._all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription; may be called twice."""
        self._chunks.close()


def _iterate(chunks: _Chunks[T]) -> Iterator[T]:
    try:
        while chunk := chunks.next():
            yield from chunk
    finally:
        chunks.close()


class _Chunks(Generic[T]):
    """Fetches the next chunk while the current one is consumed."""

    def __init__(
        self,
        thread: LoopThread,
        log: str,
        subscription: Pieces[Shown],
        items: Callable[[Shown], list[T]],
        timeout_s: float | None,
    ) -> None:
        self._thread = thread
        self._log = log
        self._subscription = subscription
        self._items = items
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # nothing is fetched after `close`
        self._ahead: concurrent.futures.Future[list[T]] | None = None
        self._closed = False

    def next(self) -> list[T]:
        """Return the next items; an empty list at the end or once closed."""
        if self._ahead is None:
            self._fetch()
        if (ahead := self._ahead) is None:
            return []
        try:
            chunk = ahead.result(self._timeout_s)
        except TimeoutError:
            raise Timeout(
                f"log {self._log!r}: nothing came for {seconds(self._timeout_s or 0.0)}; try "
                "again, and see `loom status`"
            ) from None
        except concurrent.futures.CancelledError:
            if not self._closed:
                raise Unavailable("this client was closed") from None
            return []
        self._fetch()
        return chunk

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
        _end(self._thread, self._subscription)

    def _fetch(self) -> None:
        with self._lock:
            if not self._closed:
                self._ahead = self._thread.start(_chunk(self._subscription, self._items))


def entries(piece: Shown) -> list[Any]:
    return [piece] if isinstance(piece, Gap) else piece.entries()


def arrow(piece: Shown) -> list[Any]:
    return [piece] if isinstance(piece, Gap) else [piece.to_arrow()]


async def _chunk(subscription: Pieces[Shown], items: Callable[[Shown], list[T]]) -> list[T]:
    """Return the items that have arrived, waiting for at least one; an empty list at the end."""
    found: list[T] = []
    rows = 0
    piece = await subscription.next()
    while piece is not None:
        found += items(piece)
        rows += 1 if isinstance(piece, Gap) else piece.rows
        if rows >= CHUNK_ENTRIES:
            break
        piece = subscription.next_ready()
    return found


def _end(thread: LoopThread, subscription: Pieces[Shown]) -> None:
    async def end() -> None:
        subscription.close()

    try:
        thread.run(end())
    except Unavailable:
        pass  # the client was closed, and the subscription with it
