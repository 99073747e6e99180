"""Subscriptions for programs without an event loop.

Entries are fetched ahead in chunks, so that iterating costs one thread switch per chunk rather than
per entry.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from typing import Any, Final, Generic, Self, TypeVar

from loomlog import limits
from loomlog.client.arguments import check_seconds
from loomlog.client.blocking.loop_thread import LoopThread
from loomlog.client.subscribe.pieces import Pieces, Shown
from loomlog.errors import LoomError, Timeout, Unavailable, seconds
from loomlog.types import Gap

T = TypeVar("T")
U = TypeVar("U")

CHUNK_ENTRIES: Final = 4096  # enough to make the cost of switching threads negligible


class BlockingSubscription(Iterator[T]):
    """An iterator over a subscription, for one consumer at a time.

    It can be continued after a Timeout, and after an item for which the function of `map` fails;
    other errors end it. Any thread may call `close`, which ends the iteration. It is also a context
    manager that closes it on exit."""

    def __init__(
        self,
        thread: LoopThread,
        log: str,
        subscription: Pieces[Shown],
        items: Callable[[Shown], list[T]],
        timeout_s: float | None = None,
    ) -> None:
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, 0.001, limits.CLIENT_TIMEOUT_S_MAX)
        self._chunks = _Chunks(thread, log, subscription, items, timeout_s)
        self._iterate: Callable[[list[T]], Iterator[T]] = iter
        self._left: Iterator[T] = iter(())

    def __next__(self) -> T:  # not a generator, which would end with the first Timeout
        while True:
            for item in self._left:
                return item
            if not (chunk := self._chunks.next()):
                raise StopIteration
            self._left = self._iterate(chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(self, function: Callable[[T], U]) -> BlockingSubscription[U]:
        """Return a subscription that applies `function` to each item and replaces this one."""
        mapped: Any = copy(self)
        iterate = self._iterate
        mapped._iterate = lambda chunk: map(function, iterate(chunk))
        mapped._left = map(function, self._left)
        return mapped  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the subscription. Calling it again does nothing."""
        self._chunks.close()
        self._left = iter(())


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
        self._lock = threading.Lock()  # so that nothing is fetched after `close`
        self._ahead: concurrent.futures.Future[list[T]] | None = None
        self._closed = False

    def __del__(self) -> None:
        if self._close():
            with suppress(Unavailable):
                self._thread.start(_end(self._subscription))  # cannot wait: this may be any thread

    def next(self) -> list[T]:
        """Return the next items, or an empty list at the end or after `close`."""
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
        except LoomError:
            self.close()
            raise
        if chunk:
            self._fetch()
        else:
            self.close()
        return chunk

    def close(self) -> None:
        if self._close():
            with suppress(Unavailable):  # the client was closed, and the subscription with it
                self._thread.run(_end(self._subscription))

    def _close(self) -> bool:
        """Fetch nothing more; return False if it was closed before."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
        return was_open

    def _fetch(self) -> None:
        with self._lock:
            if not self._closed:
                self._ahead = self._thread.start(_chunk(self._subscription, self._items))


def entries(piece: Shown) -> list[Any]:
    return [piece] if isinstance(piece, Gap) else list(piece.entries())


def arrow(piece: Shown) -> list[Any]:
    return [piece] if isinstance(piece, Gap) else [piece.to_arrow()]


async def _chunk(subscription: Pieces[Shown], items: Callable[[Shown], list[T]]) -> list[T]:
    """Wait for at least one item and return all that have arrived, or an empty list at the end."""
    chunk: list[T] = []
    rows = 0
    piece = await subscription.next()
    while piece is not None:
        chunk += items(piece)
        rows += 1 if isinstance(piece, Gap) else piece.rows
        if rows >= CHUNK_ENTRIES:
            break
        piece = subscription.next_ready()
    return chunk


async def _end(subscription: Pieces[Shown]) -> None:
    subscription.close()
