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
    closed: bool = False  # its segment of the log is not the active one
    relief: bool = False  # it was added because no other stream of its log ran
    removing: bool = False  # takes no more appends; removed when all its entries are trimmed
    sealed_at: Glsn = 0  # it has no entry above; 0: it runs, or its seal is not recorded yet
    trimmed: Glsn = 0  # its log is trimmed up to here
    wanted_replicas: int = 0
    joining: NodeId | None = None  # the newcomer, which is being filled; gets no commits
    leaving: NodeId | None = None  # the replica whose place the next newcomer takes
    wanted_primary: NodeId | None = None  # by an operator
    committed_llsn_end: Llsn = 1
    committed_epoch: int = 0  # of the newest committed entries, or later; 0: there are none
    given: Glsn = 0  # high watermark of the last round that committed entries of it,
    given_before: Glsn = 0  # and of the one before that
    heard: bool = True  # False: rounds may be lost, and no replica has reported yet
    reports: dict[NodeId, Report] = field(default_factory=dict)  # the newest of each replica
    sent: dict[NodeId, Glsn] = field(default_factory=dict)  # high watermark sent to each
    columns: object = field(default=None, repr=False, compare=False)  # the StreamColumns it is in

    @property
    def lag(self) -> int:
        """The number of entries that the slowest replica lacks, of those that have reported."""
        reports = (self.reports.get(node) for node in self.replicas)
        ends = [report.written_end for report in reports if report is not None]
        return max([*ends, self.committed_llsn_end]) - min(ends) if ends else 0

    @property
    def has_entries(self) -> bool:
        return self.committed_llsn_end > 1

    @property
    def is_trimmed(self) -> bool:
        """True if everything in a sealed stream is trimmed."""
        return 0 < self.sealed_at <= self.trimmed

    def stored_high_watermark(self) -> Glsn:
        """Return the high watermark that every replica would still have after a crash."""
        stored = (self.reports.get(node) for node in self.replicas)
        return min((r.stored_high_watermark if r else 0 for r in stored), default=0)
