"""Keeps releases that a shard cannot apply when they arrive.

A release is sent once on each connection, and has no answer. A node refuses it, like any other
request, while it has not registered after its start, or cannot ask whether the epoch was granted.
If nothing more is appended to the log, no other release follows, and readers would wait for this
node. So the node keeps the release and applies it as soon as possible.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeAlias

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import Release
from loomlog.core.copyset.record import Epoch, epoch_of
from loomlog.errors import LoomError, NotFound
from loomlog.node.workers import insist
from loomlog.types import LogId

RETRY: Final = Backoff(0.05, 2.0)
LATE_MAX: Final = 10_000  # epochs of logs; any peer may send releases while nobody can be asked

# Returns whether the release is valid; raises NotFound if there is no such log, and another
# LoomError while this is unknown.
Check: TypeAlias = Callable[[], Awaitable[bool]]


class _Late(NamedTuple):
    release: Release
    stamp: int
    check: Check


class LateReleases:
    """Keeps the newest release of each epoch of each log until it is applied."""

    def __init__(
        self,
        take: Callable[[Release, int], Awaitable[bool]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`take` applies a release, or returns False if it has to be tried again."""
        self._take = take
        self._spawn = spawn
        self._late: dict[tuple[LogId, Epoch], _Late] = {}
        self._is_running = False

    def add(self, release: Release, stamp: int, check: Check) -> None:
        key = release.log, epoch_of(release.lsn)
        known = self._late.get(key)
        if known is None and len(self._late) >= LATE_MAX:
            return
        if known is None or known.release.lsn < release.lsn:
            self._late[key] = _Late(release, stamp, check)
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    def forget(self, log: LogId) -> None:
        self._late = {key: late for key, late in self._late.items() if key[0] != log}

    async def _run(self) -> None:
        try:
            while self._late:
                await insist(self._take_next, RETRY)
        finally:
            self._is_running = False

    async def _take_next(self) -> bool | None:
        """Try to apply one release; if this returns None, it is tried again after all others."""
        if not self._late:
            return True
        key, late = next(iter(self._late.items()))
        is_done = await self._is_done(key, late)
        current = self._late.pop(key, None)
        if current is not None and (current is not late or not is_done):
            self._late[key] = current
        return is_done or None

    async def _is_done(self, key: tuple[LogId, Epoch], late: _Late) -> bool:
        try:
            if not await late.check() or key not in self._late:  # or the log was deleted
                return True
            return await self._take(late.release, late.stamp)
        except NotFound:  # the log was deleted
            return True
        except LoomError:
            return False
