"""Registers: named values of the cluster's users, changed by compare-and-swap.

Nothing is cached: every answer comes from the MetaStore. A register remembers the tokens of its
last swaps: a swap that is repeated because its answer was lost is not applied again, but gets the
first answer. A deleted register stays as a marker for the same reason, until many more were
deleted.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loomlog import limits
from loomlog.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    LoomError,
    NotLeader,
    SwapUnknown,
    Unavailable,
)
from loomlog.metadata import groups
from loomlog.metadata.groups import GroupStates
from loomlog.metadata.leases import ClusterLeases, check_name, part_of
from loomlog.metadata.store.contract import Fence, MetaStore, StoredItem
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

_PREFIX: Final = "register/"


@dataclass(frozen=True, slots=True)
class RegisterRecord:
    """A register in the store: a line of JSON, then the value."""

    value: bytes | None  # None: deleted
    token: int  # of the swap that wrote this
    earlier: tuple[tuple[int, int], ...] = ()  # token and version of swaps before it, newest last

    def encode(self) -> bytes:
        head = {"token": self.token, "deleted": self.value is None, "earlier": self.earlier}
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + (self.value or b"")

    @classmethod
    def decode(cls, key: str, content: bytes) -> RegisterRecord:
        line, _, value = content.partition(b"\n")
        try:
            head = json.loads(line)
            earlier = tuple((token, version) for token, version in head["earlier"])
            return cls(None if head["deleted"] else value, head["token"], earlier)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Corrupt(f"metadata {key!r} is not what this release writes: {error}") from error


class _Found:
    """A register as found in the store."""

    def __init__(self, key: str, item: StoredItem | None) -> None:
        self.stored_version = item.version if item else 0
        self.record = RegisterRecord.decode(key, item.value) if item else None

    @property
    def version(self) -> int:
        """Return the version that users see; that of a marker is 0."""
        return 0 if self.value is None else self.stored_version

    @property
    def value(self) -> bytes | None:
        return self.record.value if self.record else None

    @property
    def swaps(self) -> tuple[tuple[int, int], ...]:
        if self.record is None:
            return ()
        return (*self.record.earlier, (self.record.token, self.stored_version))

    def next(self, value: bytes | None, token: int) -> RegisterRecord:
        return RegisterRecord(value, token, self.swaps[-limits.REGISTER_SWAPS_REMEMBERED :])


class ClusterRegisters:
    """The registers of users, in the metadata store."""

    def __init__(self, store: MetaStore, leases: ClusterLeases) -> None:
        self._store = store
        self._leases = leases
        self.groups = GroupStates()
        self._markers: deque[tuple[str, int]] | None = None  # oldest first; None: not read yet

    @classmethod
    async def load(cls, store: MetaStore, leases: ClusterLeases) -> ClusterRegisters:
        """Return the registers of a store, with the groups and queues among them."""
        registers = cls(store, leases)
        items: dict[str, StoredItem] = {}
        for prefix in groups.PREFIXES:
            items |= await store.list(_PREFIX + prefix)
        for key, item in items.items():
            try:
                value = RegisterRecord.decode(key, item.value).value
            except Corrupt as error:
                logger.error("%s", error)
            else:
                registers.groups.take(key.removeprefix(_PREFIX), value)
        return registers

    async def get(self, request: pb.GetRegister) -> pb.RegisterValue:
        key = _key(request.name)
        found = _Found(key, await self._store.get(key))
        return _value_of(request.name, found)

    async def list(
        self, request: pb.ListRegisters, sees: Callable[[str], bool] = lambda name: True
    ) -> pb.RegisterList:
        """Return registers by name, only those that the peer `sees`."""
        items = await self._store.list(_PREFIX + request.prefix)
        values = (
            _value_of(key.removeprefix(_PREFIX), _Found(key, item)) for key, item in items.items()
        )
        seen = (value for value in values if value.version and sees(value.name))
        part, more = part_of(seen, request.after)
        return pb.RegisterList(registers=part, more=more)

    async def swap(self, request: pb.SwapRegister) -> pb.RegisterValue:
        key = _key(request.name)
        _check_value(request)
        while True:
            found = _Found(key, await self._store.get(key))
            # Before the fence: a lease that was lost later does not undo a completed swap.
            version = dict(found.swaps).get(request.token) if request.token else None
            if version is None:
                version = await self._try_to_swap(key, found, request)
            if version is not None:
                return pb.RegisterValue(name=request.name, version=version)

    async def _try_to_swap(self, key: str, found: _Found, request: pb.SwapRegister) -> int | None:
        """Try once; return the new version, or None if the register changed meanwhile."""
        fences = await self._fences(request)
        if found.version != request.expected:
            raise Conflict(
                f"register {request.name!r} is at version {found.version or 'none'}, not "
                f"{request.expected or 'none'}: read it again, then decide"
            )
        content = found.next(None if request.delete else request.value, request.token).encode()
        try:
            version = await self._store.compare_and_swap(
                key, found.stored_version, content, fences=fences
            )
        except Conflict:
            return None
        except NotLeader:
            if fences == await self._fences(request):
                raise  # the leader has changed, not the lease
            return None
        except SwapUnknown as error:  # a repetition finds the outcome by the token
            raise Unavailable(f"register {request.name!r}: {error}; try again") from error
        self.groups.take(request.name, None if request.delete else request.value)
        if request.delete:
            await self._keep_few_markers(key, version)
        return version

    async def _fences(self, request: pb.SwapRegister) -> tuple[Fence, ...]:
        if not request.lease:
            return ()
        return (await self._leases.fence(request.lease, request.lease_epoch),)

    async def _keep_few_markers(self, key: str, version: int) -> None:
        """Delete old markers. Failures are harmless: the register is already deleted."""
        try:
            if self._markers is None:
                self._markers = await self._read_markers()
            else:
                self._markers.append((key, version))
            while len(self._markers) > limits.REGISTER_MARKERS_MAX:
                await self._store.compare_and_swap(*self._markers.popleft(), None)
        except LoomError:
            pass  # the register was written again, or its marker is found after a restart

    async def _read_markers(self) -> deque[tuple[str, int]]:
        items = await self._store.list(_PREFIX)
        markers = [
            (key, item.version)
            for key, item in items.items()
            if RegisterRecord.decode(key, item.value).value is None
        ]
        return deque(sorted(markers, key=lambda marker: marker[1]))


def _key(name: str) -> str:
    return _PREFIX + check_name("register", name)


def _check_value(request: pb.SwapRegister) -> None:
    if len(request.value) > limits.REGISTER_BYTES_MAX:
        raise InvalidArgument(
            f"register {request.name!r}: a value has at most {limits.REGISTER_BYTES_MAX} bytes, "
            f"not {len(request.value)}; put more into a log or a file, and its name here"
        )


def _value_of(name: str, found: _Found) -> pb.RegisterValue:
    return pb.RegisterValue(name=name, version=found.version, value=found.value or b"")
