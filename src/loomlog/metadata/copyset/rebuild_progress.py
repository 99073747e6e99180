"""The progress of rebuilding a shard, for operators."""

from __future__ import annotations

from typing import Final, NamedTuple

from loomlog.core.conditions import Condition, Kind
from loomlog.core.copyset.rebuild.events import Status
from loomlog.types import NodeId


class Progress(NamedTuple):
    """The progress of rebuilding a shard."""

    status: Status
    records: int
    size_bytes: int
    part_done: float  # from 0 to 1
    left_s: float | None  # approximate; None: unknown yet
    waiting: str  # reason for waiting; "": none

    def condition(self, node: NodeId) -> Condition:
        left = f", ~{self.left_s:,.0f} s left" if self.left_s is not None else ""
        text = (
            f"{_WORDS[self.status]}: {self.records:,} records, {self.size_bytes / 1e6:,.1f} MB "
            f"restored{left}"
        )
        return Condition(Kind.REBUILD, text, self.waiting, node=node)


_WORDS: Final = {
    Status.RESTORING: "is away, and its copies are being rebuilt on other nodes",
    Status.LOST: "lost its copies, which are being rebuilt on other nodes",
    Status.REFILLING: "lost its copies, and is being rebuilt",
    Status.RELOCATING: "is being drained of its copies",
}
