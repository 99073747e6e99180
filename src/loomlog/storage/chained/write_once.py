"""The replicas of chains on a volume, with group commit (group_commit.py).

core/chained/replica.py decides the answers. The writes of a failed commit are `Lost`; all further
requests are `Refused`. A replica with unreadable blocks continues, but answers `Check` with a
refusal, because it is no longer fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from loomlog.core.chained.chain import Block, Extent, Replica
from loomlog.core.chained.messages import (
    Acknowledge,
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
    SetAcknowledged,
    Standing,
    decide,
    look_up,
)
from loomlog.core.requests import Lost
from loomlog.errors import Busy, Corrupt
from loomlog.limits import MIB
from loomlog.storage.chained.block_table import BlockTable, MemoryBlocks, TrimmedMeanwhileError
from loomlog.storage.files import Worker
from loomlog.storage.group_commit import GroupCommit
from loomlog.types import Glsn

logger = logging.getLogger(__name__)

Answered: TypeAlias = Callable[[Answer], None]

MEASURE_BYTES: Final = MIB  # the table's size is measured again after this many bytes

_CHANGING: Final = (Write, Copy, Acknowledge, Seal, Trim, Create, Remove)
_WITH_BLOCK: Final = (Write, Copy)


class WriteOnceStore(GroupCommit[tuple[Replica, Request], Answer, Refused]):
    """The replicas on one volume. The constructor blocks."""

    content = "blocks"

    def __init__(
        self,
        table: BlockTable,
        commits: Worker,
        look_ups: Worker,
        *,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        sync: bool = True,
    ) -> None:
        super().__init__(commits, look_ups, on_failure)
        self._table = table
        self._sync = sync
        self.replicas = table.replicas()
        self._changed: Mapping[Replica, Standing | None] = {}  # by the last commit
        self._ends: dict[Replica, Glsn] = {}  # one past the last block, if known
        for replica in self.replicas:
            last = table.look(replica).last()
            self._ends[replica] = last.end if last is not None else 0
        # Replicas with unreadable blocks, and their answer to `Check`.
        self.damaged: dict[Replica, Refused] = {}
        self.stored_bytes = table.stored_bytes()  # an estimate, as of the last commit
        self._measured_bytes = self.stored_bytes

    def ask(self, replica: Replica, request: Request, done: Answered) -> None:
        """Call `done` with the answer, now or later, on the loop. The batch of a request must not
        change until then. Raise Busy if too much is waiting for the disk."""
        if self.failed is not None:
            done(self.failed)
        elif isinstance(request, _CHANGING):
            size = len(request.block.batch) if isinstance(request, _WITH_BLOCK) else 0
            if not self._enqueue((replica, request), size, done):
                raise Busy("the disk is too slow for what is written: try again later")
        elif isinstance(request, Check) and replica in self.damaged:
            done(self.damaged[replica])
        elif not self._look_up(
            partial(self._find, replica, request), done, partial(self._unreadable, replica)
        ):
            raise Busy("the disk is too slow for what is read: try again later")

    def sizes(self) -> dict[Replica, int]:
        """Return approximately how many bytes each replica takes: its large blocks, and a share of
        the table in proportion to its positions."""
        in_files = {replica: self._table.bytes_in_files(replica) for replica in self.replicas}
        in_table = max(self.stored_bytes - sum(in_files.values()), 0)
        positions = {replica: self._positions(replica) for replica in self.replicas}
        of_each = in_table / max(1, sum(positions.values()))
        return {each: in_files[each] + round(positions[each] * of_each) for each in self.replicas}

    def end_of(self, replica: Replica) -> Glsn:
        """Return the first position above all blocks of a replica, and above its trim."""
        return max(self._ends.get(replica, 0), self.replicas[replica].trimmed + 1)

    def _positions(self, replica: Replica) -> int:
        return self.end_of(replica) - 1 - self.replicas[replica].trimmed

    # ---- commits

    def _commit(self, requests: Sequence[tuple[Replica, Request]], size: int) -> list[Answer]:
        commit = _BlockCommit(self._table, self.replicas, self._ends)
        answers = commit.decide(requests)
        if commit.changes:
            self._table.commit(commit.changes, sync=self._sync)
            self._changed = commit.standings
            self._measure(size)
        return answers

    def _measure(self, size: int) -> None:
        """Estimate the size of the table, which is not measured after every commit."""
        self.stored_bytes += size
        if self._changed or self.stored_bytes - self._measured_bytes > MEASURE_BYTES:
            self.stored_bytes = self._measured_bytes = self._table.stored_bytes()

    def _note(self) -> None:
        changed, self._changed = self._changed, {}
        for replica, standing in changed.items():
            if standing is None:
                self.replicas.pop(replica, None)
                self._ends.pop(replica, None)
                self.damaged.pop(replica, None)
            else:
                self.replicas[replica] = standing

    def _lost(self, request: tuple[Replica, Request], refused: Refused) -> Answer:
        return Lost() if isinstance(request[1], Write) else refused

    def _rest(self) -> None:
        self._table.get_ready()

    def _disk_failed(self, error: BaseException) -> Refused:
        return Refused(f"the disk failed: {error}")

    # ---- look-ups

    def _find(self, replica: Replica, request: Request) -> Answer:
        try:
            return self._find_once(replica, request)
        except TrimmedMeanwhileError:
            return self._find_once(replica, request)

    def _find_once(self, replica: Replica, request: Request) -> Answer:
        stored = self._table.look(replica)
        return look_up(request, stored.standing, stored)

    def _unreadable(self, replica: Replica, error: BaseException) -> Refused:
        """Remember a replica with unreadable blocks. Only blocks that fail their checksum are known
        to be lost for good."""
        refused = self._disk_failed(error)
        if replica not in self.damaged:
            logger.error("blocks of %s cannot be read: %s", replica, str(error))
        if isinstance(error, Corrupt):
            self.damaged[replica] = DAMAGED
        else:
            self.damaged.setdefault(replica, refused)
        return refused


class _BlockCommit:
    """Decides requests, and collects their changes to a table."""

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

    def decide(self, requests: Sequence[tuple[Replica, Request]]) -> list[Answer]:
        try:
            return [self._decide(replica, request) for replica, request in requests]
        finally:
            self._blocks.clear()  # their snapshots keep deleted rows in the table

    def _decide(self, replica: Replica, request: Request) -> Answer:
        blocks = self._blocks.get(replica) or self._look(replica)
        standing = self._replicas.get(replica)
        if self.standings:
            standing = self.standings.get(replica, standing)
        try:
            answer, changes = decide(request, standing, blocks)
        except Corrupt:
            return DAMAGED  # an existing block at its address
        for change in changes:
            if isinstance(change, Put):
                blocks.put(change.block)
                self._ends[replica] = blocks.end
            elif isinstance(change, SetAcknowledged):
                blocks.acknowledged[change.extent.last] = change.acknowledged
            elif change == standing:
                continue
            elif isinstance(change, Gone):
                self.standings[replica] = None
                self._blocks[replica] = _WithAdded(MemoryBlocks, 0)
            elif isinstance(change, Standing):
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
    """The blocks of a replica, including those that the commit adds. Most blocks come after all
    others; then nothing needs to be looked up or sorted."""

    def __init__(self, look: Callable[[], Blocks], end: Glsn) -> None:
        self.end = end  # one past the last block
        self.acknowledged: dict[Glsn, tuple[Glsn, ...]] = {}  # changed ones, by last position
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
        extents = _some(self._stored.find_before(position), self._added.find_before(position))
        return max(extents, default=None)

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

    def size_of(self, extent: Extent) -> int:
        added = self._added.by_last.get(extent.last)
        return len(added.batch) if added is not None else self._stored.size_of(extent)

    def acknowledged_in(self, extent: Extent) -> tuple[Glsn, ...]:
        if extent.last in self.acknowledged:
            return self.acknowledged[extent.last]
        added = self._added.by_last.get(extent.last)
        return added.acknowledged if added is not None else self._stored.acknowledged_in(extent)


def _some(*extents: Extent | None) -> list[Extent]:
    return [extent for extent in extents if extent is not None]
