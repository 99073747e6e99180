"""A program's place in a group or a queue: a lease that it renews, and the newest state it knows.

A member that dies stops renewing; another one notices that its lease has expired, and removes it.
Both together take less than the session timeout.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from itertools import count
from typing import Final, Generic

from loomlog.client.context import Client
from loomlog.client.groups.store import S, StateStore
from loomlog.client.kv.leases import Lease, Leases
from loomlog.core.groups.state import fenced, member_id
from loomlog.errors import Fenced, LoomError, Retryable
from loomlog.types import LogId

_LEASE_PART: Final = 0.6  # of the session timeout; the rest is for others to notice
_RENEWALS: Final = 5  # in a session timeout
_LOOK_S: Final = 0.5  # how often the state is read: a shard that is released is taken within it


class MemberLeases(Leases):
    """The leases of one group or queue, one per member, numbered."""

    def __init__(self, prefix: str, client: Client) -> None:
        self._metadata = client.metadata
        self._prefix = prefix
        self._holder = f"{client.rng.getrandbits(64):016x}"

    async def take_one(self, ttl_s: float) -> tuple[str, Lease]:
        """Acquire the first lease that is free; return it and the name of the new member."""
        taken = {lease.name for lease in await self.leases(self._prefix) if lease.left_s}
        for slot in count():
            name = f"{self._prefix}{slot}"
            if name in taken:
                continue
            if (lease := await self.acquire_lease(name, self._holder, ttl_s)) is not None:
                return member_id(slot, lease.epoch), lease
        raise AssertionError("numbers do not end")

    async def live(self) -> dict[str, float]:
        """Return the members whose leases have not expired, and how long these last."""
        leases = await self.leases(self._prefix)
        slots = {lease.name.removeprefix(self._prefix): lease for lease in leases if lease.left_s}
        return {member_id(int(s), lease.epoch): lease.left_s for s, lease in slots.items()}


class Membership(Generic[S]):
    """One member, from `join` to `leave`."""

    def __init__(
        self,
        log_id: LogId,
        store: StateStore[S],
        leases: MemberLeases,
        session_timeout_s: float,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when there is a newer state, and after every renewal."""
        self._log_id = log_id
        self._store = store
        self._leases = leases
        self._ttl_s = session_timeout_s * _LEASE_PART
        self._renew_s = session_timeout_s / _RENEWALS
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._heart: asyncio.Task[None] | None = None
        self._renewed_s = self._loop.time()
        self.failure: LoomError | None = None
        self.member: str

    @property
    def state(self) -> S:
        """The newest state; raise Fenced if this member is not in it any more."""
        state = self._store.known
        if state is None or self.member not in state.members:
            raise fenced(self.member)
        return state

    @property
    def certain(self) -> bool:
        """Whether nobody can have replaced this member yet, by its own clock."""
        return self._loop.time() < self._renewed_s + self._ttl_s

    async def join(self, name: str | None, initial: S) -> None:
        """Become a member; without a name, it gets that of this process."""
        self._renewed_s = self._loop.time()
        self.member, self._lease = await self._leases.take_one(self._ttl_s)
        called = name or f"{socket.gethostname()}-{os.getpid()}"
        await self.change(lambda state: state.join(self.member, called), initial)
        self._heart = self._loop.create_task(self._beat())

    async def change(self, step: Callable[[S], S], initial: S | None = None) -> None:
        await self._store.change(self._log_id, step, initial)

    async def leave(self) -> None:
        """Give the shards to others. If that fails, they take them when the lease expires."""
        if self._heart is not None:
            self._heart.cancel()
        try:
            await self.change(lambda state: state.remove([self.member]))
            await self._lease.release()
        except LoomError:
            pass

    async def _beat(self) -> None:
        pause_s = min(_LOOK_S, self._renew_s)
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._look()
            except Retryable:
                continue  # the lease lasts for a while
            except LoomError as error:
                self._fail(error)
                return
            except Exception as error:
                self._fail(LoomError(f"member {self.member} failed: {error!r}"))
                raise

    async def _look(self) -> None:
        """Renew the lease in time, read the state, and remove members that have expired."""
        now_s = self._loop.time()
        is_due = now_s >= self._renewed_s + self._renew_s
        if is_due:
            await self._lease.renew()
        await self._store.get(self._log_id)
        members = self.state.members
        if is_due:
            self._renewed_s = now_s
            gone = members.keys() - (await self._leases.live()).keys() - {self.member}
            if gone:
                await self.change(lambda state: state.remove(gone))
        self._changed()

    def _fail(self, error: LoomError) -> None:
        self.failure = fenced(self.member) if isinstance(error, Fenced) else error
        self._changed()
