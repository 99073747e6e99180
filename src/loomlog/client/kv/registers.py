"""Registers: small, named, versioned values in the metadata repository, for state that programs
must agree on. They change by compare-and-swap, optionally only while a lease (leases.py) is held.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from loomlog import limits
from loomlog.client.arguments import as_bytes, check_kind, check_name, check_text, is_int
from loomlog.client.kv.leases import Lease
from loomlog.client.servers import Metadata
from loomlog.errors import Conflict, InvalidArgument, Retryable, SwapUnknown, shown
from loomlog.wire import loomlog_pb2 as pb


class Versioned(NamedTuple):
    """A register's value, and its version for the next `swap`."""

    value: bytes
    version: int


class Register:
    """A handle for one register, as returned by `Cluster.register`. The register exists once it has
    a value."""

    def __init__(self, name: str, metadata: Metadata, rng: random.Random) -> None:
        self.name = name
        self._metadata = metadata
        self._rng = rng

    def __repr__(self) -> str:
        return f"<Register {self.name!r}>"

    async def get(self) -> Versioned | None:
        """Return the current value and its version, or None if the register does not exist."""
        request = pb.GetRegister(name=self.name)
        answer = await self._metadata.request(pb.Frame(get_register=request))
        current = answer.register_value
        return Versioned(current.value, current.version) if current.version else None

    async def swap(self, value: bytes | None, expected: int, lease: Lease | None = None) -> int:
        """Replace the value if the register has the version `expected`, and return the new version.

        An `expected` of 0 creates the register; a `value` of None deletes it. With a `lease`, swap
        only while that is held.

        Raise Conflict if the register has another version, and Fenced if the lease was lost; in
        both cases nothing has changed. Raise SwapUnknown if no answer arrived in time: the swap may
        or may not have happened."""
        if lease is not None:
            check_kind("lease", lease, Lease)
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
    """The methods of a Cluster that manage registers."""

    _metadata: Metadata
    _rng: random.Random

    def register(self, name: str) -> Register:
        """Return a handle for the register of this name, without checking that it exists."""
        return Register(check_name("a register's name", name), self._metadata, self._rng)

    async def registers(self, prefix: str = "") -> dict[str, Versioned]:
        """Return all registers whose names begin with `prefix`, by name. The result is not a
        consistent snapshot, since the registers are read one after the other."""
        check_text("prefix", prefix)
        registers: dict[str, Versioned] = {}
        after, more = "", True
        while more:
            request = pb.ListRegisters(prefix=prefix, after=after)
            part = (await self._metadata.request(pb.Frame(list_registers=request))).register_list
            registers |= {r.name: Versioned(r.value, r.version) for r in part.registers}
            after, more = next(reversed(registers), ""), part.more
        return registers

    async def _forget(self, prefix: str, is_obsolete: Callable[[bytes], bool]) -> None:
        """Delete the registers of a deleted log, whose values `is_obsolete` recognises. If that
        fails, the remaining ones are ignored because of their log id."""
        try:
            for name, register in (await self.registers(prefix)).items():
                if is_obsolete(register.value):
                    await self.register(name).swap(None, register.version)
        except (Conflict, Retryable, SwapUnknown):
            pass


def _check_version(version: object) -> int:
    if not is_int(version) or not 0 <= version < 1 << 64:
        raise InvalidArgument(
            f"a version is a number, or 0 if there is none yet, not {shown(version)}"
        )
    return version


def _check_value(name: str, value: bytes | None) -> bytes:
    content = b"" if value is None else as_bytes("value", value)
    if len(content) > limits.REGISTER_BYTES_MAX:
        raise InvalidArgument(
            f"register {name!r}: a value has at most {limits.REGISTER_BYTES_MAX} bytes, not "
            f"{len(content)}; put more into a log or a file, and its name here"
        )
    return content
