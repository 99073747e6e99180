"""Commit rounds of one log, in the metadata repository. Pure.

Replicas report what they have written; a round gives the next GLSNs to what every replica of a
stream has; when the driver has made the round durable it is applied, and every replica is sent its
part. One round is under way at a time: the next takes whatever was reported meanwhile.

A round carries the whole vector of its log, so the newest one alone is enough to continue. Older
rounds are kept until all replicas concerned have stored their part.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from loomlog.errors import Corrupt
from loomlog.types import CommitContext, Glsn, Llsn, LogId, NodeId, Report, StreamId

_ROUND = struct.Struct("<IIQQ")
_PART = struct.Struct("<IIQQQ")


class RoundPart(NamedTuple):
    """The part of a round for one stream: [llsn, llsn + length) become [glsn, glsn + length)."""

    stream_id: StreamId
    epoch: int
    llsn: Llsn
    glsn: Glsn
    length: int


class Round(NamedTuple):
    """One decision of the metadata repository."""

    log_id: LogId
    prev_high_watermark: Glsn
    high_watermark: Glsn
    parts: tuple[RoundPart, ...]  # one for every stream of the log, in id order: searched

    def encode(self) -> bytes:
        head = _ROUND.pack(
            self.log_id, len(self.parts), self.prev_high_watermark, self.high_watermark
        )
        return head + b"".join(_PART.pack(*part) for part in self.parts)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Round:
        if len(data) < _ROUND.size or (len(data) - _ROUND.size) % _PART.size:
            raise Corrupt("a round record has a wrong size")
        log_id, count, prev, high = _ROUND.unpack_from(data)
        if len(data) != _ROUND.size + count * _PART.size:
            raise Corrupt("a round record has a wrong size")
        parts = tuple(RoundPart(*fields) for fields in _PART.iter_unpack(data[_ROUND.size :]))
        return cls(log_id, prev, high, parts)


@dataclass(slots=True)
class StreamRounds:
    """A stream as rounds and repair see it: its replicas, their reports, and operators' wishes."""

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
    heard: bool = True  # False: rounds may be lost, and no replica has reported yet
    reports: dict[NodeId, Report] = field(default_factory=dict)  # the newest of each replica
    sent: dict[NodeId, Glsn] = field(default_factory=dict)  # high watermark sent to each

    def written_end(self) -> Llsn:
        """Return the end of what all replicas have written in this epoch; what is committed while
        one of them is silent."""
        ends = []
        for node in self.replicas:
            report = self.reports.get(node)
            if report is None or report.epoch != self.epoch:
                return self.committed_llsn_end
            ends.append(report.written_end)
        return max(min(ends, default=0), self.committed_llsn_end)

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


class _Hole(NamedTuple):
    """Entries of a stream whose rounds are forgotten; their positions are between two others."""

    first: Llsn
    end: Llsn
    after: Glsn
    high_watermark: Glsn


