"""Checkpoints, leases and registers of the blocking client."""

from __future__ import annotations

from loomlog.client.arguments import check_kind
from loomlog.client.blocking.loop_thread import BlockingFace, LoopThread, blocking
from loomlog.client.kv.checkpoints import Checkpoint
from loomlog.client.kv.leases import Lease
from loomlog.client.kv.registers import Register


class BlockingCheckpoint(BlockingFace[Checkpoint]):
    """A named reader position in one log, which exists once it is set; the blocking form of
    `Checkpoint`."""

    def __init__(self, thread: LoopThread, checkpoint: Checkpoint) -> None:
        super().__init__(thread, checkpoint)
        self.name = checkpoint.name

    def __repr__(self) -> str:
        return f"<BlockingCheckpoint {self.name!r}>"

    get = blocking(Checkpoint.get)
    set = blocking(Checkpoint.set)
    delete = blocking(Checkpoint.delete)


class BlockingLease(BlockingFace[Lease]):
    """A lease that was acquired; the blocking form of `Lease`."""

    def __init__(self, thread: LoopThread, lease: Lease) -> None:
        super().__init__(thread, lease)
        self.name = lease.name
        self.holder = lease.holder
        self.epoch = lease.epoch
        self.ttl_s = lease.ttl_s
        self.held = lease

    def __repr__(self) -> str:
        return f"<BlockingLease {self.name!r} of {self.holder!r}, epoch {self.epoch}>"

    renew = blocking(Lease.renew)
    release = blocking(Lease.release)


def held_by(lease: BlockingLease | None) -> Lease | None:
    if lease is None:
        return None
    check_kind("lease", lease, BlockingLease)
    return lease.held


class BlockingRegister(BlockingFace[Register]):
    """A handle for one register; the blocking form of `Register`."""

    def __init__(self, thread: LoopThread, register: Register) -> None:
        super().__init__(thread, register)
        self.name = register.name

    def __repr__(self) -> str:
        return f"<BlockingRegister {self.name!r}>"

    get = blocking(Register.get)

    def swap(self, value: bytes | None, expected: int, lease: BlockingLease | None = None) -> int:
        """Replace the value if the register has the version `expected`, and return the new version;
        see `Register.swap`."""
        return self._thread.run(self._target.swap(value, expected, held_by(lease)))
