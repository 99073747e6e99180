"""Registers: named, versioned values that the metadata repository keeps for programs.

For what is small and has to be agreed on: how far a pipeline is, who does what. Everything changes
by compare-and-swap, and if wanted only as long as a lease is held (leases.py).
"""

from __future__ import annotations

import random
from typing import NamedTuple

from loomlog import limits
from loomlog.client.leases import Lease
from loomlog.client.metadata import Metadata
from loomlog.errors import InvalidArgument, Retryable, SwapUnknown
from loomlog.wire import loomlog_pb2 as pb


class Versioned(NamedTuple):
    """A register's value and the version that the next swap has to name."""

    value: bytes
    version: int


class Register:
    """One register; whether it exists shows when it is read."""

    def __init__(self, name: str, metadata: Metadata, rng: random.Random) -> None:
        self.name = name
        self._metadata = metadata
        self._rng = rng

    def __repr__(self) -> str:
        return f"<Register {self.name!r}>"

    async def get(self) -> Versioned | None:
        """The newest value; None if there is none."""
        request = pb.GetRegister(name=self.name)
        answer = await self._metadata.request(pb.Frame(get_register=request))
        found = answer.register_value
        return Versioned(found.value, found.version) if found.version else None

    async def swap(self, value: bytes | None, expected: int, lease: Lease | None = None) -> int:
        """Replace what is at version `expected` (0: nothing) by `value` (None: delete it), and
        only while `lease` is ours; returns the new version.

        Raises Conflict if it has another version, Fenced if another has the lease: nothing changed
        then. It is repeated until it is answered; raises SwapUnknown when that takes too long."""
        request = pb.SwapRegister(
            name=self.name,
            expected=_check_version(expected),
            value=_check_value(self.name, value),
            delete=value is None,
            lease=lease.name if lease else "",
            lease_epoch=lease.epoch if lease else 0,
            token=self._rng.getrandbits(63) or 1,
        )
        try:
            answer = await self._metadata.request(pb.Frame(swap_register=request))
        except Retryable as error:
            raise SwapUnknown(
                f"register {self.name!r}: {error}; the swap may or may not have happened: read it "
                "before you repeat it"
            ) from error
        return answer.register_value.version


class Registers:
    """The part of a Cluster that has registers."""

    _metadata: Metadata
    _rng: random.Random

    def register(self, name: str) -> Register:
        """The register of this name; it exists once something was swapped in."""
        return Register(name, self._metadata, self._rng)

    async def registers(self, prefix: str = "") -> dict[str, Versioned]:
        """All whose name begins with `prefix`, by name. Each is as it was when it was read: it is
        not one moment for all."""
        found: dict[str, Versioned] = {}
        after, more = "", True
        while more:
            request = pb.ListRegisters(prefix=prefix, after=after)
            part = (await self._metadata.request(pb.Frame(list_registers=request))).register_list
            found |= {r.name: Versioned(r.value, r.version) for r in part.registers}
            after, more = next(reversed(found), ""), part.more
        return found


def _check_version(version: object) -> int:
    if not isinstance(version, int) or not 0 <= version < 1 << 64:
        raise InvalidArgument(f"a version is a number, 0 if there is none yet, not {version!r}")
    return version


def _check_value(name: str, value: bytes | None) -> bytes:
    content = b"" if value is None else bytes(value)
    if len(content) > limits.REGISTER_BYTES_MAX:
        raise InvalidArgument(
            f"register {name!r}: a value has at most {limits.REGISTER_BYTES_MAX} bytes, not "
            f"{len(content)}; put more into a log or a file, and its name here"
        )
    return content
