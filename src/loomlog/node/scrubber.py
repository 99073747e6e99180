"""Reads everything that a node stores, slowly and repeatedly, so that damage is found while other
copies exist. Operators may have parts of it read immediately.

Protocols read and repair their own data (`NodeProtocol.scrub`). This module has the rate, the
pauses while the node is busy, and the findings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from loomlog import limits
from loomlog.core.conditions import Condition, Kind
from loomlog.node.workers import Throttle
from loomlog.types import LogId, StreamId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

BEGIN_S: Final = 60.0  # after a start, when other work is more important
BETWEEN_S: Final = 60.0  # minimum pause between passes
LATE_S: Final = 0.02  # the node is busy if the event loop is late by this
BUSY_S: Final = 1.0  # a pause, after which the load is measured again
PAUSES_MAX: Final = 30  # in a row, so that a node that is always busy is scrubbed, too
NAMED_MAX: Final = 5  # damaged copies named in a condition
RESULTS_MAX: Final = 100  # remembered results of orders
RESTORED_S: Final = 60.0  # for other nodes to restore a replica that is damaged or gone
LOOK_S: Final = 0.1
BROKEN: Final = "is broken and no other node has it"


class Scope(NamedTuple):
    """The streams that an operator wants checked. Protocols identify them in either way."""

    streams: frozenset[StreamId]
    loglets: frozenset[LogId]

    def covers(self, stored: pb.StoredReplica) -> bool:
        return stored.log_stream_id in self.streams or stored.loglet_id in self.loglets


class Scrubbed(Protocol):
    """A NodeProtocol."""

    async def scrub(self, notes: ScrubNotes) -> None: ...

    def stored(self) -> Iterable[pb.StoredReplica]: ...


class ScrubNotes:
    """The findings of one pass so far. Protocols report to it, and it paces them."""

    def __init__(
        self, bytes_per_s: int, scope: Scope | None = None, others: Sequence[str] = ()
    ) -> None:
        """`scope` is set for an operator's order, which runs as fast as `bytes_per_s` allows.
        `others` are addresses of further nodes that may have sound copies."""
        self.scope = scope
        self.others = others
        self.size = 0  # bytes that were read
        self.damaged = 0
        self.missing = 0
        self.repaired = 0
        self.lost: list[str] = []  # damage that could not be repaired
        self.unchecked: dict[str, None] = {}  # what could not be checked, and why
        self._throttle = Throttle(bytes_per_s)

    def want_stream(self, stream: StreamId) -> bool:
        return self.scope is None or stream in self.scope.streams

    def want_loglet(self, loglet: LogId) -> bool:
        return self.scope is None or loglet in self.scope.loglets

    async def checked(self, size: int) -> None:
        """Called when something was read. Waits as long as the rate or the load requires."""
        self.size += size
        await self._throttle.take(size)
        if self.scope is not None:
            return
        loop = asyncio.get_running_loop()
        for _ in range(PAUSES_MAX):
            due_s = loop.time() + LATE_S
            await asyncio.sleep(LATE_S)
            if loop.time() - due_s < LATE_S:
                return
            await asyncio.sleep(BUSY_S)

    def found(self, what: str, *, repaired: bool, missing: bool = False) -> None:
        """Called when damage or a missing copy was found. `what` names the log and the position."""
        self.damaged += not missing
        self.missing += missing
        if repaired:
            self.repaired += 1
        else:
            problem = "is missing, and cannot be restored now" if missing else BROKEN
            logger.error("scrub: %s %s", what, problem)
            self.lost.append(f"{what} {problem}")

    def not_checked(self, what: str) -> None:
        """Called when something could not be checked. `what` names it and the reason."""
        if what not in self.unchecked:
            logger.warning("scrub: %s", what)
            self.unchecked[what] = None

    @property
    def error(self) -> str:
        """The remaining problems, for operators."""
        return _some([*self.lost, *self.unchecked])


async def restored(is_restored: Callable[[], bool]) -> bool:
    """Wait until other nodes have restored something. Return False if that takes too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(RESTORED_S):
            while not is_restored():  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    return is_restored()


class _Order:
    """A scrub that an operator ordered."""

    def __init__(self, notes: ScrubNotes, stored_bytes: int, task: asyncio.Task[None]) -> None:
        self.notes = notes
        self.stored_bytes = stored_bytes
        self.task = task

    def progress(self) -> pb.ScrubResponse:
        notes = self.notes
        return pb.ScrubResponse(
            finished=self.task.done(),
            stored_bytes=self.stored_bytes,
            checked_bytes=notes.size,
            corrupt_batches=notes.damaged,
            missing_copies=notes.missing,
            repaired_batches=notes.repaired,
            error=notes.error,
        )


