"""Checkpoints, leases, registers and writers for programs without an event loop."""

from __future__ import annotations

from loomlog.client.blocking.loop_thread import Blocking, LoopThread, blocking
from loomlog.client.kv.checkpoints import Checkpoint
from loomlog.client.kv.leases import Lease
from loomlog.client.kv.registers import Register
from loomlog.client.publish.writer import Writer


class BlockingCheckpoint(Blocking[Checkpoint]):
    """A named reader position in one log. It exists once it is set."""

    def __init__(self, thread: LoopThread, checkpoint: Checkpoint) -> None:
        super().__init__(thread, checkpoint)
        self.name = checkpoint.name

    def __repr__(self) -> str:
        return f"<BlockingCheckpoint {self.name!r}>"

    get = blocking(Checkpoint.get)
    set = blocking(Checkpoint.set)
    delete = blocking(Checkpoint.delete)


class BlockingLease(Blocking[Lease]):
    """A lease as it was acquired; it may have expired since."""

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


class BlockingRegister(Blocking[Register]):
    """A handle for one register, which need not exist."""

    def __init__(self, thread: LoopThread, register: Register) -> None:
        super().__init__(thread, register)
        self.name = register.name

    def __repr__(self) -> str:
        return f"<BlockingRegister {self.name!r}>"

    get = blocking(Register.get)

    def swap(self, value: bytes | None, expected: int, lease: BlockingLease | None = None) -> int:
        """Replace the value at version `expected`; see `Register.swap`."""
        held = lease.held if lease else None
        return self._thread.run(self._target.swap(value, expected, held))


class BlockingWriter(Blocking[Writer]):
    """A durable identity that publishes to one log, in the order of its sequence numbers."""

    def __init__(self, thread: LoopThread, writer: Writer) -> None:
        super().__init__(thread, writer)
        self.name = writer.name

    def __repr__(self) -> str:
        return f"<BlockingWriter {self.name!r}>"

    sequence = blocking(Writer.sequence)
    publish = blocking(Writer.publish)
    forget = blocking(Writer.forget)
