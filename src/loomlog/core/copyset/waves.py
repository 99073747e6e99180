"""Waves: attempts to store one record on R nodes. Pure.

A wave counts only as a whole. All its copies name the same copyset, so all nodes agree which node
sends the record to readers and which rebuilds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loomlog.core.copyset.effects import Send, Token
from loomlog.core.copyset.lsn import Offset
from loomlog.core.copyset.messages import Amend, Store
from loomlog.core.copyset.record import Record
from loomlog.types import Buffer, LogId, NodeId


@dataclass(slots=True)
class Underway:
    token: Token
    record: Record  # as of its newest wave, without its batch
    batch: Buffer
    stored: set[NodeId] = field(default_factory=set)  # in this wave
    holders: set[NodeId] = field(default_factory=set)  # of any wave: they have the batch
    failures: int = 0
    given_up: bool = False  # this wave: another one begins when it is due
    due: float = 0.0  # when something must be done about it
    done: bool = False

    @property
    def wave(self) -> int:
        return self.record.wave

    def begin_wave(
        self, log: LogId, copyset: tuple[NodeId, ...], lng: Offset, draining: bool
    ) -> list[Send]:
        self.record = self.record._replace(wave=self.wave + 1, copyset=copyset, lng=lng)
        self.stored.clear()
        self.given_up = False
        return [
            Send(node, Amend(log, self.record))
            if node in self.holders
            else self.store(log, node, draining)
            for node in copyset
        ]

    def store(self, log: LogId, node: NodeId, draining: bool) -> Send:
        return Send(node, Store(log, self.record._replace(batch=self.batch), draining))

    def stored_by(self, node: NodeId, wave: int) -> bool:
        """Note that a node has stored it. Return whether all of its copyset have."""
        self.holders.add(node)
        if wave != self.wave:
            return False
        self.stored.add(node)
        return not self.silent

    @property
    def silent(self) -> list[NodeId]:
        return [node for node in self.record.copyset if node not in self.stored]

    def finish(self) -> None:
        self.done = True
        self.batch = b""
