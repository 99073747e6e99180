"""The state of one consumer group in the cluster: a register, changed by compare-and-swap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loomlog.client.kv.registers import Register
from loomlog.core.groups.state import GroupState
from loomlog.errors import Conflict, NotFound, SwapUnknown
from loomlog.types import LogId


class GroupStore:
    """Reads and changes the state of one group, one request at a time, so that an answer is never
    older than the one before. `known` is the newest state, so a change usually takes one request.
    """

    def __init__(self, log: str, name: str, register: Register) -> None:
        self._log = log
        self._name = name
        self._register = register
        self._lock = asyncio.Lock()
        self.known: GroupState | None = None
        self._version = 0  # of the register, also if that is about another log of this name

    async def get(self, log_id: LogId) -> GroupState | None:
        """Return the current state; None if the log has no such group."""
        async with self._lock:
            return await self._get(log_id)

    async def _get(self, log_id: LogId) -> GroupState | None:
        found = await self._register.get()
        state = None if found is None else GroupState.decode(found.value)
        self._version = 0 if found is None else found.version
        self.known = None if state is None or state.log_id != log_id else state
        return self.known

    async def change(
        self,
        log_id: LogId,
        step: Callable[[GroupState], GroupState],
        initial: GroupState | None = None,
    ) -> GroupState:
        """Replace the state by what `step` returns for it. Begin with `initial` if there is no
        group; without it, raise NotFound."""
        async with self._lock:
            if self.known is None:
                await self._get(log_id)
            while True:
                before = self.known or initial
                if before is None:
                    raise NotFound(
                        f"log {self._log!r} has no group {self._name!r}: was it deleted?"
                    )
                after = step(before)
                if after == self.known:
                    return after
                try:
                    self._version = await self._register.swap(after.encode(), self._version)
                except (Conflict, SwapUnknown):
                    await self._get(log_id)
                    continue
                self.known = after
                return after

    async def delete(self) -> None:
        """Delete the group as it was read last; raise Conflict if it has changed since."""
        async with self._lock:
            if self._version:
                await self._register.swap(None, self._version)
            self.known, self._version = None, 0
