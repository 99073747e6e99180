"""Leases: names that one program holds at a time, for as long as it renews them.

A holder that lost its lease gets Fenced. This does not depend on clocks: every change made under a
lease compares the epoch of the lease (see `Register.swap`).
"""

from __future__ import annotations

from dataclasses import dataclass

from loomlog import limits
from loomlog.client.arguments import check_name, check_seconds, check_text
from loomlog.client.servers import Metadata
from loomlog.wire import loomlog_pb2 as pb


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """The current state of a lease."""

    name: str
    holder: str  # empty if it was released
    epoch: int
    ttl_s: float
    left_s: float  # until it expires; 0 if it has expired


class Lease:
    """A lease that was acquired by `Cluster.acquire_lease`. It may have expired since."""

    def __init__(
        self, metadata: Metadata, name: str, holder: str, epoch: int, ttl_s: float
    ) -> None:
        self.name = name
        self.holder = holder
        self.epoch = epoch
        self.ttl_s = ttl_s
        self._metadata = metadata

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} of {self.holder!r}, epoch {self.epoch}>"

    async def renew(self) -> None:
        """Extend the lease by another `ttl_s` from now; raise Fenced if another holder has it."""
        await self._change(pb.ChangeLease.RENEW)

    async def release(self) -> None:
        """Release the lease, so that others can acquire it at once. Do nothing if it was lost."""
        await self._change(pb.ChangeLease.RELEASE)

    async def _change(self, action: pb.ChangeLease.Action) -> None:
        request = pb.ChangeLease(
            action=action, name=self.name, holder=self.holder, epoch=self.epoch
        )
        await self._metadata.request(pb.Frame(change_lease=request))


class Leases:
    """The methods of a Cluster that manage leases."""

    _metadata: Metadata

    async def acquire_lease(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Acquire the lease `name` for `holder`, or return None if another holder has it.

        It expires after `ttl_s` unless it is renewed. A holder that acquires it again gets a new
        epoch, which fences off the earlier one."""
        check_name("a lease's name", name)
        check_name("the holder of a lease", holder)
        check_seconds("ttl_s", ttl_s, 0.0, limits.LEASE_TTL_S_MAX)
        request = pb.ChangeLease(
            action=pb.ChangeLease.ACQUIRE, name=name, holder=holder, ttl_s=ttl_s
        )
        lease = (await self._metadata.request(pb.Frame(change_lease=request))).lease
        if lease.holder != holder:
            return None
        return Lease(self._metadata, name, holder, lease.epoch, lease.ttl_s)

    def held_lease(self, name: str, holder: str, epoch: int) -> Lease:
        """Return a handle for a lease that another process acquired, to renew or release it."""
        return Lease(self._metadata, name, holder, epoch, 0.0)

    async def lease(self, name: str) -> LeaseInfo | None:
        """Return the state of a lease, or None if it was never acquired."""
        check_name("a lease's name", name)
        first = (await self._list_leases(prefix=name)).leases[:1]  # sorted: the shortest is first
        return _lease_info(first[0]) if first and first[0].name == name else None

    async def leases(self, prefix: str = "") -> list[LeaseInfo]:
        """Return all leases whose names begin with `prefix`, sorted by name."""
        check_text("prefix", prefix)
        leases: list[LeaseInfo] = []
        more = True
        while more:
            part = await self._list_leases(prefix, after=leases[-1].name if leases else "")
            leases += map(_lease_info, part.leases)
            more = part.more
        return leases

    async def _list_leases(self, prefix: str, after: str = "") -> pb.LeaseList:
        request = pb.ListLeases(prefix=prefix, after=after)
        return (await self._metadata.request(pb.Frame(list_leases=request))).lease_list


def _lease_info(lease: pb.Lease) -> LeaseInfo:
    return LeaseInfo(lease.name, lease.holder, lease.epoch, lease.ttl_s, lease.left_s)
