"""Membership of a group or a queue: a lease that the member renews, and the newest state it knows.

The lease of a member that dies expires; another member notices that and removes it. Both together
take less than the session timeout.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable
from itertools import count
from typing import Final, Generic

from loomlog.client.context import Client
from loomlog.client.groups.store import S, StateStore
from loomlog.client.kv.leases import Lease, Leases
from loomlog.core.groups.state import fenced, member_id
from loomlog.errors import Fenced, LoomError, Retryable, seconds
from loomlog.types import LogId

logger = logging.getLogger(__name__)

_LEASE_PART: Final = 0.6  # of the session timeout; the rest is for other members to notice
_RENEWALS: Final = 5  # per session timeout
_POLL_S: Final = 0.5  # how often the state is read, so a released shard is taken within this
_ADVICE: Final = "run long work in a thread, as asyncio.to_thread does, or set session_timeout_s"


class MemberLeases(Leases):
    """The numbered leases of one group or queue, one per member."""

    def __init__(self, prefix: str, client: Client) -> None:
        self._metadata = client.metadata
        self._prefix = prefix
        self._holder = f"{client.rng.getrandbits(64):016x}"

    async def take_one(self, ttl_s: float) -> tuple[str, Lease]:
        """Acquire the first free lease; return the id of the new member and the lease."""
        taken = {lease.name for lease in await self.leases(self._prefix) if lease.left_s}
        for slot in count():
            name = f"{self._prefix}{slot}"
            if name in taken:
                continue
            if (lease := await self.acquire_lease(name, self._holder, ttl_s)) is not None:
                return member_id(slot, lease.epoch), lease
        raise AssertionError("numbers do not end")

    async def live(self) -> dict[str, float]:
        """Return the ids of members whose leases have not expired, and how long these last."""
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
        """`changed` is called when there is a newer state, after every renewal, and when the member
        is no longer `certain`."""
        self._log_id = log_id
        self._store = store
        self._leases = leases
        self._session_timeout_s = session_timeout_s
        self._ttl_s = session_timeout_s * _LEASE_PART
        self._renew_s = session_timeout_s / _RENEWALS
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._heart: asyncio.Task[None] | None = None
        self._doubt: asyncio.TimerHandle | None = None
        self._renewed_s = self._loop.time()
        self._due_s = math.inf  # when the next heartbeat is due
        self._blocked_s = 0.0  # longest time the event loop was blocked since the last renewal
        self._has_left = False
        self.failure: LoomError | None = None
        self.member: str

    @property
    def state(self) -> S:
        """The newest state; raise Fenced if it does not contain this member any more."""
        state = self._store.known
        if state is None or self.member not in state.members:
            raise self._replaced()
        return state

    @property
    def certain(self) -> bool:
        """True if this member cannot have been replaced yet, by its own clock."""
        return self._loop.time() < self._renewed_s + self._ttl_s

    async def join(self, name: str | None, initial: S) -> None:
        """Become a member; the default name is made of the host name and the process id."""
        began_s = self._loop.time()
        self.member, self._lease = await self._leases.take_one(self._ttl_s)
        label = name or f"{socket.gethostname()}-{os.getpid()}"
        await self.change(lambda state: state.join(self.member, label), initial)
        self._renewed(began_s)
        self._heart = self._loop.create_task(self._beat())

    async def change(self, step: Callable[[S], S], initial: S | None = None) -> None:
        try:
            await self._store.change(self._log_id, step, initial)
        except Fenced:
            raise self._replaced() from None

    async def leave(self) -> None:
        """Leave, so that others get the shards or jobs at once; if this fails, they get them when
        the lease expires."""
        if self._heart is not None:
            self._heart.cancel()
        if self._doubt is not None:
            self._doubt.cancel()
        self._has_left = True
        self.failure = self._replaced()
        self._changed()  # others may be waiting for entries
        try:
            await self.change(lambda state: state.remove([self.member]))
            await self._lease.release()
        except LoomError:
            pass

    async def _beat(self) -> None:
        pause_s = min(_POLL_S, self._renew_s)
        while True:
            self._due_s = self._loop.time() + pause_s
            await asyncio.sleep(pause_s)
            self._note_delay()
            try:
                await self._poll()
            except Retryable:
                continue  # the lease is still valid for a while
            except LoomError as error:
                self._fail(error)
                return
            except Exception as error:
                self._fail(LoomError(f"member {self.member} failed: {error!r}"))
                raise

    def _note_delay(self) -> None:
        """Record how late this heartbeat is: only a blocked event loop delays it."""
        late_s = self._loop.time() - self._due_s
        self._due_s = math.inf
        self._blocked_s = max(self._blocked_s, late_s)
        if late_s > self._renew_s:
            logger.warning(
                "%s: the event loop stood still for %s; after %s, others may have replaced this "
                "member: %s",
                self._store.what,
                seconds(late_s),
                seconds(self._ttl_s),
                _ADVICE,
            )

    async def _poll(self) -> None:
        """Renew the lease if that is due, read the state, and remove members that have expired."""
        now_s = self._loop.time()
        is_due = now_s >= self._renewed_s + self._renew_s
        if is_due:
            await self._lease.renew()
        await self._store.get(self._log_id)
        members = self.state.members
        if is_due:
            self._renewed(now_s)
            gone = members.keys() - (await self._leases.live()).keys() - {self.member}
            if gone:
                await self.change(lambda state: state.remove(gone))
        self._changed()

    def _renewed(self, began_s: float) -> None:
        self._renewed_s = began_s
        self._blocked_s = 0.0
        if self._doubt is not None:
            self._doubt.cancel()
        self._doubt = self._loop.call_at(began_s + self._ttl_s, self._changed)

    def _fail(self, error: LoomError) -> None:
        self.failure = self._replaced() if isinstance(error, Fenced) else error
        logger.warning("%s: %s", self._store.what, self.failure)
        self._changed()

    def _replaced(self) -> Fenced:
        """Return the error of a member that was replaced, with the reason as far as it is known."""
        if self._has_left:
            return fenced(self.member, "it has left")
        now_s = self._loop.time()
        limit = f"and its session timeout is {seconds(self._session_timeout_s)}"
        blocked_s = max(self._blocked_s, now_s - self._due_s)
        if blocked_s > self._renew_s:
            why = f"the event loop stood still for {seconds(blocked_s)}, {limit} ({_ADVICE})"
            return fenced(self.member, why)
        silent_s = now_s - self._renewed_s
        if silent_s > self._ttl_s:
            why = f"it could not renew its lease for {seconds(silent_s)}, {limit}"
            return fenced(self.member, why)
        return fenced(self.member)
