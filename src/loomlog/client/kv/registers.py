"""Registers: small, named, versioned values in the metadata repository, for state that programs
must agree on. They change by compare-and-swap, optionally only while a lease (leases.py) is held.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from loomlog import limits
from loomlog.client.arguments import as_bytes, check_kind, check_name, check_text, is_int
from loomlog.client.kv.leases import Lease
from loomlog.client.servers import Metadata
from loomlog.errors import InvalidArgument, Retryable, SwapUnknown
from loomlog.wire import loomlog_pb2 as pb


class Versioned(NamedTuple):
    """A register's value and version; the next `swap` expects this version."""

    value: bytes
    version: int


class Register:
    """A handle for one register, which need not exist."""

    def __init__(self, name: str, metadata: Metadata, rng: random.Random) -> None:
        self.name = name
        self._metadata = metadata
        self._rng = rng

    def __repr__(self) -> str:
        return f"<Register {self.name!r}>"

    async def get(self) -> Versioned | None:
        """Return the newest value with its version; None if the register does not exist."""
        request = pb.GetRegister(name=self.name)
        answer = await self._metadata.request(pb.Frame(get_register=request))
        found = answer.register_value
        return Versioned(found.value, found.version) if found.version else None

    async def swap(self, value: bytes | None, expected: int, lease: Lease | None = None) -> int:
        """Replace the value at version `expected` and return the new version. `expected` is 0 to
        create the register; a `value` of None deletes it. With a `lease`, swap only while it is
        held.

        Raise Conflict if the version is another one and Fenced if the lease was lost: nothing was
        changed then. Raise SwapUnknown if no answer came in time: the swap may have happened."""
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
    """The part of a Cluster that manages registers."""

    _metadata: Metadata
    _rng: random.Random

    def register(self, name: str) -> Register:
        """Return a handle for the register of this name, which exists once it has a value."""
        return Register(check_name("a register's name", name), self._metadata, self._rng)

    async def registers(self, prefix: str = "") -> dict[str, Versioned]:
        """Return all registers whose name begins with `prefix`, by name. They are read one after
        the other: the result is not a consistent snapshot."""
        check_text("prefix", prefix)
        found: dict[str, Versioned] = {}
        after, more = "", True
        while more:
            request = pb.ListRegisters(prefix=prefix, after=after)
            part = (await self._metadata.request(pb.Frame(list_registers=request))).register_list
            found |= {r.name: Versioned(r.value, r.version) for r in part.registers}
            after, more = next(reversed(found), ""), part.more
        return found


def _check_version(version: object) -> int:
    if not is_int(version) or not 0 <= version < 1 << 64:
        raise InvalidArgument(
            f"a version is a number, 0 if there is none yet, not {version!r:.100}"
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
