"""The shared state of a group or a queue: a register that changes by compare-and-swap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, Self, TypeVar

from loomlog.client.kv.registers import Register
from loomlog.errors import Conflict, NotFound, SwapUnknown
from loomlog.types import LogId


class SharedState(Protocol):
    """A state of one log that has members."""

    @property
    def log_id(self) -> LogId: ...

    @property
    def members(self) -> Mapping[str, str]: ...

    def join(self, member: str, name: str) -> Self: ...

    def remove(self, members: Iterable[str]) -> Self: ...

    def encode(self) -> bytes: ...


S = TypeVar("S", bound=SharedState)


class StateStore(Generic[S]):
    """Reads and changes one state, with one request at a time so that no answer is older than the
    one before. `known` is the newest state, so a change usually takes one request."""

    def __init__(self, what: str, register: Register, decode: Callable[[bytes], S]) -> None:
        """`what` names the group or queue in errors."""
        self.what = what
        self._register = register
        self._decode = decode
        self._lock = asyncio.Lock()
        self.known: S | None = None
        self._version = 0  # of the register, even if that belongs to another log of this name

    async def get(self, log_id: LogId) -> S | None:
        """Return the current state, or None if there is none for this log."""
        async with self._lock:
            return await self._get(log_id)

    async def _get(self, log_id: LogId) -> S | None:
        current = await self._register.get()
        state = None if current is None else self._decode(current.value)
        self._version = 0 if current is None else current.version
        self.known = None if state is None or state.log_id != log_id else state
        return self.known

    async def change(
        self,
        log_id: LogId,
        step: Callable[[S], S],
        initial: S | None = None,
    ) -> S:
        """Replace the state by the one that `step` returns for it, and return that. If there is no
        state, begin with `initial`; without it, raise NotFound."""
        async with self._lock:
            if self.known is None:
                await self._get(log_id)
            while True:
                before = self.known or initial
                if before is None:
                    raise NotFound(f"{self.what} does not exist: was it deleted?")
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
        """Delete the state; raise Conflict if it has changed since it was last read."""
        async with self._lock:
            if self._version:
                await self._register.swap(None, self._version)
            self.known, self._version = None, 0
