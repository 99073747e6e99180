"""Reads all that a node stores, again and again, slowly: damage is found while other copies exist.

Protocols read and repair what they store (`NodeProtocol.scrub`); here are the rate, the pauses
while the node is busy, and what was found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from loomlog.core.conditions import Condition, Kind
from loomlog.node.workers import Throttle
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

BEGIN_S: Final = 60.0  # after a start other things matter more
BETWEEN_S: Final = 60.0  # passes, at least
LATE_S: Final = 0.02  # the event loop, when the node is busy
BUSY_S: Final = 1.0  # a pause, then it is measured again
PAUSES_MAX: Final = 30  # in a row: a node that is always busy is scrubbed, too
NAMED_MAX: Final = 5  # damaged copies in a condition


class Scrubbed(Protocol):
    """A NodeProtocol."""

    async def scrub(self, notes: ScrubNotes) -> None: ...


class ScrubNotes:
    """The findings of one pass so far. Protocols report to it, and wait where it wants them to."""

    def __init__(self, bytes_per_s: int) -> None:
        self.size = 0  # bytes that were read
        self.damaged = 0
        self.repaired = 0
        self.lost: list[str] = []  # what could not be repaired
        self._throttle = Throttle(bytes_per_s)

    async def checked(self, size: int) -> None:
        """Called when something was read: waits as long as the rate, or the load, demands."""
        self.size += size
        await self._throttle.take(size)
        loop = asyncio.get_running_loop()
        for _ in range(PAUSES_MAX):
            due_s = loop.time() + LATE_S
            await asyncio.sleep(LATE_S)
            if loop.time() - due_s < LATE_S:
                return
            await asyncio.sleep(BUSY_S)

    def found(self, what: str, *, repaired: bool) -> None:
        """Called when something is damaged. `what` names the log and the position."""
        self.damaged += 1
        if repaired:
            self.repaired += 1
        else:
            logger.error("scrub: %s is damaged and cannot be repaired now", what)
            self.lost.append(what)


class Scrubber:
    """Scrubs the protocols of a node one after the other, and begins again."""

    def __init__(self, bytes_per_s: int) -> None:
        """0: it does nothing."""
        self._bytes_per_s = bytes_per_s
        self._task: asyncio.Task[None] | None = None
        self._notes = ScrubNotes(bytes_per_s)  # of the pass under way
        self._last: ScrubNotes | None = None  # of the last one that was finished
        self._finished_at_s = 0.0  # by the loop's clock
        self._passes = 0
        self._before = ScrubNotes(0)  # of all passes that were finished

    def start(self, protocols: Iterable[Scrubbed]) -> None:
        if self._bytes_per_s:
            self._task = asyncio.get_running_loop().create_task(self._run(list(protocols)))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, protocols: list[Scrubbed]) -> None:
        await asyncio.sleep(BEGIN_S)
        while True:
            for protocol in protocols:
                try:
                    await protocol.scrub(self._notes)
                except Exception:  # such as of a replica that was just removed
                    logger.exception("a scrub failed, and begins again later")
            self._finish()
            await asyncio.sleep(BETWEEN_S)

    def _finish(self) -> None:
        notes, before = self._notes, self._before
        logger.info(
            "scrub: %d bytes, %d damaged, %d repaired", notes.size, notes.damaged, notes.repaired
        )
        before.size += notes.size
        before.damaged += notes.damaged
        before.repaired += notes.repaired
        self._last, self._notes = notes, ScrubNotes(self._bytes_per_s)
        self._finished_at_s = asyncio.get_running_loop().time()
        self._passes += 1

    # ---- for operators

    @property
    def _lost(self) -> list[str]:
        """The damage that could not be repaired, by the newest pass that looked at it."""
        older = self._last.lost if self._last is not None else []
        return list(dict.fromkeys([*self._notes.lost, *older]))

    def status(self) -> pb.ScrubStatus:
        notes, before = self._notes, self._before
        status = pb.ScrubStatus(
            passes=self._passes,
            bytes=before.size + notes.size,
            damaged=before.damaged + notes.damaged,
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
        named = ", ".join(lost[:NAMED_MAX]) + ", …" * (len(lost) > NAMED_MAX)
        text = f"a scrub found damage, and no other node has a sound copy now: {named}"
        return [Condition(Kind.DATA_DAMAGED, text, "check the disk", records=len(lost))]