class Scrubber:
    """Scrubs the protocols of a node one after the other, repeatedly."""

    def __init__(self, bytes_per_s: int) -> None:
        """0: only what operators order is scrubbed."""
        self._bytes_per_s = bytes_per_s
        self._protocols: list[Scrubbed] = []
        self._task: asyncio.Task[None] | None = None
        self._orders: dict[Scope, _Order] = {}
        self._one_by_one = asyncio.Lock()
        self._notes = ScrubNotes(bytes_per_s)  # of the present pass
        self._last: ScrubNotes | None = None  # of the last finished pass
        self._finished_at_s = 0.0  # by the loop's clock
        self._passes = 0
        self._before = ScrubNotes(0)  # totals of all finished passes

    def start(self, protocols: Iterable[Scrubbed]) -> None:
        self._protocols = list(protocols)
        if self._bytes_per_s:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        tasks = [order.task for order in self._orders.values()]
        tasks += [self._task] if self._task is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(BEGIN_S)
        while True:
            await self._scrub(self._notes)
            self._finish()
            await asyncio.sleep(BETWEEN_S)

    async def _scrub(self, notes: ScrubNotes) -> None:
        for protocol in self._protocols:
            try:
                await protocol.scrub(notes)
            except Exception as error:  # perhaps of a replica that was just removed
                logger.exception("a scrub failed")
                notes.not_checked(f"the check failed: {error}")

    def _finish(self) -> None:
        notes, before = self._notes, self._before
        logger.info(
            "scrub: %d bytes, %d damaged, %d missing, %d repaired",
            notes.size,
            notes.damaged,
            notes.missing,
            notes.repaired,
        )
        before.size += notes.size
        before.damaged += notes.damaged + notes.missing
        before.repaired += notes.repaired
        self._last, self._notes = notes, ScrubNotes(self._bytes_per_s)
        self._finished_at_s = asyncio.get_running_loop().time()
        self._passes += 1

    # ---- for operators

    def order(self, scope: Scope, others: Sequence[str], *, start: bool) -> pb.ScrubResponse | None:
        """Start a scrub if `start` is set and it is not running. Return its progress; None if there
        is none."""
        order = self._orders.get(scope)
        if start and (order is None or order.task.done()):
            order = self._begin(scope, others)
        return order.progress() if order is not None else None

    def _begin(self, scope: Scope, others: Sequence[str]) -> _Order:
        notes = ScrubNotes(limits.SCRUB_BYTES_PER_S, scope, others)
        stored = (each for protocol in self._protocols for each in protocol.stored())
        size = sum(replica.stored_bytes for replica in stored if scope.covers(replica))

        async def run() -> None:
            async with self._one_by_one:
                await self._scrub(notes)

        self._orders.pop(scope, None)
        for old in [old for old, each in self._orders.items() if each.task.done()][:-RESULTS_MAX]:
            del self._orders[old]
        task = asyncio.get_running_loop().create_task(run())
        order = self._orders[scope] = _Order(notes, size, task)
        return order

    @property
    def _lost(self) -> list[str]:
        """The damage that could not be repaired, in the present pass and the last one."""
        older = self._last.lost if self._last is not None else []
        return list(dict.fromkeys([*self._notes.lost, *older]))

    def status(self) -> pb.ScrubStatus:
        notes, before = self._notes, self._before
        status = pb.ScrubStatus(
            passes=self._passes,
            bytes=before.size + notes.size,
            damaged=before.damaged + notes.damaged + notes.missing,
            repaired=before.repaired + notes.repaired,
            unrepaired=len(self._lost),
        )
        if self._passes:
            status.last_pass_s = asyncio.get_running_loop().time() - self._finished_at_s
        return status

    def conditions(self) -> list[Condition]:
        lost = self._lost
        if not lost:
            return []
        text = f"a scrub found damage: {_some(lost)}"
        return [Condition(Kind.DATA_DAMAGED, text, "check the disk", records=len(lost))]


def _some(what: Sequence[str]) -> str:
    return "; ".join(what[:NAMED_MAX]) + "; …" * (len(what) > NAMED_MAX)
