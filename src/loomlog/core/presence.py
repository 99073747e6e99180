"""Decide whether a storage node is there, from its connection, its messages and probes. Pure.

A node is missed when its process has ended, or when it is connected and answers nothing for a
second. It may be back in a moment: whatever can be taken back is done without it at
once, such as sealing its streams and sequencing elsewhere. Only a silent node has its data replaced
and its replicas dropped, so a quick restart copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

ASK_S: Final = 0.6  # a connected node that says nothing for this long is asked whether it is there
ANSWER_S: Final = 0.5  # and has at least this long to answer ...
QUIET_S: Final = 1.2  # ... before it is missed, when it has said nothing for this long
TRUST_S: Final = 60.0  # a node that was missed and is there after all is slow: it gets more time


class Standing(StrEnum):
    """The state of a node, as the metadata repository sees it."""

    HERE = "it is there, or is expected at any moment"
    MISSED = "others carry on without it; it may be back in a moment"
    SILENT = "it has been silent for too long: others may take its place"


@dataclass(slots=True)
class Presence:
    """The knowledge about one node. Times are on the clock of the caller."""

    heard_at: float  # also when its connection was lost, or it was first expected
    silence_s: float  # that makes it silent, from `heard_at` on
    connected: bool = False
    ended: bool = False  # its process: its connection was lost, and its address refuses others; or
    # it said so beforehand
    asked_at: float = inf  # whether it is there, since it was heard
    trusted_until: float = -inf  # silence_s alone counts

    def standing(self, now_s: float) -> Standing:
        if now_s - self.heard_at >= self.silence_s:
            return Standing.SILENT
        return Standing.MISSED if self.ended or self._quiet(now_s) else Standing.HERE

    def _quiet(self, now_s: float) -> bool:
        is_quiet = now_s - self.heard_at >= QUIET_S and now_s - self.asked_at >= ANSWER_S
        return self.connected and is_quiet and now_s >= self.trusted_until

    def ask(self, now_s: float) -> bool:
        """Return whether to ask it now whether it is there."""
        if not self.connected or self.asked_at != inf or now_s - self.heard_at < ASK_S:
            return False
        self.asked_at = now_s
        return True

    def look_at(self, now_s: float) -> float:
        """Return when to look at it again; -inf: as often as possible, because its silence counts
        now, and the time in which the caller itself is held up must not count with it."""
        if self.connected and self.asked_at == inf:
            return self.heard_at + ASK_S
        return inf if self.standing(now_s) is Standing.SILENT else -inf

    def heard(self, now_s: float) -> None:
        if self._quiet(now_s):
            self.trusted_until = now_s + TRUST_S
        self.heard_at = now_s
        self.asked_at = inf

    def disconnected(self, now_s: float, grace_s: float) -> None:
        """Note that its connection was lost; it is silent unless it is back within the grace."""
        self.connected = False
        self.heard_at = now_s
        self.silence_s = grace_s

    def process_ends(self) -> None:
        """Note that nothing listens at its address since its connection was lost, or that it said
        that it stops."""
        self.ended = True
