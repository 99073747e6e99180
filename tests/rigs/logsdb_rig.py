"""A store of logs driven by hand: no thread, no clock, the real disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from loomlog.core.copyset.messages import (
    Amend,
    Delivered,
    Done,
    NodeAnswer,
    NodeRequest,
    Read,
    Release,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.limits import MIB
from loomlog.storage.files import Finished, Step
from loomlog.storage.logsdb.rows import PartitionSettings
from loomlog.storage.logsdb.store import LogsStore
from loomlog.storage.logsdb.table import LogsTable

ME = 7
LOG = 1
OTHER = 2
COPYSET = (ME, 8, 9)
SECOND = 1_000_000
LARGE = b"batch"  # by these settings
SMALL = PartitionSettings(duration_s=10, bytes_max=MIB, large_batch_bytes=len(LARGE))


def record(
    offset: int,
    count: int = 1,
    *,
    epoch: int = 1,
    wave: int = 1,
    at_s: float = 0,
    recovered: int = 0,
    batch: bytes = LARGE,
    kind: Kind = Kind.DATA,
) -> Record:
    time_us = int(at_s * SECOND)
    content = batch if kind is Kind.DATA else b""
    return Record(make(epoch, offset), count, kind, time_us, COPYSET, wave, 0, recovered, content)


class AnyWorker:
    """Runs a job when the test requests it, and passes on its error."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Sequence[Step], Finished]] = deque()

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self.jobs.append((steps, finished))

    run_short = run

    def work(self) -> None:
        """Do the oldest job."""
        steps, finished = self.jobs.popleft()
        error: BaseException | None = None
        try:
            for step in steps:
                step()
        except Exception as raised:
            error = raised
        finished(error)

    def close(self) -> None:
        pass


class LogsRig:
    def __init__(self, table: LogsTable, *, sync: bool = True) -> None:
        self.table = table
        self.commits, self.look_ups, self.upkeep = AnyWorker(), AnyWorker(), AnyWorker()
        self.store = LogsStore(ME, table, self.commits, self.look_ups, self.upkeep, sync=sync)

    def ask(self, request: NodeRequest) -> NodeAnswer:
        answers: list[NodeAnswer] = []
        self.store.ask(request, answers.append)
        self.work()
        [answer] = answers
        return answer

    def work(self) -> None:
        for worker in (self.commits, self.look_ups, self.upkeep):
            while worker.jobs:
                worker.work()

    def put(self, *records: Record, log: int = LOG) -> None:
        """Store all records in one or two commits."""
        answers: list[NodeAnswer] = []
        for each in records:
            self.store.ask(Store(log, each), answers.append)
        self.work()
        assert answers == [Stored()] * len(records)

    def amend(self, amended: Record, log: int = LOG) -> NodeAnswer:
        return self.ask(Amend(log, amended._replace(batch=b"")))

    def settle(self) -> None:
        self.store.settle()
        self.work()

    def tend(self, at_s: float) -> None:
        self.store.tend(int(at_s * SECOND))
        self.work()

    def trim(self, offset: int, *, epoch: int = 1, log: int = LOG) -> None:
        assert self.ask(Trim(log, make(epoch, offset))) == Done()

    def read(self, first: int = 1, last: int = 1 << 20, *, log: int = LOG) -> list[Record]:
        """Release epoch 1 and return all its stored records."""
        assert self.ask(Release(log, make(1, last))) == Done()
        found: list[Record] = []
        at, until = make(1, first), make(1, last)
        while at <= until:
            part = self.ask(Read(log, at, until, 100_000, everything=True))
            assert isinstance(part, Delivered)
            found += part.records
            at = part.next_lsn
        return found
