"""Registers and leases for programs without an event loop; see registers.py and leases.py."""

from __future__ import annotations

from loomlog.client.leases import Lease
from loomlog.client.loop_thread import LoopThread
from loomlog.client.registers import Register, Versioned


class BlockingLease:
    """A lease that we got; others may have it by now."""

    def __init__(self, thread: LoopThread, lease: Lease) -> None:
        self.name = lease.name
        self.holder = lease.holder
        self.epoch = lease.epoch
        self.ttl_s = lease.ttl_s
        self._thread = thread
        self.held = lease

    def __repr__(self) -> str:
        return f"<BlockingLease {self.name!r} of {self.holder!r}, epoch {self.epoch}>"

    def renew(self) -> None:
        """Keep it for another `ttl_s`; raises Fenced if it is ours no more."""
        self._thread.run(self.held.renew())

    def release(self) -> None:
        """Let others have it at once. Fine if it is not ours any more."""
        self._thread.run(self.held.release())


class BlockingRegister:
    """One register; whether it exists shows when it is read."""

    def __init__(self, thread: LoopThread, register: Register) -> None:
        self.name = register.name
        self._thread = thread
        self._register = register

    def __repr__(self) -> str:
        return f"<BlockingRegister {self.name!r}>"

    def get(self) -> Versioned | None:
        """The newest value; None if there is none."""
        return self._thread.run(self._register.get())

    def swap(self, value: bytes | None, expected: int, lease: BlockingLease | None = None) -> int:
        """Replace what is at version `expected` (0: nothing) by `value` (None: delete it), and
        only while `lease` is ours; returns the new version. Raises Conflict, Fenced or
        SwapUnknown, as `Register.swap` does."""
        held = lease.held if lease else None
        return self._thread.run(self._register.swap(value, expected, held))
