"""Requests to handlers by the kind of their message, and errors back to who asked.

A route is a plain function (it answers by itself, with `connection.send`) or a coroutine function
(its result is the answer). What it raises goes back as an error frame; only errors that are no
LoomError are logged with their traceback, since those are ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from loomlog.errors import InvalidArgument, LoomError
from loomlog.net.connection import Codec, Connection, Frame

logger = logging.getLogger(__name__)

Route = Callable[[Connection, Frame, memoryview], Awaitable[Frame] | None]


class Service:
    """A handler of connections with a table of routes."""

    def __init__(self, codec: Codec, routes: dict[str, Route]) -> None:
        self._codec = codec
        self._routes = routes
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        if self._stopped:
            return  # the connection is about to be closed
        kind = self._codec.kind(frame)
        route = self._routes.get(kind)
        try:
            if route is None:
                raise InvalidArgument(f"this server does not take {kind or 'unknown'} messages")
            pending = route(connection, frame, payload)
        except Exception as error:
            self.answer_error(connection, frame, kind, error)
            return
        if pending is not None:
            task = self.spawn(self._answer(connection, frame, kind, pending))
            if asyncio.iscoroutine(pending):  # a task that is stopped at once leaves it unstarted
                task.add_done_callback(lambda _: pending.close())

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        """Nothing to do here; owners that care override it."""

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that belongs to this service and ends with it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(
        self, connection: Connection, frame: Frame, kind: str, pending: Awaitable[Frame]
    ) -> None:
        try:
            answer = await pending
        except Exception as error:
            self.answer_error(connection, frame, kind, error)
            return
        self.reply(connection, frame, answer)

    def reply(self, connection: Connection, frame: Frame, answer: Frame) -> None:
        """Answer a request."""
        answer.id = frame.id
        answer.reply = True
        connection.send(answer)

    def answer_error(
        self, connection: Connection, frame: Frame, kind: str, error: Exception
    ) -> None:
        """Tell who asked what went wrong."""
        if not isinstance(error, LoomError):
            logger.error("cannot handle %s of %s", kind, connection.peer, exc_info=error)
            error = LoomError(f"internal error while handling {kind}: see the server's log")
        if frame.id:
            self.reply(connection, frame, self._codec.failure_frame(error))
        else:
            logger.warning("refused %s of %s: %s", kind, connection.peer, error)