class LogRounds:
    """The rounds of one log."""

    def __init__(self, log_id: LogId) -> None:
        self.log_id = log_id
        self.high_watermark: Glsn = 0
        self.streams: dict[StreamId, StreamRounds] = {}
        self._kept: deque[Round] = deque()  # not yet stored by all replicas concerned
        self._last: Round | None = None
        self._under_way: Round | None = None

    # ---- streams

    def add_stream(
        self, stream_id: StreamId, replicas: tuple[NodeId, ...], epoch: int, *, sealed: bool
    ) -> StreamRounds:
        stream = StreamRounds(stream_id, replicas, epoch, sealed)
        self.put_stream(stream)
        return stream

    def put_stream(self, stream: StreamRounds) -> None:
        """Add a stream, or put back one that was removed."""
        is_last = stream.stream_id > next(reversed(self.streams), 0)
        self.streams[stream.stream_id] = stream
        if not is_last:
            self.streams = dict(sorted(self.streams.items()))

    def restore(self, round_: Round) -> None:
        """Take a durable round that was read back at start; oldest first."""
        if round_.high_watermark <= self.high_watermark:
            return
        self._adopt(round_)

    def begin_at(self, start: Glsn) -> None:
        """Begin at `start`: the positions below belong to a segment of another protocol."""
        self.high_watermark = max(self.high_watermark, start - 1)

    def doubt(self) -> None:
        """Doubt the ends of streams: the last rounds may be lost. A recorded seal proves them."""
        for stream in self.streams.values():
            stream.heard = 0 < stream.sealed_at <= self.high_watermark

    @property
    def unheard(self) -> list[StreamRounds]:
        """The streams that take appends and may have more entries than is known here."""
        return [s for s in self.streams.values() if not s.heard and not s.closed]

    # ---- reports in

    def report(self, node: NodeId, report: Report) -> None:
        """Take a report; the first one of a connection must be preceded by `reconnected`."""
        stream = self.streams.get(report.stream_id)
        if stream is None or (node not in stream.replicas and node != stream.joining):
            return
        stream.reports[node] = report
        stream.heard |= node in stream.replicas
        if node in stream.replicas and (report.resend or node not in stream.sent):
            stream.sent[node] = report.high_watermark

    def reconnected(self, node: NodeId) -> None:
        """Start again from the next reports of a node: what was sent to it before may be lost."""
        for stream in self.streams.values():
            stream.sent.pop(node, None)
            stream.reports.pop(node, None)

    def change_replicas(self, stream_id: StreamId, replicas: tuple[NodeId, ...]) -> None:
        """Continue a sealed stream with other replicas."""
        stream = self.streams[stream_id]
        stream.replicas = replicas
        stream.joining = None
        for node in [node for node in stream.reports if node not in replicas]:
            stream.reports.pop(node)
            stream.sent.pop(node, None)
        for node in replicas:
            if node in stream.reports:
                stream.sent.setdefault(node, stream.reports[node].high_watermark)

    # ---- rounds

    @property
    def under_way(self) -> bool:
        return self._under_way is not None

    def next_round(self) -> Round | None:
        """Decide a round, if anything can be committed and none is under way."""
        if self._under_way is not None:
            return None
        high = self.high_watermark
        parts = []
        for stream in self.streams.values():
            begin = stream.committed_llsn_end
            gets_none = stream.sealed or stream.closed
            length = 0 if gets_none else stream.written_end() - begin
            parts.append(RoundPart(stream.stream_id, stream.epoch, begin, high + 1, length))
            high += length
        if high == self.high_watermark:
            return None
        self._under_way = Round(self.log_id, self.high_watermark, high, tuple(parts))
        return self._under_way

    def durable(self) -> None:
        """Called when the round under way is durable: it holds from now on."""
        assert self._under_way is not None
        round_, self._under_way = self._under_way, None
        self._adopt(round_)

    def _adopt(self, round_: Round) -> None:
        self.high_watermark = round_.high_watermark
        for part in round_.parts:
            stream = self.streams.get(part.stream_id)
            if stream is not None:
                stream.committed_llsn_end = part.llsn + part.length
        self._last = round_
        self._kept.append(round_)

    # ---- commits out

    def commits_for(self, node: NodeId, *, empty: bool) -> list[tuple[StreamId, CommitContext]]:
        """Return the commits to send to the node; with `empty` also bare high watermarks. Rounds
        that gave a stream nothing are folded into the next message about it."""
        commits: list[tuple[StreamId, CommitContext]] = []
        for stream in self.streams.values():
            sent = stream.sent.get(node)
            if sent is None or sent >= self.high_watermark:
                continue
            for commit in self._parts_after(stream, sent):
                commits.append((stream.stream_id, commit))
                sent = commit.high_watermark
            if empty and sent < self.high_watermark:
                end = stream.committed_llsn_end
                bare = CommitContext(self.high_watermark, sent, 0, end, 0, stream.epoch)
                commits.append((stream.stream_id, bare))
                sent = self.high_watermark
            stream.sent[node] = sent
        return commits

    def _parts_after(self, stream: StreamRounds, sent: Glsn) -> list[CommitContext]:
        parts: list[tuple[Round, RoundPart]] = []
        for round_ in reversed(self._kept):
            if round_.high_watermark <= sent:
                break
            part = _part_of(round_, stream.stream_id)
            if part is not None and part.length:
                parts.append((round_, part))
        commits = []
        for round_, part in reversed(parts):
            commits.append(
                CommitContext(
                    round_.high_watermark, sent, part.glsn, part.llsn, part.length, part.epoch
                )
            )
            sent = round_.high_watermark
        return commits

    # ---- forgetting

    def forget_stored(self) -> None:
        """Drop rounds that every replica concerned has stored. A node that is away holds back only
        the rounds of its own streams."""
        self._kept = deque(round_ for round_ in self._kept if not self._stored(round_))

    def _stored(self, round_: Round) -> bool:
        for part in round_.parts:
            stream = self.streams.get(part.stream_id)
            if (
                part.length
                and stream is not None
                and stream.stored_high_watermark() < round_.high_watermark
            ):
                return False
        return True

    def lost_commits(self, stream: StreamRounds, node: NodeId) -> bool:
        """Return whether a replica has entries without their commits, which are not kept any more:
        it had stored those, too."""
        report = stream.reports.get(node)
        if report is None or node not in stream.replicas or report.damaged:
            return False
        holes = self._holes(stream, report)
        return bool(holes) and holes[0].first < report.written_end

    def recall(self, stream: StreamRounds, node: NodeId, rounds: Iterable[Round]) -> None:
        """Keep rounds again that a replica lacks although it had stored them, and send them once
        more. `rounds` are those that are still known."""
        known = {r.high_watermark: r for r in rounds if _gives(r, stream.stream_id)}
        self._keep(known | {round_.high_watermark: round_ for round_ in self._kept})
        report = stream.reports[node]
        # Not below the epochs of what is inferred: an older copy of a replica has to refuse it.
        newest = _part_of(self._last, stream.stream_id) if self._last is not None else None
        epoch = stream.epoch if newest is None else newest.epoch
        for hole in self._holes(stream, report):
            # Nobody else can have had positions in between if the stream had as many entries.
            length = min(hole.end, report.written_end) - hole.first
            if length > 0 and hole.end - hole.first == hole.high_watermark - hole.after:
                part = RoundPart(stream.stream_id, epoch, hole.first, hole.after + 1, length)
                inferred = Round(self.log_id, hole.after, hole.after + length, (part,))
                kept = {round_.high_watermark: round_ for round_ in self._kept}
                self._keep({inferred.high_watermark: inferred} | kept)
        stream.sent[node] = report.high_watermark

    def _keep(self, rounds: Mapping[Glsn, Round]) -> None:
        past = (high for high in sorted(rounds) if high <= self.high_watermark)
        self._kept = deque(rounds[high] for high in past)

    def _holes(self, stream: StreamRounds, report: Report) -> list[_Hole]:
        """Return what a replica lacks and no round gives that is kept."""
        holes: list[_Hole] = []
        llsn, after = report.uncommitted_llsn_offset, report.high_watermark
        if llsn >= stream.committed_llsn_end:
            return holes
        for round_ in self._kept:
            part = _part_of(round_, stream.stream_id)
            if part is None or not part.length or part.llsn + part.length <= llsn:
                continue
            if part.llsn > llsn:
                holes.append(_Hole(llsn, part.llsn, after, round_.prev_high_watermark))
            llsn, after = part.llsn + part.length, round_.high_watermark
        if llsn < stream.committed_llsn_end:
            holes.append(_Hole(llsn, stream.committed_llsn_end, after, self.high_watermark))
        return holes

    def needed(self) -> list[Round]:
        """Return the rounds that a restart needs, oldest first: a snapshot of this log."""
        rounds = list(self._kept)
        if self._last is not None and (not rounds or rounds[-1] is not self._last):
            rounds.append(self._last)
        return rounds


def _part_of(round_: Round, stream_id: StreamId) -> RoundPart | None:
    parts = round_.parts
    at = bisect_left(parts, (stream_id,))
    return parts[at] if at < len(parts) and parts[at].stream_id == stream_id else None


def _gives(round_: Round, stream_id: StreamId) -> bool:
    part = _part_of(round_, stream_id)
    return part is not None and part.length > 0
