"""Judge what the replicas of a stream prove after rounds or metadata were lost. Pure.

The end of a stream is certain if nothing is written beyond its last known commit, or if every
replica is present and remembers every commit that it received: then no client learnt anything else
from the lost rounds, and the remaining entries may be committed again. (docs/design/metadata.md)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loomlog.core.history import Doubt, Unknowable
from loomlog.types import CommitContext, Glsn, Llsn, NodeId, ReplicaState, Report, StreamId


@dataclass(frozen=True, slots=True)
class Witness:
    """A replica's report, used as evidence. Damaged replicas are not used."""

    report: Report
    ran_epoch: int  # the last epoch in which it ran since its node started; 0: none
    synced: bool  # what it reported as written survives a power loss
    commits: tuple[CommitContext, ...] = ()  # those asked for: oldest first, without gaps
    outdated: bool = False  # its data may be an older copy, which proves the end of nothing

    @property
    def committed_end(self) -> Llsn:
        return self.report.uncommitted_llsn_offset

    def remembers(self, epoch: int) -> bool:
        """Return whether this replica knows every commit that it received, given that it cannot
        have run after `epoch`: it was whole when that began, and its process still runs."""
        if self.outdated:
            return False
        whole = self.report.state in (ReplicaState.RUNNING, ReplicaState.SEALED)
        return self.report.epoch == epoch and (whole or self.ran_epoch == epoch)

    @property
    def keeps(self) -> bool:
        """True if it still has all that it reported as written."""
        return self.synced and not self.outdated


@dataclass(frozen=True, slots=True)
class StreamEvidence:
    """A stream according to the metadata, and the replicas that answered."""

    stream_id: StreamId
    replicas: tuple[NodeId, ...]
    epoch: int
    sealed: bool
    witnesses: dict[NodeId, Witness] = field(default_factory=dict)

    @property
    def last_run(self) -> int:
        """The last epoch in which the stream may have run."""
        return self.epoch - 1 if self.sealed else self.epoch

    @property
    def never_ran(self) -> bool:
        return self.sealed and self.epoch == 1

    @property
    def absent(self) -> list[NodeId]:
        return [node for node in self.replicas if node not in self.witnesses]

    @property
    def committed_end(self) -> Llsn:
        return max((w.committed_end for w in self.witnesses.values()), default=1)

    @property
    def high_watermark(self) -> Glsn:
        return max((w.report.high_watermark for w in self.witnesses.values()), default=0)

    @property
    def written_end(self) -> Llsn:
        """The end of the entries that all replicas which answered have written."""
        return min((w.report.written_end for w in self.witnesses.values()), default=1)

    @property
    def may_have_more(self) -> bool:
        """True if a lost round can have committed more entries than are known to be committed."""
        return self.written_end > self.committed_end

    def commits(self) -> tuple[CommitContext, ...]:
        """Return the commits of the most advanced replica."""
        best = max(
            self.witnesses.values(),
            key=lambda w: (w.committed_end, w.report.high_watermark),
            default=None,
        )
        return best.commits if best else ()

    def least_watermark(self) -> Glsn:
        """Return the lowest high watermark of replicas that have all committed entries: they still
        need the commits above it."""
        end = self.committed_end
        watermarks = [
            w.report.high_watermark for w in self.witnesses.values() if w.report.written_end >= end
        ]
        return min(watermarks, default=self.high_watermark)


# ---- is the end of a stream certain?


def doubts_about(stream: StreamEvidence) -> list[Doubt]:
    for node, witness in stream.witnesses.items():
        if witness.report.epoch > stream.epoch:
            text = (
                f"node {node} is in epoch {witness.report.epoch} and the metadata in epoch "
                f"{stream.epoch}: the metadata is older than the nodes, restore a newer copy"
            )
            return [Doubt(stream.stream_id, text)]
    if stream.never_ran or _end_is_certain(stream) or _all_remember(stream):
        return _disagreements(stream)
    return [Doubt(stream.stream_id, _why(stream))]


def _end_is_certain(stream: StreamEvidence) -> bool:
    """Return whether no round can have committed more entries than are known."""
    end = stream.committed_end
    if stream.sealed:
        return _sealed_end_is_certain(stream, end)
    # All replicas were whole when this epoch began, and have only appended since.
    written = [
        w.report.written_end
        for w in stream.witnesses.values()
        if w.keeps and w.report.epoch == stream.epoch
    ]
    return bool(written) and min(written) == end


