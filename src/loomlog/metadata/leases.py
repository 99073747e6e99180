"""Leases: names that one holder has at a time, for as long as it renews them.

The epoch of a lease increases with every holder, and is in the MetaStore before the holder receives
it. Only the epoch gives safety, see `fence`. Time only determines when another holder may take the
lease: this process measures it from the last renewal; a lease loaded at startup counts as renewed
then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from loomlog import limits
from loomlog.core.leases import LeaseStanding, next_epoch
from loomlog.errors import Corrupt, Fenced, InvalidArgument, SwapUnknown, Unavailable
from loomlog.metadata.catalog.records import HISTORY, HistoryRecord, LeaseRecord, decode, encode
from loomlog.metadata.store.contract import Fence, MetaStore, StoredItem
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

_PREFIX: Final = "lease/"


@dataclass(slots=True)
class _Lease:
    record: LeaseRecord
    version: int = 0  # of the record in the store
    certain: bool = True  # False: a write was not answered, so the record in the store may differ
    renewed_s: float = 0.0
    damage: str = ""  # why its record cannot be read; such a lease cannot be acquired or renewed
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def standing(self) -> LeaseStanding:
        return LeaseStanding(self.record.holder, self.record.ttl_s, self.renewed_s, _now_s())

    def renew(self) -> None:
        self.renewed_s = _now_s()

    def take(self, item: StoredItem) -> None:
        """Take a lease from the store; its holder has its full time from now on."""
        self.record = decode(LeaseRecord, _PREFIX + self.record.name, item.value)
        self.version = item.version
        self.renew()

    def check_whole(self) -> None:
        if self.damage:
            raise Corrupt(self.damage)

    def to_wire(self) -> pb.Lease:
        self.check_whole()
        record = self.record
        return pb.Lease(
            name=record.name,
            holder=record.holder,
            epoch=record.epoch,
            ttl_s=record.ttl_s,
            left_s=self.standing.left_s,
        )


class ClusterLeases:
    """All leases of the cluster. Created by `load`."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._leases: dict[str, _Lease] = {}
        self._epochs_before = 0  # were granted by metadata that was lost

    @classmethod
    async def load(cls, store: MetaStore) -> ClusterLeases:
        leases = cls(store)
        item = await store.get(HISTORY)
        if item is not None:
            leases._epochs_before = decode(HistoryRecord, HISTORY, item.value).lease_epochs
        for key, item in (await store.list(_PREFIX)).items():
            name = key.removeprefix(_PREFIX)
            leases._leases[name] = lease = _Lease(LeaseRecord(name), item.version)
            try:
                lease.take(item)
            except Corrupt as error:  # it alone is unusable
                logger.error("%s", error)
                lease.damage = str(error)
        return leases

    async def change(self, request: pb.ChangeLease) -> pb.Lease:
        check_name("lease", request.name)
        match request.action:
            case pb.ChangeLease.ACQUIRE:
                return await self._acquire(request)
            case pb.ChangeLease.RENEW:
                return await self._renew(request)
            case pb.ChangeLease.RELEASE:
                return await self._release(request)
            case _:
                raise InvalidArgument(f"lease {request.name!r}: acquire, renew or release it")

    def list(
        self, request: pb.ListLeases, sees: Callable[[str], bool] = lambda name: True
    ) -> pb.LeaseList:
        """Return leases by name, only those that the peer `sees`."""
        names = (name for name in sorted(self._leases) if name.startswith(request.prefix))
        known = (self._leases[name] for name in names if sees(name))
        part, more = part_of((lease.to_wire() for lease in known if lease.version), request.after)
        return pb.LeaseList(leases=part, more=more)

    async def fence(self, name: str, epoch: int) -> Fence:
        """Return a fence that holds as long as this epoch lasts; raise Fenced if it is over."""
        async with self._changing(self._lease(name), epoch) as lease:
            _check_epoch(lease.record, epoch)
            return Fence(_PREFIX + name, lease.version)

    # ---- the three changes

    async def _acquire(self, request: pb.ChangeLease) -> pb.Lease:
        holder = check_name("holder of a lease", request.holder)
        ttl_s = _check_ttl(request)
        lease = self._leases.setdefault(request.name, _Lease(LeaseRecord(request.name)))
        async with self._changing(lease):
            if lease.standing.can_be_acquired_by(holder):
                epoch = next_epoch(lease.record.epoch, self._epochs_before)
                await self._write(lease, LeaseRecord(request.name, holder, epoch, ttl_s))
                logger.info("lease %r is %r's, epoch %d", request.name, holder, epoch)
            return lease.to_wire()

    async def _renew(self, request: pb.ChangeLease) -> pb.Lease:
        async with self._changing(self._lease(request.name), request.epoch) as lease:
            _check_epoch(lease.record, request.epoch)
            lease.renew()
            return lease.to_wire()

    async def _release(self, request: pb.ChangeLease) -> pb.Lease:
        async with self._changing(self._lease(request.name), request.epoch) as lease:
            if lease.record.holder and lease.record.epoch == request.epoch:
                await self._write(lease, replace(lease.record, holder=""))
                logger.info("lease %r was released", request.name)
            return lease.to_wire()

    # ---- internals

    def _lease(self, name: str) -> _Lease:
        """Return a lease; a new one is free."""
        return self._leases.get(name) or _Lease(LeaseRecord(name))

    @asynccontextmanager
    async def _changing(self, lease: _Lease, epoch: int = 0) -> AsyncIterator[_Lease]:
        """Yield a lease as it is in the store, to one caller at a time. An unknown epoch comes from
        another leader, so the store is read again."""
        async with lease.changing:
            lease.check_whole()
            if not lease.certain or epoch > lease.record.epoch:
                item = await self._store.get(_PREFIX + lease.record.name)
                if item is not None and item.version != lease.version:
                    lease.take(item)
                lease.certain = True
            yield lease

    async def _write(self, lease: _Lease, record: LeaseRecord) -> None:
        lease.certain = False
        try:
            lease.version = await self._store.compare_and_swap(
                _PREFIX + record.name, lease.version, encode(record)
            )
        except SwapUnknown as error:
            raise Unavailable(f"lease {record.name!r}: {error}; try again") from error
        lease.record = record
        lease.certain = True
        lease.renew()


