"""Follows a chained segment at the tails of its chains.

Blocks at a tail are final, so they are fetched ahead from every tail and ordered by address; a new
epoch does not affect them. If the next block is missing although later ones have arrived, it is
read from its tail ("peek", since fetching may have passed it), its writer is waited for, and then
the position is filled. Below the start of the epoch there is no writer to wait for: a block there
that did not reach its tail is completed.

With many writers every other block may be late. So a peek also fetches the blocks behind the
missing one, which may be late, too, to avoid a request for each.

Back-pressure: read-ahead is limited in bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from loomlog import limits
from loomlog.batch import read_header
from loomlog.client.loglets.chained.chains import Chains, ChainView
from loomlog.client.loglets.contract import FollowOptions
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.client.subscribe import pieces
from loomlog.client.subscribe.part import FollowedPart, trimmed
from loomlog.client.subscribe.pieces import Stored
from loomlog.core.chained.chain import Block
from loomlog.core.chained.follow import STALL_S, Absence, Inquiry, Patience
from loomlog.core.chained.messages import (
    Fetch,
    Fetched,
    Found,
    Interrupted,
    Trimmed,
    TrimmedTo,
    stopped,
)
from loomlog.core.chained.read import decide_at, find_end_of_loss
from loomlog.errors import DataLoss, Retryable
from loomlog.types import Gap, Glsn
from loomlog.wire import loomlog_pb2 as pb

WAIT_MS: Final = 2000  # for a tail that has no more blocks; then it is asked again
LATE_BYTES: Final = 64 * limits.KIB  # fetched by a peek; most of it has arrived before


class ChainedPart(FollowedPart):
    """The positions from `start` to `stop` inclusive, or to the end of the segment."""

    def __init__(
        self,
        chains: Chains,
        options: FollowOptions,
        hole_timeout_s: float,
        log: pb.Log,
        start: Glsn,
        stop: Glsn | None,
    ) -> None:
        super().__init__(start, stop)
        [stream] = options.numbering.run(log, start).streams
        self._chains = chains
        self._log = chains.log
        self._numbering = options.numbering
        self._gaps = options.gaps
        self._view = chains.view(stream.log_stream_id)
        self._tails = [_Fetched() for _ in self._view.projection.chains]
        self._decided: Block | None = None  # found by an investigation
        self._loss: Block | None = None  # begins a loss whose end is being searched
        self._loss_end: Glsn = 0  # of the last such loss
        self._patience = Patience(hole_timeout_s, self._loop.time())
        self._window_bytes = max(1, options.window_bytes // len(self._tails))
        self._adopt(self._view)
        self._followers = [
            self._loop.create_task(self._follow(chain)) for chain in range(len(self._tails))
        ]

    # ---- the consumer's side

    def next_ready(self) -> Stored | None:
        while not self._at_end():
            block = self._take()
            if block is None:
                return None
            is_lost = self._view.projection.is_lost(block)
            is_exact = not is_lost or block.count < limits.REFERENCE_RECORDS_MAX
            if not is_exact and self._loss_end < block.end:
                self._loss = block  # its end is being searched
                return None
            end = block.end if is_exact else self._loss_end
            first, last = max(block.first, self._next), self._clipped(end - 1)
            if is_lost and not self._gaps:
                self.fail(self._lost(first, last if is_exact else end - 1, is_exact=is_exact))
                return None
            self._go_on(last + 1)
            if not block.is_junk:
                header = read_header(block.batch)
                return pieces.decode(block.batch, header, first - block.first, last - first + 1)
            if self._gaps:
                return Gap(first, last, "dataloss" if is_lost else "hole", is_exact)
        return None

    def _lost(self, first: Glsn, last: Glsn, *, is_exact: bool) -> DataLoss:
        what = f"{self._numbering.describe(first)} of log {self._log.name!r}"
        extent = f"up to {last}" if is_exact else "and an unknown number behind it"
        return DataLoss(
            f"{what} {extent} is lost with all replicas: continue at {last + 1}, or ask for gaps, "
            "too (gaps=True, --gaps)"
        )

    def _go_on(self, position: Glsn) -> None:
        self._next = position
        self._patience.advance(self._loop.time())

    def _release(self) -> None:
        for follower in self._followers:
            follower.cancel()
        for tail in self._tails:
            tail.clear()

    def _take(self) -> Block | None:
        """Return the block that holds the next position if it has arrived."""
        block, self._decided = self._decided, None
        if block is not None and block.first <= self._next <= block.last:
            return block
        for tail in self._tails:
            block = tail.take(self._next)
            if block is not None:
                return block
        return None

    # ---- fetching

    async def _follow(self, chain: int) -> None:
        """Fetch blocks from the tail of one chain while there is room and more are wanted."""
        tail = self._tails[chain]
        attempts = 0
        try:
            while True:
                await tail.room(self._window_bytes)
                view, position = self._view, max(tail.end, self._next)
                if self._is_past(view, position):
                    return
                replica = view.projection.chains[chain][-1]
                size = min(limits.READ_CHUNK_BYTES, self._window_bytes)
                request = Fetch(view.epoch, position, size)
                answer = await self._chains.requests.ask_replica(
                    view, replica, request, wait_ms=WAIT_MS
                )
                if isinstance(answer, Fetched):
                    attempts = 0
                    if answer.blocks:
                        tail.add(answer.blocks, self._loop.time())
                        self._notify()
                elif isinstance(answer, TrimmedTo):
                    self._trimmed_to(tail, answer.position)
                else:
                    stop = stopped(answer)
                    assert isinstance(stop, Interrupted)
                    self._adopt(await self._chains.recover(view, stop, attempts))
                    attempts += 1
        except SegmentGoneError as error:
            self._gone(error)
        except Exception as error:
            self.fail(error)

    def _is_past(self, view: ChainView, position: Glsn) -> bool:
        """Return whether no block at or after `position` is wanted or can still arrive."""
        projection = view.projection
        wanted = self._stop is None or position <= self._stop
        return not wanted or (projection.closed and position >= projection.start)

    def _trimmed_to(self, tail: _Fetched, position: Glsn) -> None:
        if position >= self._next:
            raise trimmed(self._numbering, self._next, self._log.name, position + 1)
        tail.end = max(tail.end, position + 1)

    # ---- waiting and investigating

    async def _wait(self) -> None:
        if self._loss is not None:
            await self._find_end_of_loss(self._loss)
            return
        absence = self._absence()
        await self._doze(self._patience.due_s(absence))
        if self._at_end() or self._failure is not None:
            return
        inquiry = self._patience.begin(absence, self._loop.time())
        if inquiry is None:
            return
        try:
            await (self._peek() if inquiry is Inquiry.PEEK else self._look_into_it())
            self._patience.end(inquiry, self._loop.time())
        except SegmentGoneError as error:
            self._gone(error)

    def _absence(self) -> Absence:
        """Return what is known of the next block, which has not arrived."""
        projection, position = self._view.projection, self._next
        return Absence(
            is_void=position < projection.start or projection.closed,
            is_lost=projection.may_be_lost(position),
            is_wanted=self._stop is not None,
            is_passed=self._tails[position % len(self._tails)].end > position,
            later_s=min((tail.came_s[0] for tail in self._tails if tail.blocks), default=None),
        )

    async def _peek(self) -> None:
        view, address = self._view, self._next
        replica = view.projection.chain_of(address)[-1]
        request = Fetch(view.epoch, address, LATE_BYTES)
        with suppress(TimeoutError):
            async with asyncio.timeout(STALL_S):
                answer = await self._chains.requests.ask_replica(view, replica, request)
                if isinstance(answer, Fetched):
                    self._tails[replica.chain].late = deque(answer.blocks)

    async def _look_into_it(self) -> None:
        view = self._view
        if view.projection.closed and self._next >= view.projection.start:
            await self._learn_end()
            return
        outcome = await self._chains.run(view, decide_at(view.projection, self._next))
        match outcome:
            case Found(block):
                self._decided = block
            case Trimmed(position):
                raise trimmed(self._numbering, self._next, self._log.name, position + 1)
            case Interrupted():
                self._adopt(await self._chains.recover(view, outcome, self._patience.looks))

    async def _find_end_of_loss(self, block: Block) -> None:
        view = self._view
        try:
            outcome = await self._chains.run(view, find_end_of_loss(view.projection, block))
            if isinstance(outcome, Interrupted):
                self._patience.looks += 1
                self._adopt(await self._chains.recover(view, outcome, self._patience.looks))
                return
        except SegmentGoneError as error:
            self._gone(error)
            return
        self._loss, self._decided = None, block
        self._loss_end = outcome if isinstance(outcome, int) else block.end

    async def _learn_end(self) -> None:
        """Find out where the closed segment ends."""
        try:
            await self._log.refresh()
        except Retryable:
            return
        self._adopt(self._chains.view(self._view.stream))

    def _adopt(self, view: ChainView) -> None:
        """Adopt newer metadata."""
        if view.epoch >= self._view.epoch:  # nodes may have other addresses
            self._view = view
        log = self._log.last_known
        if log is None:
            return
        head, _ = self._numbering.bounds(log)
        if head > self._next:
            raise trimmed(self._numbering, self._next, log.name, head)
        for segment in log.segments if self._numbering.crosses else ():
            if segment.loglet_id == view.projection.log_id and segment.HasField("end"):
                self._stop = self._clipped(segment.end)
        self._notify()

    def _gone(self, error: SegmentGoneError) -> None:
        """End if the segment was trimmed after all of it was delivered, else fail."""
        log = self._log.last_known
        if self._numbering.crosses and log is not None and log.head <= self._next:
            self._stop = self._next - 1
            self._notify()
        else:
            self.fail(error)


class _Fetched:
    """Blocks fetched from the tail of one chain and not consumed yet."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque()
        self.came_s: deque[float] = deque()  # their times of arrival
        self.late: deque[Block] = deque()  # fetched by a peek
        self.end: Glsn = 0  # fetching has passed all positions below
        self._bytes = 0
        self._room: asyncio.Future[None] | None = None

    def add(self, blocks: Sequence[Block], now_s: float) -> None:
        for block in blocks:
            self.blocks.append(block)
            self.came_s.append(now_s)
            self.end = block.end
            self._bytes += len(block.batch)

    def take(self, position: Glsn) -> Block | None:
        """Return the block that holds `position`, if fetched; drop blocks before it."""
        while self.blocks and self.blocks[0].first <= position:
            block = self.blocks.popleft()
            self.came_s.popleft()
            self._bytes -= len(block.batch)
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
            if block.last >= position:
                return block
        while self.late and self.late[0].first <= position:
            block = self.late.popleft()
            if block.last >= position:
                return block
        return None

    def clear(self) -> None:
        self.blocks.clear()
        self.came_s.clear()
        self.late.clear()
        self._bytes = 0

    async def room(self, window_bytes: int) -> None:
        """Wait until fewer bytes than the window are held."""
        while self._bytes >= window_bytes:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
