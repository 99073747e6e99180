"""Stamps: the time at which a record was appended, according to its sequencer. Pure.

A stamp decides how long the record is kept, so it must not be too early, whatever the sequencer's
clock says. It is the latest of:

- the sequencer's clock;
- the time by most clocks of the cluster when the epoch began, plus the time since. So a new
  sequencer with a slow clock goes on where its predecessor was;
- the latest timestamp of the batch: no entry is deleted before its own timestamp allows it.

Stamps may fall: a clock that is ahead for a second affects only the records of that second.
"""

from __future__ import annotations


class Stamps:
    """The stamps of one epoch."""

    def __init__(self, began_us: int, began_s: float) -> None:
        """`began_us`: the time by most clocks, 0 if unknown; `began_s`: the same moment by a
        monotonic clock."""
        self._began_us = began_us
        self._began_s = began_s

    def stamp(self, own_us: int, latest_us: int, now_s: float) -> int:
        """Return the stamp of a batch whose latest timestamp is `latest_us`."""
        passed_us = int((now_s - self._began_s) * 1_000_000)
        return max(own_us, self._began_us + passed_us, latest_us)
