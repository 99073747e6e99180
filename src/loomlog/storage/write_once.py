"""Replicas of chains on a volume: requests in, answers out, one synced commit for all that waited.

    commits    requests that may change something, in the order they came, decided one after the
               other in a worker; then ONE commit; then the answers
    look-ups   in a worker of their own, so that they do not wait for those that wait for a
               commit; they see only what is committed

What may be asked and what it means is core/chained/replica.py's matter. After a commit has failed
nothing is answered but `Refused`. The writes of that commit are `Lost`: a failed sync says nothing
about what reached the disk. A replica of which something cannot be read goes on, and is not fit
(`Check`) any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Final, NamedTuple, TypeAlias

from loomlog.core.chained.block import Block, Extent
from loomlog.core.chained.messages import (
    Answer,
    Check,
    Copy,
    Create,
    Lost,
    Refused,
    Remove,
    Request,
    Seal,
    Trim,
    Write,
)
from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import (
    Blocks,
    Change,
    Gone,
    Put,
    Standing,
    decide,
    look_up,
)
from loomlog.errors import Busy
from loomlog.limits import CHAIN_LOOK_UPS_MAX, CHAIN_WAITING_BYTES_MAX, KIB
from loomlog.storage.block_table import BlockTable
from loomlog.storage.files import Worker
from loomlog.storage.memory_table import MemoryReplica
from loomlog.types import Glsn

logger = logging.getLogger(__name__)

Answered: TypeAlias = Callable[[Answer], None]

DAMAGED: Final = Refused("blocks of this replica cannot be read: its disk is damaged")

QUICK_BYTES_MAX: Final = 16 * KIB  # of blocks: what takes longer than a sync is not quick

_CHANGING = Write | Copy | Seal | Trim | Create | Remove


class _Waiting(NamedTuple):
    replica: Replica
    request: Request
    done: Answered


class WriteOnceStore:
    """Lives on the loop; the workers do what blocks. To make one blocks, too."""

    def __init__(
        self,
        table: BlockTable,
        commits: Worker,
        look_ups: Worker,
        *,
        quick: Worker | None = None,
        sync: bool = True,
    ) -> None:
        """`quick`: for small commits, instead of `commits`; it may do them on the loop."""
        self._table = table
        self._commits = commits
        self._quick = quick or commits
        self._look_ups = look_ups
        self._sync = sync
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._under_way = False
        self._looking = 0
        self._failed: Refused | None = None
        self.replicas = table.replicas()  # those that are here
        self._ends: dict[Replica, Glsn] = {}  # behind all blocks of a replica, where that is known
        self.damaged: set[Replica] = set()  # those of which something could not be read
        self.stored_bytes = table.stored_bytes()  # as of the last commit

    @property
    def failed(self) -> bool:
        return self._failed is not None

    def ask(self, replica: Replica, request: Request, done: Answered) -> None:
        """`done` gets the answer, now or later, on the loop. A batch must not change until then.
        Busy: too much waits for the disk."""
        asked = _Waiting(replica, request, done)
        if self._failed is not None:
            done(self._failed)
        elif isinstance(request, Check) and replica in self.damaged:
            done(DAMAGED)
        elif isinstance(request, _CHANGING):
            self._enqueue(asked)
        else:
            self._look_up(asked)

    def _enqueue(self, asked: _Waiting) -> None:
        size = _bytes_of(asked.request)
        if self._waiting and self._waiting_bytes + size > CHAIN_WAITING_BYTES_MAX:
            raise Busy("the disk is too slow for what is written: try again later")
        self._waiting.append(asked)
        self._waiting_bytes += size
        self._start()

    def _start(self) -> None:
        if self._under_way or not self._waiting:
            return
        worker = self._quick if self._waiting_bytes <= QUICK_BYTES_MAX else self._commits
        group, self._waiting, self._waiting_bytes = self._waiting, [], 0
        answers: list[Answer] = []
        view = _Uncommitted(self._table, self.replicas, self._ends)
        self._under_way = True
        worker.run(
            [partial(self._commit, group, view, answers)],
            partial(self._committed, group, view, answers),
        )

    def _commit(self, group: list[_Waiting], view: _Uncommitted, answers: list[Answer]) -> None:
        """In the worker."""
        if self._failed is None:
            try:
                answers += (view.decide(asked.replica, asked.request) for asked in group)
            finally:
                view.let_go()
            if view.changes:
                self._table.commit(view.changes, sync=self._sync)
                self.stored_bytes = self._table.stored_bytes()

    def _committed(
        self,
        group: list[_Waiting],
        view: _Uncommitted,
        answers: list[Answer],
        error: BaseException | None,
    ) -> None:
        if error is not None:
            logger.error("blocks could not be written: %s", error)
            self._failed = self._failed or _disk_failed(error)
        elif self._failed is None:
            self._note(view.standings)
        self._under_way = False
        self._start()
        failed = self._failed
        for index, asked in enumerate(group):
            if error is not None and isinstance(asked.request, Write):
                asked.done(Lost())
            else:
                asked.done(failed or answers[index])

    def _note(self, standings: Mapping[Replica, Standing | None]) -> None:
        for replica, standing in standings.items():
            if standing is None:
                self.replicas.pop(replica, None)
                self._ends.pop(replica, None)
                self.damaged.discard(replica)
            else:
                self.replicas[replica] = standing

    def _look_up(self, asked: _Waiting) -> None:
        if self._looking >= CHAIN_LOOK_UPS_MAX:
            raise Busy("the disk is too slow for what is read: try again later")
        answers: list[Answer] = []
        self._looking += 1

        def step() -> None:
            stored = self._table.look(asked.replica)
            answers.append(look_up(asked.request, stored.standing, stored))

        def finished(error: BaseException | None) -> None:
            self._looking -= 1
            if error is not None:
                self.damaged.add(asked.replica)
                logger.error("blocks of %s cannot be read: %s", asked.replica, error)
                answers.append(_disk_failed(error))
            asked.done(self._failed or answers[0])

        self._look_ups.run([step], finished)


def _disk_failed(error: BaseException) -> Refused:
    return Refused(f"the disk failed: {error}")


def _bytes_of(request: Request) -> int:
    return len(request.block.batch) if isinstance(request, Write | Copy) else 0


class _Uncommitted:
    """A table and the changes that a commit is going to make, in their order."""

    def __init__(
        self,
        table: BlockTable,
        replicas: Mapping[Replica, Standing],
        ends: dict[Replica, Glsn],
    ) -> None:
        self.changes: list[tuple[Replica, Change]] = []
        self.standings: dict[Replica, Standing | None] = {}  # those that change
        self._table = table
        self._replicas = replicas
        self._ends = ends
        self._blocks: dict[Replica, _WithAdded] = {}

    def decide(self, replica: Replica, request: Request) -> Answer:
        blocks = self._blocks.get(replica)
        if blocks is None:
            blocks = self._blocks[replica] = self._look(replica)
        standing = self.standings.get(replica, self._replicas.get(replica))
        answer, change = decide(request, standing, blocks)
        match change:
            case Put(block):
                blocks.added.put(block)
                self._ends[replica] = max(self._ends[replica], block.end)
            case Standing():
                self.standings[replica] = change
            case Gone():
                self.standings[replica] = None
                self._blocks[replica] = _WithAdded(MemoryReplica, 0)
        if change is not None and change != standing:
            self.changes.append((replica, change))
        return answer

    def _look(self, replica: Replica) -> _WithAdded:
        end = self._ends.get(replica)
        if end is None:
            last = self._table.look(replica).last()
            end = self._ends[replica] = last.end if last is not None else 0
        return _WithAdded(partial(self._table.look, replica), end)

    def let_go(self) -> None:
        """Of what was looked at: the table keeps for it what is deleted meanwhile."""
        self._blocks.clear()


class _WithAdded:
    """The blocks of a replica with those that are about to be added."""

    def __init__(self, look: Callable[[], Blocks], stored_end: Glsn) -> None:
        self.added = MemoryReplica()
        self._look = look
        self._stored_end = stored_end

    @cached_property
    def _stored(self) -> Blocks:
        return self._look()

    def find(self, position: Glsn) -> Extent | None:
        # Most blocks come behind all others: there is nothing to look for.
        stored = self._stored.find(position) if position < self._stored_end else None
        return min(_some(stored, self.added.find(position)), default=None)

    def find_before(self, position: Glsn) -> Extent | None:
        found = _some(self._stored.find_before(position), self.added.find_before(position))
        return max(found, default=None)

    def last(self) -> Extent | None:
        return max(_some(self._stored.last(), self.added.last()), default=None)

    def scan(self, position: Glsn, blocks_max: int) -> list[Extent]:
        added = self.added.scan(position, blocks_max)
        return sorted([*added, *self._stored.scan(position, blocks_max)])[:blocks_max]

    def load(self, extent: Extent) -> Block:
        added = self.added.by_last.get(extent.last)
        return added if added is not None else self._stored.load(extent)


def _some(*extents: Extent | None) -> list[Extent]:
    return [extent for extent in extents if extent is not None]
