"""Handlers of connections: a service dispatches requests to routes by the kind of their message.

A route is a plain function, which answers with `connection.send`, or a coroutine function, whose
result is the answer. An exception is sent back as an error frame; one that is not a LoomError is a
bug and is logged with its traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol

from loomlog.errors import InvalidArgument, LoomError
from loomlog.net.connection import Connection
from loomlog.net.frames import Codec, F, F_contra
from loomlog.net.notices import Notices

logger = logging.getLogger(__name__)

Route = Callable[[Connection[F], F, memoryview], Awaitable[F] | None]


class OnlyAnswers(Generic[F]):
    """The handler of a connection whose peer only answers."""

    def frame_received(
        self, connection: Connection[F], kind: str, frame: F, payload: memoryview
    ) -> None:
        """Ignore the frame: the peer sends no requests."""

    def connection_closed(self, connection: Connection[F], error: LoomError) -> None:
        """Do nothing: pending requests get the error."""


class Guard(Protocol[F_contra]):
    """Judges requests before they are served (wire.guard.Guard)."""

    is_on: bool  # otherwise only requests over TLS are judged

    def check(
        self, connection: Any, kind: str, frame: F_contra, payload: memoryview
    ) -> Awaitable[None] | None:
        """Raise if the peer may not send this. If there is a result, await it and check again."""


class Service(Generic[F]):
    """A connection handler with a table of routes."""

    def __init__(
        self, codec: Codec[F], routes: dict[str, Route[F]], guard: Guard[F] | None = None
    ) -> None:
        self._codec = codec
        self._guard = guard
        self._routes = routes
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._notices = Notices(logger)

    def frame_received(
        self, connection: Connection[F], kind: str, frame: F, payload: memoryview
    ) -> None:
        if self._stopped:
            return  # the connection is about to be closed
        route = self._routes.get(kind)
        try:
            guard = self._guard
            if guard is not None and (guard.is_on or connection.is_encrypted):
                waiting = guard.check(connection, kind, frame, payload)
                if waiting is not None:
                    connection.hold()
                    judging = self._judge_again(waiting, connection, kind, frame, payload)
                    self._spawn_awaiting(waiting, judging)
                    return
            if route is None:
                raise InvalidArgument(
                    f"this server does not take {kind or 'unknown'} messages: is it of the right "
                    "kind (vmr, vsn), and new enough?"
                )
            pending = route(connection, frame, payload)
        except Exception as error:
            self.answer_error(connection, frame, kind, error)
            return
        if pending is not None:
            self._spawn_awaiting(pending, self._answer(connection, frame, kind, pending))

    async def _judge_again(
        self,
        waiting: Awaitable[None],
        connection: Connection[F],
        kind: str,
        frame: F,
        payload: memoryview,
    ) -> None:
        try:
            await waiting
        except Exception as error:
            self.answer_error(connection, frame, kind, error)
        else:
            self.frame_received(connection, kind, frame, payload)
        finally:
            connection.release()

    def connection_closed(self, connection: Connection[F], error: LoomError) -> None:
        """Do nothing; subclasses may override it."""

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that is cancelled when this service stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _spawn_awaiting(self, awaited: Awaitable[Any], work: Coroutine[Any, Any, None]) -> None:
        """Run a task that awaits `awaited`, which is closed even if the task is cancelled before it
        begins."""
        task = self.spawn(work)
        if asyncio.iscoroutine(awaited):
            task.add_done_callback(lambda _: awaited.close())

    async def _answer(
        self, connection: Connection[F], frame: F, kind: str, pending: Awaitable[F]
    ) -> None:
        try:
            answer = await pending
        except Exception as error:
            self.answer_error(connection, frame, kind, error)
            return
        self.reply(connection, kind, frame, answer)

    def reply(self, connection: Connection[F], kind: str, frame: F, answer: F) -> None:
        """Answer a request of this kind."""
        answer.id = frame.id
        answer.reply = True
        connection.send(answer)

    def answer_error(
        self, connection: Connection[F], frame: F, kind: str, error: Exception
    ) -> None:
        """Send an error back to the peer."""
        if not isinstance(error, LoomError):
            self._notices.log(
                kind or "unknown", "cannot handle %s of %s", kind, connection.peer, error=error
            )
            error = LoomError(f"internal error while handling {kind}: see the server's log")
        if frame.id:
            connection.refuse(frame.id, error)
        else:
            self._notices.log("refused", "refused %s of %s: %s", kind, connection.peer, error)
