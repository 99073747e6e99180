"""Swaps in etcd that happen at most once, and whose outcome is known even if answers are lost.

A transaction whose answer was lost may have been applied, or may still be applied seconds later. So
every swap uses a **lane**: a key in etcd that only this process writes, for one swap at a time. The
transaction also compares the lane's version and writes the lane. After the lane was written again,
an earlier transaction either shows in it or can never be applied. This determines the outcome after
a lost answer, including that of a deletion.

Lanes are attached to a lease in etcd, which removes those of dead processes. A transaction on a
removed lane is refused, so safety does not depend on the lease's time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from loomlog import limits
from loomlog.errors import LoomError, SwapUnknown, Unavailable
from loomlog.metadata.store.contract import Fence, conflict, fence_fell
from loomlog.metadata.store.etcd.connection import AnswerLost, EtcdConnection, Keys, LeaseGone, rpc

_NEW: Final = b"new"
_CLOSE_S: Final = 1.0


@dataclass(slots=True)
class _Lane:
    key: bytes
    version: int
    lease: int


class Swaps:
    """The swaps of one process."""

    def __init__(self, connection: EtcdConnection, keys: Keys) -> None:
        self._connection = connection
        self._key = keys.key
        self._lane_key = keys.lane
        self._under_way = asyncio.Semaphore(limits.ETCD_SWAPS_MAX)
        self._free: list[_Lane] = []
        self._granting = asyncio.Lock()
        self._lease = 0
        self._next_lease_at = 0.0

    async def swap(
        self,
        key: str,
        expected: int,
        value: bytes | None,
        fences: tuple[Fence, ...],
        *,
        is_checked: bool = True,
    ) -> int:
        """Swap as `MetaStore.compare_and_swap` does. Checked swaps are not tried in an etcd that
        went back in time."""
        deadline = self._connection.deadline()
        try:
            async with asyncio.timeout_at(deadline):
                await self._under_way.acquire()
        except TimeoutError:
            raise Unavailable(
                f"metadata {key!r} was not changed: too many changes wait for etcd"
            ) from None
        try:
            while True:
                if is_checked:
                    self._connection.check()
                lane = await self._take(deadline)
                version = await self._swap_in(lane, key, expected, value, fences, deadline)
                if version is not None:
                    return version
        finally:
            self._under_way.release()

    async def close(self) -> None:
        """Revoke the lease, which deletes the lanes."""
        if self._lease:
            request = rpc.LeaseRevokeRequest(ID=self._lease)
            deadline = asyncio.get_running_loop().time() + _CLOSE_S
            try:
                await self._connection.ask_once(lambda e: e.lease.LeaseRevoke, request, deadline)
            except (AnswerLost, LeaseGone, LoomError):
                pass  # it ends by itself

    # ---- a swap in its lane

    async def _swap_in(
        self,
        lane: _Lane,
        key: str,
        expected: int,
        value: bytes | None,
        fences: tuple[Fence, ...],
        deadline: float,
    ) -> int | None:
        """Try a swap; None if nothing happened and it should be tried again."""
        token = secrets.token_bytes(8)
        raw, raw_fences = self._key(key), [(self._key(f.key), f.version) for f in fences]
        request = rpc.TxnRequest(
            compare=_all_at([(lane.key, lane.version), *raw_fences, (raw, expected)]),
            success=[_write(raw, value), _mark(lane, token)],
            failure=[_read(k, keys_only=True) for k in (lane.key, *dict(raw_fences), raw)],
        )
        try:
            answer = await self._connection.ask_once(_transact, request, deadline)
        except AnswerLost as lost:
            return await self._settle(lane, key, token, deadline, str(lost))
        except LoomError:
            self._give_back(lane)
            raise
        if answer.succeeded:
            lane.version = answer.header.revision
            self._give_back(lane)
            return lane.version
        found = {item.key: item.mod_revision for item in _found(answer)}
        if not self._still(lane, found.get(lane.key, 0)):
            return None
        for fence in fences:
            if found.get(self._key(fence.key), 0) != fence.version:
                raise fence_fell(fence, found.get(self._key(fence.key), 0))
        raise conflict(key, expected, found.get(raw, 0))

    def _still(self, lane: _Lane, version: int) -> bool:
        """Record the lane's version; return whether it was known. If not, nothing was written."""
        still = lane.version == version
        lane.version = version
        if version:
            self._give_back(lane)
        return still

    async def _settle(
        self, lane: _Lane, key: str, token: bytes, deadline: float, reason: str
    ) -> int | None:
        """Return the version of the swap with this token, or None if it never happens."""
        mark = secrets.token_bytes(8)
        try:
            version = await self._move_on(lane, token, mark)
        except LoomError as error:
            raise SwapUnknown(
                f"metadata {key!r} may or may not have been changed: {error}"
            ) from error
        self._give_back(lane)
        if version is None and asyncio.get_running_loop().time() >= deadline:
            raise Unavailable(f"metadata {key!r} was not changed, etcd did not answer: {reason}")
        return version

    async def _move_on(self, lane: _Lane, token: bytes, mark: bytes) -> int | None:
        deadline = self._connection.deadline()
        while True:
            request = rpc.TxnRequest(
                compare=_all_at([(lane.key, lane.version)]),
                success=[_mark(lane, mark)],
                failure=[_read(lane.key)],
            )
            answer = await self._connection.ask(_transact, request, deadline)
            if answer.succeeded:
                lane.version = answer.header.revision
                return None
            found = _found(answer)
            if not found:
                raise Unavailable("etcd cleared the lane of this swap")
            lane.version = found[0].mod_revision
            if found[0].value == token:
                return lane.version
            if found[0].value == mark:  # by an earlier attempt whose answer was lost
                return None

    # ---- lanes

    async def _take(self, deadline: float) -> _Lane:
        while True:
            await self._ensure_lease(deadline)
            if self._free:
                return self._free.pop()
            key = self._lane_key(secrets.token_hex(8))
            request = rpc.PutRequest(key=key, value=_NEW, lease=self._lease)
            lease = self._lease
            try:
                answer = await self._connection.ask(lambda e: e.kv.Put, request, deadline)
            except LeaseGone:
                self._next_lease_at = 0.0
            else:
                return _Lane(key, answer.header.revision, lease)

    def _give_back(self, lane: _Lane) -> None:
        if lane.lease == self._lease:
            self._free.append(lane)

    async def _ensure_lease(self, deadline: float) -> None:
        """Take a new lease, and new lanes, after half of the time of the old one."""
        async with self._granting:
            now = asyncio.get_running_loop().time()
            if now < self._next_lease_at:
                return
            request = rpc.LeaseGrantRequest(TTL=limits.ETCD_SESSION_S)
            answer = await self._connection.ask(lambda e: e.lease.LeaseGrant, request, deadline)
            self._lease = answer.ID
            self._next_lease_at = now + limits.ETCD_SESSION_S / 2
            self._free.clear()


def _transact(endpoint: Any) -> Any:
    return endpoint.kv.Txn


def _all_at(versions: Iterable[tuple[bytes, int]]) -> list[Any]:
    """Return comparisons: every key at its version; 0 is absent."""
    return [
        rpc.Compare(
            key=key,
            target=rpc.Compare.MOD,
            result=rpc.Compare.EQUAL,
            mod_revision=version,
        )
        for key, version in versions
    ]


def _write(key: bytes, value: bytes | None) -> Any:
    if value is None:
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value))


def _mark(lane: _Lane, token: bytes) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=lane.key, value=token, ignore_lease=True))


def _read(key: bytes, *, keys_only: bool = False) -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, keys_only=keys_only))


def _found(answer: Any) -> list[Any]:
    return [item for response in answer.responses for item in response.response_range.kvs]
