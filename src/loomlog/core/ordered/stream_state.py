"""The state of a stream, as rounds and repair know it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from loomlog.types import Glsn, Llsn, NodeId, Report, StreamId


@dataclass(slots=True)
class StreamState:
    """The replicas of a stream, their reports, what it was given, and operators' wishes."""

    stream_id: StreamId
    replicas: tuple[NodeId, ...]
    epoch: int
    sealed: bool
    wanted_running: bool = True  # False: an operator sealed it, or it is closed
    closed: bool = False  # its segment of the log is not, or no longer, the one that gets entries
    relief: bool = False  # it was added because no other stream of its log ran
    removing: bool = False  # it takes nothing more, and goes when nothing of it is left
    sealed_at: Glsn = 0  # no entry of it is above; 0: it runs, or its seal is not recorded yet
    trimmed: Glsn = 0  # its log is trimmed up to here
    wanted_replicas: int = 0
    joining: NodeId | None = None  # is being filled, to become a replica; gets no commits
    leaving: NodeId | None = None  # the replica whose place the next newcomer takes
    wanted_primary: NodeId | None = None  # by an operator
    committed_llsn_end: Llsn = 1
    committed_epoch: int = 0  # of the newest committed entries, or above; 0: there are none
    given: Glsn = 0  # high watermark of the last round that gave it something,
    given_before: Glsn = 0  # and of the one before
    heard: bool = True  # False: rounds may be lost, and no replica has reported yet
    reports: dict[NodeId, Report] = field(default_factory=dict)  # the newest of each replica
    sent: dict[NodeId, Glsn] = field(default_factory=dict)  # high watermark sent to each
    columns: object = field(default=None, repr=False, compare=False)  # that have its numbers

    @property
    def lag(self) -> int:
        """The entries that the slowest replica lacks, of those that have reported."""
        reports = (self.reports.get(node) for node in self.replicas)
        ends = [report.written_end for report in reports if report is not None]
        return max([*ends, self.committed_llsn_end]) - min(ends) if ends else 0

    @property
    def has_entries(self) -> bool:
        return self.committed_llsn_end > 1

    @property
    def is_trimmed(self) -> bool:
        """Whether everything in a sealed stream is trimmed."""
        return 0 < self.sealed_at <= self.trimmed

    def stored_high_watermark(self) -> Glsn:
        """Return what every replica would still know after a crash."""
        stored = (self.reports.get(node) for node in self.replicas)
        return min((r.stored_high_watermark if r else 0 for r in stored), default=0)
