"""Work queues for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from loomlog.client.blocking.loop_thread import BlockingContext, BlockingFace, LoopThread, blocking
from loomlog.client.queues.queue import Job, Queue
from loomlog.types import Entry


class BlockingJob(BlockingFace[Job]):
    """An entry to process; the blocking form of `Job`."""

    def __init__(self, thread: LoopThread, job: Job) -> None:
        super().__init__(thread, job)
        self.entry: Entry = job.entry
        self.attempts = job.attempts
        self.position = job.position
        self.key = job.key
        self.value = job.value
        self.headers = job.headers
        self.timestamp_us = job.timestamp_us

    @property
    def timestamp(self) -> datetime:
        """When the writer appended the entry, in UTC."""
        return self.entry.timestamp

    def __repr__(self) -> str:
        return f"<BlockingJob at {self.position}, attempt {self.attempts}>"

    ack = blocking(Job.ack)
    retry = blocking(Job.retry)


class BlockingQueue(BlockingContext[Queue]):
    """A work queue on one log; the blocking form of `Queue`. `with` joins the queue; then it is an
    iterator over jobs, which several threads may use at once."""

    def __init__(self, thread: LoopThread, queue: Queue) -> None:
        super().__init__(thread, queue)
        self.name = queue.name

    def __repr__(self) -> str:
        return f"<BlockingQueue {self.name!r}>"

    def __iter__(self) -> Iterator[BlockingJob]:
        while True:
            yield BlockingJob(self._thread, self._thread.run(self._target._next()))

    describe = blocking(Queue.describe)
    delete = blocking(Queue.delete)
