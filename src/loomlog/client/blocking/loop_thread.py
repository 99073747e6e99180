"""An event loop in a background thread, and wrappers that call async methods on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from loomlog.errors import Unavailable

T = TypeVar("T")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
B = TypeVar("B")
P = ParamSpec("P")


class LoopThread:
    """An event loop in a background thread."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="loomlog-client", daemon=True)
        # Guards `_stopped`; reentrant, because destructors may run while it is held.
        self._lock = threading.RLock()
        self._stopped = False
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; raise Unavailable after `stop`."""
        with self._lock:
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise Unavailable("this client was closed")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        future = self.start(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable("this client was closed") from None
        except BaseException:
            future.cancel()  # after Ctrl-C while waiting
            raise

    def stop(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_others())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


class BlockingFace(Generic[A_co]):
    """Base class of wrappers around objects of the async client, which any thread may use."""

    def __init__(self, thread: LoopThread, target: A_co) -> None:
        self._thread = thread
        self._target = target


class AsyncContext(Protocol):
    """An async context manager."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


C_co = TypeVar("C_co", bound=AsyncContext, covariant=True)


class BlockingContext(BlockingFace[C_co]):
    """Base class of wrappers around async context managers, for use with `with`."""

    def __enter__(self) -> Self:
        self._thread.run(self._target.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.run(self._target.__aexit__(kind, error, traceback))


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingFace[A], P], T]:
    """Return a method that runs an async method on the loop and waits for its result."""

    @functools.wraps(method)
    def call(self: BlockingFace[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._target, *args, **kwargs))

    return call


def blocking_as(
    kind: Callable[[LoopThread, T], B],
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingFace[A], P], B]:
    """Like `blocking`, but wrap the result in a blocking class."""

    @functools.wraps(method)
    def call(self: BlockingFace[A], /, *args: P.args, **kwargs: P.kwargs) -> B:
        return kind(self._thread, self._thread.run(method(self._target, *args, **kwargs)))

    return call


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