def _sealed_end_is_certain(stream: StreamEvidence, end: Llsn) -> bool:
    """Return whether the end of a sealed stream is certain. A SEALED replica proves it: it has all
    commits up to the seal. Replicas in other states may just be being filled; they prove it only
    together."""
    witnesses = stream.witnesses.values()
    sealed = [w for w in witnesses if _is_sealed(w) and w.report.epoch == stream.epoch]
    if sealed:
        return all(w.committed_end == end for w in sealed)
    written = max((w.report.written_end for w in witnesses), default=0)
    return not stream.absent and written == end and all(w.keeps for w in witnesses)


def _is_sealed(witness: Witness) -> bool:
    return witness.report.state is ReplicaState.SEALED and not witness.outdated


def _all_remember(stream: StreamEvidence) -> bool:
    witnesses = stream.witnesses.values()
    return not stream.absent and all(w.remembers(stream.last_run) for w in witnesses)


def _why(stream: StreamEvidence) -> str:
    away, end = stream.absent, stream.committed_end
    outdated = [n for n, w in stream.witnesses.items() if w.outdated]
    forgetful = [
        n
        for n, w in stream.witnesses.items()
        if n not in outdated and not w.remembers(stream.last_run)
    ]
    reasons = []
    if outdated:
        reasons.append(
            f"the data of node {_names(outdated)} may be an older copy: start it with its newest "
            "data, or, if it was only away, add --was-away"
        )
    if away:
        reasons.append(f"node {_names(away)} did not answer, or has nothing of it")
    if forgetful:
        reasons.append(f"node {_names(forgetful)} may have forgotten, it was started again")
    if not stream.witnesses:
        what = "no replica reported anything"
    elif stream.written_end > end and not stream.sealed:
        what = (
            f"LLSN {end} to {stream.written_end - 1} are written; whether they have positions "
            f"above {stream.high_watermark} is not known"
        )
    else:
        what = (
            f"whether anything after LLSN {end - 1}, or above position {stream.high_watermark}, "
            "was committed is not known"
        )
    return f"{what}: {'; '.join(reasons)}"


def _names(nodes: Iterable[NodeId]) -> str:
    return ", ".join(map(str, nodes))


# ---- do the replicas agree?


def _disagreements(stream: StreamEvidence) -> list[Doubt]:
    agreed = stream.commits()
    for node, witness in stream.witnesses.items():
        for commit in witness.commits:
            expected = _position(agreed, commit.llsn)
            if expected not in (None, commit.glsn):
                text = (
                    f"the replicas disagree: LLSN {commit.llsn} is at position {commit.glsn} on "
                    f"node {node}, elsewhere at {expected}"
                )
                return [Doubt(stream.stream_id, text)]
    return []


def _position(commits: Sequence[CommitContext], llsn: Llsn) -> Glsn | None:
    index = bisect_right(commits, llsn, key=lambda commit: commit.llsn) - 1
    if index < 0 or commits[index].last_llsn < llsn:
        return None
    return commits[index].glsn + llsn - commits[index].llsn


class Stream(NamedTuple):
    """The replicas of a stream and their epoch."""

    replicas: tuple[NodeId, ...]
    epoch: int
    sealed: bool


def newest_stream(recorded: Stream | None, reports: Mapping[NodeId, Report]) -> Stream | Unknowable:
    """Return a stream as the nodes know it.

    The replicas that report the highest epoch are its replicas: a change of replicas seals the
    stream, and the seal raises the epoch of those that stay."""
    epoch = max((report.epoch for report in reports.values()), default=0)
    if (
        recorded is not None
        and recorded.epoch >= epoch
        and not (recorded.sealed and recorded.epoch == epoch)
    ):
        return recorded
    there = tuple(node for node, report in reports.items() if report.epoch == epoch)
    if not there:
        return recorded or Unknowable("no node has anything of it")
    before = recorded.replicas if recorded is not None else ()
    kept = tuple(node for node in before if node in there)
    replicas = (*kept, *sorted(set(there).difference(kept)))
    running = any(reports[node].state is ReplicaState.RUNNING for node in there)
    return Stream(replicas, epoch, not running)
