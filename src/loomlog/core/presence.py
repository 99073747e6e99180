"""Decide whether a storage node is alive, from its connection, its messages and probes. Pure.

A node is missed when its process has ended, or when it is connected but has not answered for a
second. It may be back in a moment, so only reversible steps are taken, such as sealing its streams
and sequencing elsewhere. Only the replicas of a silent node are replaced; so a quick restart copies
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

ASK_S: Final = 0.6  # a connected node that sends nothing for this long is probed,
ANSWER_S: Final = 0.5  # has at least this long to answer,
QUIET_S: Final = 1.2  # and is missed once it has sent nothing for this long
TRUST_S: Final = 60.0  # a node that answers after all is slow: it is not missed again for this long


class Standing(StrEnum):
    """The state of a node, according to the metadata repository."""

    HERE = "it is there, or is expected at any moment"
    MISSED = "others carry on without it; it may be back in a moment"
    SILENT = "it has been silent for too long: others may take its place"


@dataclass(slots=True)
class Presence:
    """The knowledge about one node. Times are on the clock of the caller."""

    heard_at: float  # last message, or when its connection was lost or it was first expected
    silence_s: float  # it is silent this long after `heard_at`
    connected: bool = False
    ended: bool = False  # its process ended: its address refuses connections, or it said so before
    asked_at: float = inf  # when it was probed; inf: not since `heard_at`
    trusted_until: float = -inf  # until then it is not missed for being quiet

    def standing(self, now_s: float) -> Standing:
        if now_s - self.heard_at >= self.silence_s:
            return Standing.SILENT
        return Standing.MISSED if self.ended or self._quiet(now_s) else Standing.HERE

    def _quiet(self, now_s: float) -> bool:
        is_quiet = now_s - self.heard_at >= QUIET_S and now_s - self.asked_at >= ANSWER_S
        return self.connected and is_quiet and now_s >= self.trusted_until

    def ask(self, now_s: float) -> bool:
        """Return whether to probe the node now. If so, the probe counts as sent."""
        if not self.connected or self.asked_at != inf or now_s - self.heard_at < ASK_S:
            return False
        self.asked_at = now_s
        return True

    def look_at(self, now_s: float) -> float:
        """Return when to check the node again.

        -inf: as often as possible, because its silence counts now, and a pause of the caller itself
        must not count as silence of the node."""
        if self.connected and self.asked_at == inf:
            return self.heard_at + ASK_S
        return inf if self.standing(now_s) is Standing.SILENT else -inf

    def heard(self, now_s: float) -> None:
        if self._quiet(now_s):
            self.trusted_until = now_s + TRUST_S
        self.heard_at = now_s
        self.asked_at = inf

    def disconnected(self, now_s: float, grace_s: float) -> None:
        """Called when its connection was lost. It is silent if it is not back within `grace_s`."""
        self.connected = False
        self.heard_at = now_s
        self.silence_s = grace_s

    def process_ends(self) -> None:
        """Called when nothing listens at its address after its connection was lost, or when it
        announced that it stops."""
        self.ended = True
