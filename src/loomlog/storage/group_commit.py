"""Group commit: requests in, answers out, one synced commit for all waiting requests.

    commits    requests that may change something, decided one after the other in a worker, in the
               order of arrival; then ONE commit; then the answers
    look-ups   in a worker of their own, so that they do not wait for commits; they see only
               committed changes

After a failed commit, every answer is that the disk failed: a failed sync says nothing about what
reached the disk.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from loomlog import tracing
from loomlog.limits import KIB, MIB
from loomlog.storage.files import DamagedRowsError, Worker, clear_frames_of

logger = logging.getLogger(__name__)

WAITING_BYTES_MAX: Final = 128 * MIB  # batches waiting for the disk; more are refused
SHORT_BYTES_MAX: Final = 16 * KIB  # writing more takes longer than a sync
LOOK_UPS_MAX: Final = 4096  # waiting for the disk; more are refused

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")
RefusalT = TypeVar("RefusalT")
FoundT = TypeVar("FoundT")


class GroupCommit(ABC, Generic[RequestT, AnswerT, RefusalT]):
    """The part of a store that orders its requests. Lives on the loop; blocking work runs in the
    workers."""

    content: str  # what the store contains, for messages

    def __init__(
        self, commits: Worker, look_ups: Worker, on_failure: Callable[[BaseException], None]
    ) -> None:
        """`on_failure` is called when a commit fails."""
        self._commits = commits
        self._look_ups = look_ups
        self._on_failure = on_failure
        self._waiting: list[tuple[RequestT, Callable[[AnswerT | RefusalT], None]]] = []
        self._waiting_bytes = 0
        self._is_urgent = False  # a caller waits for the next commit
        self._under_way = False
        self._looking = 0
        self._tracer = tracing.active()
        self._traces: list[str] = []  # of waiting requests; the sync is part of the first one
        self.on_damage: Callable[[DamagedRowsError], None] | None = None  # set by its owner
        self.failed: RefusalT | None = None  # the answer to all requests after a failed commit

    # ---- implemented by the store

    @abstractmethod
    def _commit(self, requests: Sequence[RequestT], size: int) -> Sequence[AnswerT]:
        """Decide the requests, which have `size` bytes of batches, and commit their changes. Return
        the answers, in order. Runs in the worker."""

    @abstractmethod
    def _disk_failed(self, error: BaseException) -> RefusalT:
        """Return the answer that the disk failed."""

    def _note(self) -> None:
        """Called on the loop after a commit, before the next one begins and before the answers."""

    def _lost(self, request: RequestT, refused: RefusalT) -> AnswerT | RefusalT:
        """Return the answer to a request whose commit failed."""
        return refused

    def _rest(self) -> None:
        """Called on the loop when no request is waiting."""

    # ---- commits

    def _enqueue(
        self, request: RequestT, size: int, done: Callable[[AnswerT | RefusalT], None]
    ) -> bool:
        """Add a request to the next commit and start it. Return False if too much is waiting for
        the disk."""
        if self._waiting and self._waiting_bytes + size > WAITING_BYTES_MAX:
            return False
        if self._tracer is not None:
            done = self._traced(self._tracer, size, done)
        self._waiting.append((request, done))
        self._waiting_bytes += size
        self._is_urgent = True
        if not self._under_way:
            self._start()
        return True

    def _add(self, request: RequestT, done: Callable[[AnswerT | RefusalT], None]) -> None:
        """Add a request to the next commit without starting it."""
        self._waiting.append((request, done))

    def _hurry(self) -> None:
        """Commit the waiting requests as soon as possible."""
        self._is_urgent = bool(self._waiting)
        if self._is_urgent and not self._under_way:
            self._start()

    def _traced(
        self, tracer: tracing.Tracer, size: int, done: Callable[[AnswerT | RefusalT], None]
    ) -> Callable[[AnswerT | RefusalT], None]:
        """Trace a request until it is answered."""
        span = tracer.begin("store", {"bytes": size})
        self._traces.append(tracer.current())

        def ended(answer: AnswerT | RefusalT) -> None:
            tracer.end(span)
            done(answer)

        return ended

    def _start(self) -> None:
        """Start a commit of all waiting requests."""
        group, size = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes, self._is_urgent = [], 0, False
        answers: list[AnswerT] = []

        def carry_out() -> None:
            if self.failed is None:
                answers.extend(self._commit([request for request, _ in group], size))

        def committed(error: BaseException | None) -> None:
            if error is not None:
                self._commit_failed(error)
            failed = self.failed
            if failed is None:
                self._note()
            self._under_way = False
            if self._is_urgent:
                self._start()
            if failed is not None:
                for request, done in group:
                    done(failed if error is None else self._lost(request, failed))
                return
            for index, (_, done) in enumerate(group):
                done(answers[index])
            if not self._under_way:
                self._rest()

        finished: tracing.Finished = committed
        if self._tracer is not None:
            trace = next(filter(None, self._traces), "")
            self._traces.clear()
            finished = self._tracer.ending("sync", {"requests": len(group)}, finished, trace)
        self._under_way = True
        run = self._commits.run_short if size <= SHORT_BYTES_MAX else self._commits.run
        run([carry_out], finished)

    def _commit_failed(self, error: BaseException) -> None:
        self.fail(error)
        self._on_failure(error)

    def fail(self, error: BaseException) -> None:
        """Refuse everything from now on."""
        if self.failed is None:
            # Not the error itself: its traceback would keep the table open.
            logger.error("%s cannot be written any more: %s", self.content, str(error))
            self.failed = self._disk_failed(error)

    # ---- look-ups

    def _look_up(
        self,
        question: Callable[[], FoundT],
        done: Callable[[FoundT | RefusalT], None],
        unreadable: Callable[[BaseException], RefusalT],
    ) -> bool:
        """Run `question` in the worker and call `done` with its answer, or with `unreadable` of the
        error that it raised. Return False if too many are waiting for the disk."""
        if self._looking >= LOOK_UPS_MAX:
            return False
        answers: list[FoundT | RefusalT] = []
        self._looking += 1

        def finished(error: BaseException | None) -> None:
            self._looking -= 1
            if error is not None:
                answers.append(unreadable(error))
                clear_frames_of(error)
            if isinstance(error, DamagedRowsError) and self.on_damage is not None:
                self.on_damage(error)
            done(answers[0] if self.failed is None else self.failed)

        self._look_ups.run([lambda: answers.append(question())], finished)
        return True
