"""The state that programs share in a group or a queue: a register, changed by compare-and-swap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, Self, TypeVar

from loomlog.client.kv.registers import Register
from loomlog.errors import Conflict, NotFound, SwapUnknown
from loomlog.types import LogId


class SharedState(Protocol):
    """A state with members, which is about one log."""

    @property
    def log_id(self) -> LogId: ...

    @property
    def members(self) -> Mapping[str, str]: ...

    def join(self, member: str, name: str) -> Self: ...

    def remove(self, members: Iterable[str]) -> Self: ...

    def encode(self) -> bytes: ...


S = TypeVar("S", bound=SharedState)


class StateStore(Generic[S]):
    """Reads and changes one state, one request at a time, so that an answer is never
    older than the one before. `known` is the newest state, so a change usually takes one request.
    """

    def __init__(self, what: str, register: Register, decode: Callable[[bytes], S]) -> None:
        """`what` names it in errors."""
        self.what = what
        self._register = register
        self._decode = decode
        self._lock = asyncio.Lock()
        self.known: S | None = None
        self._version = 0  # of the register, also if that is about another log of this name

    async def get(self, log_id: LogId) -> S | None:
        """Return the current state; None if there is none for this log."""
        async with self._lock:
            return await self._get(log_id)

    async def _get(self, log_id: LogId) -> S | None:
        found = await self._register.get()
        state = None if found is None else self._decode(found.value)
        self._version = 0 if found is None else found.version
        self.known = None if state is None or state.log_id != log_id else state
        return self.known

    async def change(
        self,
        log_id: LogId,
        step: Callable[[S], S],
        initial: S | None = None,
    ) -> S:
        """Replace the state by what `step` returns for it. Begin with `initial` if there is
        none; without it, raise NotFound."""
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
        """Delete it as it was read last; raise Conflict if it has changed since."""
        async with self._lock:
            if self._version:
                await self._register.swap(None, self._version)
            self.known, self._version = None, 0
