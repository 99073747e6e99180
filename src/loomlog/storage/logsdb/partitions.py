"""Partitions of time: which one a record belongs to, and when a new one begins. Pure.

A partition begins at a time and ends where the next one begins; the oldest has what is older, too.
Times come from this node's clock, which may jump: one that was ahead leaves a partition that begins
later than now, and partitions of the right time begin before it.

A batch is kept where its timestamp belongs, so a record that is rebuilt or recovered joins those of
its time. Marks of recovery have no time of their own and are kept in the newest partition.

A share is what a log has in a partition. It says where to look for an LSN, and how young the log's
records there are. Partitions begin by this node's clock and records are stamped by others', so the
newest partition may get records that are younger than its end: only the share knows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from loomlog.core.copyset.landmarks import Ages
from loomlog.core.copyset.record import LSN_MAX, Kind, Lsn, Record
from loomlog.limits import KIB, MIB

PartitionId: TypeAlias = int

_NEVER_US: Final = -(1 << 63)


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    duration_s: float = 900.0
    bytes_max: int = 6144 * MIB
    large_batch_bytes: int = 32 * KIB  # goes to a file; smaller ones are not worth a second sync


class Share(NamedTuple):
    """All copies that a log has in a partition lie within [first, last]."""

    first: Lsn
    last: Lsn
    size: int  # in bytes, about
    latest_us: int  # no batch there is younger; never falls

    def overlaps(self, first: Lsn, last: Lsn) -> bool:
        return self.first <= last and first <= self.last

    def with_record(self, record: Record) -> Share:
        return Share(
            min(self.first, record.first),
            max(self.last, record.last),
            self.size + len(record.batch),
            max(self.latest_us, _time_of(record)),
        )

    def with_time(self, record: Record) -> Share:
        """Return the share after one of its records got another timestamp."""
        return self._replace(latest_us=max(self.latest_us, _time_of(record)))


def share_of(record: Record) -> Share:
    return Share(record.first, record.last, len(record.batch), _time_of(record))


def _time_of(record: Record) -> int:
    return record.timestamp_us if record.kind is Kind.DATA else _NEVER_US


class Beginnings:
    """The start times of the partitions."""

    def __init__(self, starts_us: Mapping[PartitionId, int]) -> None:
        self.starts_us = starts_us
        self.newest: PartitionId = max(starts_us, default=0)  # the last that was made
        self._ids = sorted(starts_us, key=lambda partition: (starts_us[partition], partition))
        self._starts_us = [starts_us[partition] for partition in self._ids]

    def place_of(self, record: Record) -> PartitionId:
        return self.newest if record.kind is not Kind.DATA else self.at(record.timestamp_us)

    def at(self, time_us: int) -> PartitionId:
        """Return the partition of a time."""
        return self._ids[max(0, bisect_right(self._starts_us, time_us) - 1)]

    def is_over(self, now_us: int, size: int, settings: PartitionSettings) -> bool:
        """Whether a new one begins, given the size of that of now. Also if that one was begun by a
        clock that was ahead by more than a partition."""
        age_us = now_us - self.starts_us[self.at(now_us)]
        if abs(age_us) >= settings.duration_s * 1e6:
            return True
        return age_us > 0 and size >= settings.bytes_max


def runs(shares: Iterable[tuple[PartitionId, Share]]) -> list[list[PartitionId]]:
    """Group shares in LSN order; overlapping ones must be merged when read."""
    found: list[list[PartitionId]] = []
    last = -1
    for partition, share in sorted(shares, key=lambda item: item[1]):
        if share.first > last:
            found.append([])
        found[-1].append(partition)
        last = max(last, share.last)
    return found


def ages(shares: Iterable[Share], before_us: int) -> Ages:
    """Return which copies of a log are older than a time, in whole shares."""
    older, young = 0, LSN_MAX
    for share in shares:
        if share.latest_us < before_us:
            older = max(older, share.last)
        else:
            young = min(young, share.first)
    return Ages(min(older, young - 1), young)