def _check_epoch(record: LeaseRecord, epoch: int) -> None:
    if not record.holder or record.epoch != epoch:
        now = f"{record.holder!r} has it in epoch {record.epoch}" if record.holder else "it is free"
        raise Fenced(
            f"lease {record.name!r}: epoch {epoch} is over, {now}: stop, or acquire it again"
        )


def _check_ttl(request: pb.ChangeLease) -> float:
    ttl_s = request.ttl_s
    if not math.isfinite(ttl_s) or not 0 < ttl_s <= limits.LEASE_TTL_S_MAX:
        raise InvalidArgument(
            f"lease {request.name!r}: its time must be above 0 and at most "
            f"{limits.LEASE_TTL_S_MAX:g} s, not {ttl_s:g}"
        )
    return ttl_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()


# ---- names and lists, also of registers

T = TypeVar("T", pb.RegisterValue, pb.Lease)


def check_name(what: str, name: str) -> str:
    if not name.isprintable() or not 1 <= len(name) <= limits.REGISTER_NAME_CHARS_MAX:
        raise InvalidArgument(
            f"{name!r} is not a valid name of a {what}: use 1 to {limits.REGISTER_NAME_CHARS_MAX} "
            "printable characters"
        )
    return name


def part_of(found: Iterable[T], after: str) -> tuple[list[T], bool]:
    """Return the items after this name that fit into one answer, and whether there are more."""
    part: list[T] = []
    size = 0
    for item in found:
        if item.name <= after:
            continue
        size += item.ByteSize()
        if part and size > limits.LIST_BYTES:
            return part, True
        part.append(item)
    return part, False
