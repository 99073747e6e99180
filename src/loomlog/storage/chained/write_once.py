"""Replicas of chains on a volume: requests in, answers out, one synced commit for all that waited.

    commits    requests that may change something, in the order they came, decided one after the
               other in a worker; then ONE commit; then the answers
    look-ups   in a worker of their own, so that they do not wait for those that wait for a
               commit; they see only what is committed

What may be asked and what it means is core/chained/replica.py's matter. After a commit has failed
nothing is answered but `Refused`. The writes of that commit are `Lost`: a failed sync says nothing
about what reached the disk. A replica with something that cannot be read continues, but is no
longer fit (`Check`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from loomlog.core.chained.chain import Block, Extent, Replica
from loomlog.core.chained.messages import (
    Answer,
    Check,
    Copy,
    Create,
    Refused,
    Remove,
    Request,
    Seal,
    Trim,
    Write,
)
from loomlog.core.chained.replica import (
    DAMAGED,
    Blocks,
    Change,
    Gone,
    Put,
    Standing,
    decide,
    look_up,
)
from loomlog.core.requests import Lost
from loomlog.errors import Busy, Corrupt
from loomlog.limits import KIB, MIB
from loomlog.storage.chained.block_table import BlockTable, MemoryBlocks, TrimmedMeanwhileError
from loomlog.storage.files import Worker
from loomlog.types import Glsn

logger = logging.getLogger(__name__)

Answered: TypeAlias = Callable[[Answer], None]

WAITING_BYTES_MAX: Final = 128 * MIB  # blocks waiting for the disk; more are refused
LOOK_UPS_MAX: Final = 4096  # waiting for the disk; more are refused
QUICK_BYTES_MAX: Final = 16 * KIB  # of blocks: what takes longer than a sync is not quick
MEASURE_BYTES: Final = MIB  # of blocks: how far the estimate of the table's size may be off

_CHANGING: Final = (Write, Copy, Seal, Trim, Create, Remove)
_WITH_BLOCK: Final = (Write, Copy)


class _Waiting(NamedTuple):
    replica: Replica
    request: Request
    done: Answered


class WriteOnceStore:
    """Lives on the loop; the workers do what blocks. Creating one blocks, too."""

    def __init__(
        self,
        table: BlockTable,
        commits: Worker,
        look_ups: Worker,
        *,
        quick: Worker | None = None,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        sync: bool = True,
    ) -> None:
        """`quick`: for small commits, instead of `commits`; it may do them on the loop.
        `on_failure` is called when a commit fails."""
        self._table = table
        self._commits = commits
        self._quick = quick or commits
        self._look_ups = look_ups
        self._on_failure = on_failure
        self._sync = sync
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._under_way = False
        self._looking = 0
        self.failed: Refused | None = None  # the answer to all requests once a commit has failed
        self.replicas = table.replicas()  # those that are here
        self._ends: dict[Replica, Glsn] = {}  # behind all blocks of a replica, where that is known
        # Those with something that could not be read, and how they say so.
        self.damaged: dict[Replica, Refused] = {}
        self.stored_bytes = table.stored_bytes()  # about, as of the last commit
        self._measured_bytes = self.stored_bytes

    def ask(self, replica: Replica, request: Request, done: Answered) -> None:
        """Call `done` with the answer, now or later, on the loop. A batch must not change until
        then. Busy: too much waits for the disk."""
        if self.failed is not None:
            done(self.failed)
        elif isinstance(request, _CHANGING):
            self._enqueue(_Waiting(replica, request, done))
        elif isinstance(request, Check) and replica in self.damaged:
            done(self.damaged[replica])
        else:
            self._look_up(_Waiting(replica, request, done))

    def _enqueue(self, asked: _Waiting) -> None:
        request = asked.request
        size = len(request.block.batch) if isinstance(request, _WITH_BLOCK) else 0
        if self._waiting and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Busy("the disk is too slow for what is written: try again later")
        self._waiting.append(asked)
        self._waiting_bytes += size
        if not self._under_way:
            self._start()

    def _start(self) -> None:
        """Begin a commit of all that waits."""
        size, self._waiting_bytes = self._waiting_bytes, 0
        group, self._waiting = self._waiting, []
        worker = self._quick if size <= QUICK_BYTES_MAX else self._commits
        commit = _Commit(group, size, self._table, self.replicas, self._ends)
        self._under_way = True
        worker.run([partial(self._carry_out, commit)], partial(self._committed, commit))

    def _carry_out(self, commit: _Commit) -> None:
        """Runs in the worker."""
        if self.failed is None:
            commit.decide()
            if commit.changes:
                self._table.commit(commit.changes, sync=self._sync)
                self._measure(commit)

    def _measure(self, commit: _Commit) -> None:
        """Estimate the size of the table: it is not asked for every block."""
        self.stored_bytes += commit.size
        if commit.standings or self.stored_bytes - self._measured_bytes > MEASURE_BYTES:
            self.stored_bytes = self._measured_bytes = self._table.stored_bytes()

    def _committed(self, commit: _Commit, error: BaseException | None) -> None:
        if error is not None:
            self.fail(error)
            self._on_failure(error)
        failed = self.failed
        if failed is None and commit.standings:
            self._note(commit.standings)
        self._under_way = False
        if self._waiting:
            self._start()
        for index, asked in enumerate(commit.group):
            if error is not None and isinstance(asked.request, Write):
                asked.done(Lost())
            else:
                asked.done(failed or commit.answers[index])
        if failed is None and not self._under_way:
            self._table.get_ready()

    def fail(self, error: BaseException) -> None:
        """Refuse everything from now on."""
        if self.failed is None:
            # Not the error itself: its traceback would keep the table open.
            logger.error("blocks cannot be written any more: %s", str(error))
            self.failed = _disk_failed(error)

    def _note(self, standings: Mapping[Replica, Standing | None]) -> None:
        for replica, standing in standings.items():
            if standing is None:
                self.replicas.pop(replica, None)
                self._ends.pop(replica, None)
                self.damaged.pop(replica, None)
            else:
                self.replicas[replica] = standing

    def _look_up(self, asked: _Waiting) -> None:
        if self._looking >= LOOK_UPS_MAX:
            raise Busy("the disk is too slow for what is read: try again later")
        answers: list[Answer] = []
        self._looking += 1

        def look() -> Answer:
            stored = self._table.look(asked.replica)
            return look_up(asked.request, stored.standing, stored)

        def step() -> None:
            try:
                answers.append(look())
            except TrimmedMeanwhileError:
                answers.append(look())

        def finished(error: BaseException | None) -> None:
            self._looking -= 1
            if error is not None:
                self._cannot_read(asked.replica, error)
                answers.append(_disk_failed(error))
            asked.done(self.failed or answers[0])

        self._look_ups.run([step], finished)

    def _cannot_read(self, replica: Replica, error: BaseException) -> None:
        """Remember it; only what fails its checksum is known to be gone for good."""
        if replica not in self.damaged:
            logger.error("blocks of %s cannot be read: %s", replica, error)
        if isinstance(error, Corrupt):
            self.damaged[replica] = DAMAGED
        else:
            self.damaged.setdefault(replica, _disk_failed(error))


def _disk_failed(error: BaseException) -> Refused:
    return Refused(f"the disk failed: {error}")


class _Commit:
    """Requests and the decisions about them: changes to a table, in order."""

    def __init__(
        self,
        group: list[_Waiting],
        size: int,
        table: BlockTable,
        replicas: Mapping[Replica, Standing],
        ends: dict[Replica, Glsn],
    ) -> None:
        """`size`: bytes of blocks."""
        self.group = group
        self.size = size
        self.answers: list[Answer] = []
        self.changes: list[tuple[Replica, Change]] = []
        self.standings: dict[Replica, Standing | None] = {}  # those that change
        self._table = table
        self._replicas = replicas
        self._ends = ends
        self._blocks: dict[Replica, _WithAdded] = {}

    def decide(self) -> None:
        """Runs in the worker."""
        try:
            for asked in self.group:
                self.answers.append(self._decide(asked.replica, asked.request))
        finally:
            self._blocks.clear()  # the table keeps for it what is deleted meanwhile

    def _decide(self, replica: Replica, request: Request) -> Answer:
        blocks = self._blocks.get(replica) or self._look(replica)
        standing = self._replicas.get(replica)
        if self.standings:
            standing = self.standings.get(replica, standing)
        try:
            answer, changes = decide(request, standing, blocks)
        except Corrupt:
            return DAMAGED  # the block in its place
        for change in changes:
            if isinstance(change, Put):
                blocks.put(change.block)
                self._ends[replica] = blocks.end
            elif change == standing:
                continue
            elif isinstance(change, Gone):
                self.standings[replica] = None
                self._blocks[replica] = _WithAdded(MemoryBlocks, 0)
            else:
                self.standings[replica] = change
            self.changes.append((replica, change))
        return answer

    def _look(self, replica: Replica) -> _WithAdded:
        end = self._ends.get(replica)
        if end is None:
            last = self._table.look(replica).last()
            end = self._ends[replica] = last.end if last is not None else 0
        blocks = self._blocks[replica] = _WithAdded(partial(self._table.look, replica), end)
        return blocks


class _WithAdded:
    """The blocks of a replica with those that are about to be added. Most blocks come behind all
    others: then nothing is looked for, and nothing put in order."""

    def __init__(self, look: Callable[[], Blocks], end: Glsn) -> None:
        self.end = end  # behind all of them
        self._look = look
        self._looked: Blocks | None = None
        self._new: list[Block] = []
        self._in_order: MemoryBlocks | None = None

    def put(self, block: Block) -> None:
        self._new.append(block)
        self.end = max(self.end, block.end)

    @property
    def _stored(self) -> Blocks:
        if self._looked is None:
            self._looked = self._look()
        return self._looked

    @property
    def _added(self) -> MemoryBlocks:
        if self._in_order is None:
            self._in_order = MemoryBlocks()
        for block in self._new:
            self._in_order.put(block)
        self._new.clear()
        return self._in_order

    def find(self, position: Glsn) -> Extent | None:
        if position >= self.end:
            return None
        return min(_some(self._stored.find(position), self._added.find(position)), default=None)

    def find_before(self, position: Glsn) -> Extent | None:
        found = _some(self._stored.find_before(position), self._added.find_before(position))
        return max(found, default=None)

    def last(self) -> Extent | None:
        return max(_some(self._stored.last(), self._added.last()), default=None)

    def scan(self, position: Glsn, blocks_max: int) -> list[Extent]:
        added = self._added.scan(position, blocks_max)
        return sorted([*added, *self._stored.scan(position, blocks_max)])[:blocks_max]

    def load(self, extent: Extent) -> Block:
        added = self._added.by_last.get(extent.last)
        return added if added is not None else self._stored.load(extent)

    def latest_us(self, extent: Extent) -> int:
        added = self._added.by_last.get(extent.last)
        return added.latest_us if added is not None else self._stored.latest_us(extent)


def _some(*extents: Extent | None) -> list[Extent]:
    return [extent for extent in extents if extent is not None]
