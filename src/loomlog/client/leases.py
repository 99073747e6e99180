"""Leases: names that one program holds at a time, for as long as it renews them.

A holder that was too slow learns it from Fenced. No clock has to be right for that: the lease's
epoch is compared whenever something is changed under it, see `Register.swap`.
"""

from __future__ import annotations

from dataclasses import dataclass

from loomlog.client.metadata import Metadata
from loomlog.wire import loomlog_pb2 as pb


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease as the metadata repository sees it."""

    name: str
    holder: str  # empty: nobody, it was released
    epoch: int
    ttl_s: float
    left_s: float  # until another may have it; 0: from now on


class Lease:
    """A lease that we got; others may have it by now."""

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
        """Keep it for another `ttl_s`; raises Fenced if it is ours no more."""
        await self._change(pb.ChangeLease.RENEW)

    async def release(self) -> None:
        """Let others have it at once. Fine if it is not ours any more."""
        await self._change(pb.ChangeLease.RELEASE)

    async def _change(self, action: pb.ChangeLease.Action) -> None:
        request = pb.ChangeLease(
            action=action, name=self.name, holder=self.holder, epoch=self.epoch
        )
        await self._metadata.request(pb.Frame(change_lease=request))


class Leases:
    """The part of a Cluster that has leases."""

    _metadata: Metadata

    async def acquire_lease(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Get a lease that nobody has, or whose holder did not renew it for its `ttl_s`; None:
        another has it. A holder that asks again gets a new epoch: its old life is fenced off."""
        request = pb.ChangeLease(
            action=pb.ChangeLease.ACQUIRE, name=name, holder=holder, ttl_s=ttl_s
        )
        found = (await self._metadata.request(pb.Frame(change_lease=request))).lease
        if found.holder != holder:
            return None
        return Lease(self._metadata, name, holder, found.epoch, found.ttl_s)

    async def lease(self, name: str) -> LeaseInfo | None:
        """Who has it; None: nobody ever had."""
        found = (await self._list_leases(prefix=name)).leases[:1]  # its own name comes first
        return _lease_info(found[0]) if found and found[0].name == name else None

    async def leases(self, prefix: str = "") -> list[LeaseInfo]:
        """All whose name begins with `prefix`, by name."""
        found: list[LeaseInfo] = []
        more = True
        while more:
            part = await self._list_leases(prefix, after=found[-1].name if found else "")
            found += map(_lease_info, part.leases)
            more = part.more
        return found

    async def _list_leases(self, prefix: str, after: str = "") -> pb.LeaseList:
        request = pb.ListLeases(prefix=prefix, after=after)
        return (await self._metadata.request(pb.Frame(list_leases=request))).lease_list


def _lease_info(lease: pb.Lease) -> LeaseInfo:
    return LeaseInfo(lease.name, lease.holder, lease.epoch, lease.ttl_s, lease.left_s)
