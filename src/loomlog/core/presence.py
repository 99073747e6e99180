"""Decide whether a storage node is there, from its connection, its messages and probes. Pure.

A node that is missed may be back in a moment: whatever can be taken back is done without it at
once, such as sealing its streams and sequencing elsewhere. Only a silent node has its data replaced
and its replicas dropped, so a quick restart copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """What the metadata repository makes of a node."""

    HERE = "it is there, or is expected at any moment"
    MISSED = "others carry on without it; it may be back in a moment"
    SILENT = "it has been silent for too long: others may take its place"


@dataclass(slots=True)
class Presence:
    """What is known of one node. Times are on the clock of the caller."""

    heard_at: float  # also when its connection was lost, or it was first expected
    silence_s: float  # that makes it silent, from `heard_at` on
    ended: bool = False  # its process: its connection was lost, and its address refuses others

    def standing(self, now_s: float) -> Standing:
        if now_s - self.heard_at >= self.silence_s:
            return Standing.SILENT
        return Standing.MISSED if self.ended else Standing.HERE

    def heard(self, now_s: float) -> None:
        self.heard_at = now_s
        self.ended = False

    def disconnected(self, now_s: float, grace_s: float) -> None:
        """Note that its connection was lost; it is silent unless it is back within the grace."""
        self.heard_at = now_s
        self.silence_s = grace_s

    def refused(self) -> None:
        """Note that nothing listens at its address since its connection was lost."""
        self.ended = True
