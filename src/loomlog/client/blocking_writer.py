"""A writer for programs without an event loop; see publishing.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loomlog.client.publishing import Published, Writer
from loomlog.client.staging import Staged

if TYPE_CHECKING:
    from loomlog.client.loop_thread import LoopThread


class BlockingWriter:
    """A durable identity that publishes to one log, in the order of its sequence numbers."""

    def __init__(self, thread: LoopThread, writer: Writer) -> None:
        self.name = writer.name
        self._thread = thread
        self._writer = writer

    def __repr__(self) -> str:
        return f"<BlockingWriter {self.name!r}>"

    def sequence(self) -> int:
        """The number of its last publication, 0 if there is none."""
        return self._thread.run(self._writer.sequence())

    def publish(self, sequence: int, staged: Staged) -> Published:
        """Give staged rows their positions, all at once; once for each number, whoever tries."""
        return self._thread.run(self._writer.publish(sequence, staged))

    def forget(self) -> None:
        """Drop its register: for a writer that never comes again."""
        self._thread.run(self._writer.forget())
