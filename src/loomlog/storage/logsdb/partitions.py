"""Partitions of time: which one a record belongs to, and when a new one begins. Pure.

A partition begins at a time and ends where the next one begins; the oldest has what is older, too.
A batch is kept where its timestamp belongs, so a record that is rebuilt or recovered joins those of
its time. Marks of recovery have no time of their own and are kept in the newest partition.

A share is what a log has in a partition. It says where to look for an LSN, and which partitions go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from loomlog.core.copyset.lsn import LSN_MAX, Lsn
from loomlog.core.copyset.record import Kind, Record
from loomlog.limits import KIB, MIB

PartitionId: TypeAlias = int


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

    def overlaps(self, first: Lsn, last: Lsn) -> bool:
        return self.first <= last and first <= self.last

    def with_record(self, record: Record) -> Share:
        return Share(
            min(self.first, record.first),
            max(self.last, record.last),
            self.size + len(record.batch),
        )


def share_of(record: Record) -> Share:
    return Share(record.first, record.last, len(record.batch))


class Beginnings:
    """When each of the partitions begins."""

    def __init__(self, starts_us: Mapping[PartitionId, int]) -> None:
        self.starts_us = starts_us
        self._ids = sorted(starts_us)
        self._starts_us = [starts_us[partition] for partition in self._ids]

    @property
    def newest(self) -> PartitionId:
        return self._ids[-1]

    def place_of(self, record: Record) -> PartitionId:
        if record.kind is not Kind.DATA or record.timestamp_us >= self._starts_us[-1]:
            return self.newest
        return self._ids[max(0, bisect_right(self._starts_us, record.timestamp_us) - 1)]

    def over_by(self, time_us: int) -> set[PartitionId]:
        """Nothing in these is of that time or later."""
        return {
            partition
            for partition, end_us in zip(self._ids, self._starts_us[1:], strict=False)
            if end_us <= time_us
        }

    def is_over(self, now_us: int, size: int, settings: PartitionSettings) -> bool:
        """Whether a new one begins, given the size of the newest."""
        age_us = now_us - self._starts_us[-1]
        return age_us > 0 and (age_us >= settings.duration_s * 1e6 or size >= settings.bytes_max)


def runs(shares: Iterable[tuple[PartitionId, Share]]) -> list[list[PartitionId]]:
    """In the order of LSNs: those that must be read side by side, because they overlap."""
    found: list[list[PartitionId]] = []
    last = -1
    for partition, share in sorted(shares, key=lambda item: item[1]):
        if share.first > last:
            found.append([])
        found[-1].append(partition)
        last = max(last, share.last)
    return found


def expired(shares: Iterable[tuple[PartitionId, Share]], over: set[PartitionId]) -> Lsn:
    """The last LSN in partitions that are over, as long as nothing younger lies before it."""
    last, end = 0, LSN_MAX
    for partition, share in shares:
        if partition in over:
            last = max(last, share.last)
        else:
            end = min(end, share.first - 1)
    return min(last, end)
