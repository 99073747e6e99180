"""Subscriptions for programs without an event loop. Chunks are fetched ahead, so that iterating
costs one change of threads per chunk, not per entry."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from loomlog.client.archived import Pieces, Rows
from loomlog.client.loop_thread import LoopThread
from loomlog.errors import Timeout, Unavailable
from loomlog.types import Gap

T = TypeVar("T")

CHUNK_ENTRIES: Final = 4096  # enough that the change of threads does not show


def iterate(
    thread: LoopThread,
    log: str,
    subscription: Pieces,
    items: Callable[[Rows | Gap], list[T]],
    timeout_s: float | None = None,
) -> Iterator[T]:
    """Consume one chunk while the next is fetched."""
    ahead = thread.start(_chunk(subscription, items))
    try:
        while True:
            try:
                chunk = ahead.result(timeout_s)
            except concurrent.futures.TimeoutError:
                raise Timeout(
                    f"log {log!r}: nothing came for {timeout_s:g} s; try again, and see "
                    "`loom status`"
                ) from None
            except concurrent.futures.CancelledError:
                raise Unavailable("this client was closed") from None
            if not chunk:
                return
            ahead = thread.start(_chunk(subscription, items))
            yield from chunk
    finally:
        ahead.cancel()
        _end(thread, subscription)


def entries(piece: Rows | Gap) -> list[Any]:
    return [piece] if isinstance(piece, Gap) else piece.entries()


def arrow(piece: Rows | Gap) -> list[Any]:
    return [piece] if isinstance(piece, Gap) else [piece.to_arrow()]


async def _chunk(subscription: Pieces, items: Callable[[Rows | Gap], list[T]]) -> list[T]:
    """What is here already, at least one item; empty at the end."""
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


def _end(thread: LoopThread, subscription: Pieces) -> None:
    async def end() -> None:
        subscription.close()

    try:
        thread.run(end())
    except Unavailable:
        pass  # the client was closed, and the subscription with it
