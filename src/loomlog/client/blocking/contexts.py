"""The context managers of the blocking client: groups, queues, pipelines and transactions."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Mapping
from datetime import datetime

from loomlog.client.append.pipeline import Pipeline
from loomlog.client.blocking.loop_thread import BlockingContext, BlockingFace, LoopThread, blocking
from loomlog.client.groups.group import Group
from loomlog.client.queues.queue import Job, Queue
from loomlog.client.transactions.transaction import Transaction
from loomlog.types import Buffer, Entry, Position


class BlockingGroup(BlockingContext[Group]):
    """A consumer group of one log; the blocking form of `Group`. `with` joins the group; then it is
    an iterator over the entries of the shards that this member owns, in order."""

    def __init__(self, thread: LoopThread, group: Group) -> None:
        super().__init__(thread, group)
        self.name = group.name

    def __repr__(self) -> str:
        return f"<BlockingGroup {self.name!r}>"

    def __iter__(self) -> Iterator[Entry]:
        group = self._target
        consumption = group._consumption_joined()
        while True:
            for entry in self._thread.run(group._next_entries()):
                consumption.reading = entry.position
                yield entry
                if group._stale:
                    break

    @property
    def member(self) -> str:
        """The id of this member; raise InvalidArgument before it has joined."""
        return self._target.member

    @property
    def shards(self) -> frozenset[int]:
        """The shards that this member currently owns."""
        return self._target.shards

    commit = blocking(Group.commit)
    describe = blocking(Group.describe)
    reset = blocking(Group.reset)
    delete = blocking(Group.delete)


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


class BlockingPipeline(BlockingContext[Pipeline]):
    """Ordered appends to one log; the blocking form of `Pipeline`. A context manager that waits for
    all of them on exit."""

    def append(
        self,
        value: Buffer,
        key: Buffer | None = None,
        *,
        headers: Mapping[str, bytes] | None = None,
        timestamp: datetime | float | None = None,
    ) -> concurrent.futures.Future[Position]:
        """Append one entry after all earlier ones and return a future of its position; see
        `Pipeline.append`."""
        record = self._target._record(value, key, headers, timestamp)

        async def append() -> Position:
            return await self._target._put(*record)

        return self._thread.start(append())

    flush = blocking(Pipeline.flush)


class BlockingTransaction(BlockingContext[Transaction]):
    """Entries for several logs that become visible together at the end of the `with` block; the
    blocking form of `Transaction`."""

    @property
    def positions(self) -> dict[str, list[Position]]:
        """The positions of the entries in each log, once they are visible."""
        return self._target.positions

    def append(
        self,
        log: str,
        value: Buffer,
        key: Buffer | None = None,
        *,
        headers: Mapping[str, bytes] | None = None,
        timestamp: datetime | float | None = None,
    ) -> None:
        """Add an entry for the log named `log`; see `Transaction.append`."""
        self._target.append(log, value, key, headers=headers, timestamp=timestamp)

    commit = blocking(Transaction.commit)
