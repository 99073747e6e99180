"""Commit rounds of one log, in the metadata repository. Pure.

Replicas report what they have written. A round assigns the next GLSNs to the entries that all
replicas of their stream have written. Once the driver has made the round durable, it is applied,
and each replica is sent its part. Only one round is in progress at a time; the next one covers
everything that was reported meanwhile.

A conditional batch gets the positions directly after the expected one, or none. Its primary reports
the condition with what is written, and remembers it while it runs; so a stream is given positions
only while its primary runs. A hold stops other streams from getting positions while the batch is
being stored. If it is lost, the batch may come too late, and its primary seals itself.

A round names only the streams to which it gives positions. A snapshot, which replaces older rounds,
therefore ends with a round that names every stream of its log; so does each record without a mark,
as earlier releases wrote them. Rounds are kept until all their replicas have stored them.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Final, NamedTuple

from loomlog.core.ordered.holes import Span, holes_in
from loomlog.core.ordered.round_parts import PART, PackedParts, RoundPart, commits_after
from loomlog.core.ordered.stream_state import StreamState
from loomlog.errors import Busy, Conflict, Corrupt, NotYetWritten, Sealed, VersionMismatch
from loomlog.types import (
    CommitContext,
    Glsn,
    Llsn,
    LogId,
    NodeId,
    ReplicaState,
    Report,
    StreamId,
)

if TYPE_CHECKING:
    from loomlog.core.ordered.columns import StreamColumns

_ROUND: Final = struct.Struct("<IIQQ")
_PARTIAL: Final = struct.Struct("<IIII")  # log, an impossible number of parts, format, 0
_MARK: Final = 0xFFFF_FFFF
_FORMAT: Final = 1


class Round(NamedTuple):
    """One decision of the metadata repository."""

    log_id: LogId
    prev_high_watermark: Glsn
    high_watermark: Glsn
    parts: Sequence[RoundPart]  # sorted by stream, for binary search

    def encode(self) -> bytes:
        """Return the encoding that every release reads, older ones as the whole state of a log."""
        head = _ROUND.pack(
            self.log_id, len(self.parts), self.prev_high_watermark, self.high_watermark
        )
        parts = self.parts
        if isinstance(parts, PackedParts):
            return head + parts.data
        return head + b"".join(starmap(PART.pack, parts))

    def encode_partial(self) -> bytes:
        """Return it with a mark, so that releases which expect every stream in it refuse it."""
        return _PARTIAL.pack(self.log_id, _MARK, _FORMAT, 0) + self.encode()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Round:
        if len(data) >= _PARTIAL.size:
            _, mark, version, _ = _PARTIAL.unpack_from(data)
            if mark == _MARK and version != _FORMAT:
                raise VersionMismatch(f"a round has format {version}, this release reads {_FORMAT}")
            if mark == _MARK:
                data = data[_PARTIAL.size :]
        if len(data) < _ROUND.size or (len(data) - _ROUND.size) % PART.size:
            raise Corrupt("a round record has a wrong size")
        log_id, count, prev, high = _ROUND.unpack_from(data)
        if len(data) != _ROUND.size + count * PART.size:
            raise Corrupt("a round record has a wrong size")
        parts = tuple(map(RoundPart._make, PART.iter_unpack(data[_ROUND.size :])))
        return cls(log_id, prev, high, parts)

    def part_of(self, stream_id: StreamId) -> RoundPart | None:
        parts = self.parts
        at = bisect_left(parts, (stream_id,))
        return parts[at] if at < len(parts) and parts[at].stream_id == stream_id else None

    def gives(self, stream_id: StreamId) -> bool:
        part = self.part_of(stream_id)
        return part is not None and part.length > 0

    def commit_of(self, part: RoundPart, sent: Glsn) -> CommitContext:
        """Return the commit for replicas that were sent everything up to `sent`."""
        _, epoch, llsn, glsn, length = part
        fields = (self.high_watermark, sent, glsn, llsn, length, epoch)
        return tuple.__new__(CommitContext, fields)  # faster than the constructor


@dataclass(slots=True)
class StreamRounds(StreamState):
    """The state of a stream, and which of its entries the next round may commit."""

    def written_end(self) -> Llsn:
        """Return the end of the entries that all replicas have written in this epoch; that of the
        committed ones while a replica has not reported in it, or the primary does not run."""
        committed = self.committed_llsn_end
        if not self.replicas:
            return committed
        primary = self.reports.get(self.replicas[0])
        if primary is None or primary.state is not ReplicaState.RUNNING:
            return committed  # it may have forgotten a precondition
        lowest = primary.written_end
        for node in self.replicas:
            report = self.reports.get(node)
            if report is None or report.epoch != self.epoch:
                return committed
            end = report.uncommitted_llsn_offset + report.uncommitted_llsn_length
            if end <= committed:
                return committed
            if end < lowest:
                lowest = end
        return lowest

    def next_end(self, tail: Glsn) -> Llsn:
        """Return the end of the entries that may get the positions directly after `tail`."""
        begin, end = self.committed_llsn_end, self.written_end()
        if end == begin or (precondition := self.reports[self.replicas[0]].precondition) is None:
            return end
        if precondition.llsn < begin or end <= precondition.llsn:
            return end
        holds = tail + precondition.llsn - begin == precondition.expected
        return end if holds and precondition.end <= end else precondition.llsn

    def has_more_than(self, end: Llsn) -> bool:
        """Return whether any replica has reported entries at or above `end`."""
        for report in self.reports.values():
            if report.uncommitted_llsn_offset + report.uncommitted_llsn_length > end:
                return True
        return False

    def lacking(self, high_watermark: Glsn) -> dict[Glsn, list[NodeId]]:
        """Return the nodes that were not sent everything up to `high_watermark`, grouped by the
        high watermark that was sent to them."""
        lacking: dict[Glsn, list[NodeId]] = {}
        for node, sent in self.sent.items():
            if sent < high_watermark:
                lacking.setdefault(sent, []).append(node)
        return lacking


class Hold(NamedTuple):
    """While the tail is the expected one, only this stream gets positions."""

    stream_id: StreamId
    expected: Glsn


class LogRounds:
    """The rounds of one log."""

    def __init__(self, log_id: LogId) -> None:
        self.log_id = log_id
        self.high_watermark: Glsn = 0
        self.streams: dict[StreamId, StreamRounds] = {}
        self.columns: StreamColumns | None = None  # of the streams in packed reports
        self._was_packed = False  # the last round was of streams in columns
        self.kept: deque[Round] = deque()  # not yet stored by all their replicas
        self._unsent: list[Round] = []  # became durable since the last call of `new_commits`
        self.waiting: set[StreamId] = set()  # every stream with uncommitted entries is in it
        self.removed: dict[StreamId, StreamRounds] = {}  # since the start; they may be put back
        self._under_way: Round | None = None
        self._hold: Hold | None = None

    # ---- streams

    def add_stream(
        self, stream_id: StreamId, replicas: tuple[NodeId, ...], epoch: int, *, sealed: bool
    ) -> StreamRounds:
        stream = StreamRounds(stream_id, replicas, epoch, sealed)
        self.put_stream(stream)
        return stream

    def put_stream(self, stream: StreamRounds) -> None:
        """Add a stream, or put back one that was removed."""
        self.removed.pop(stream.stream_id, None)
        is_last = stream.stream_id > next(reversed(self.streams), 0)
        self.streams[stream.stream_id] = stream
        if not is_last:
            self.streams = dict(sorted(self.streams.items()))
        if self.columns is not None:
            self.columns.outside[stream.stream_id] = stream
        self.waiting.add(stream.stream_id)

    def remove_stream(self, stream_id: StreamId) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self.removed[stream_id] = stream
            if self.columns is not None:
                self.columns.remove(stream_id)

    def leave_columns(self, stream_id: StreamId) -> None:
        """Take a stream out of the columns, if it is there."""
        if self.columns is not None:
            self.columns.leave_one(stream_id)

    @property
    def plain_streams(self) -> dict[StreamId, StreamRounds]:
        """The streams that are not in columns."""
        return self.streams if self.columns is None else self.columns.outside

    @property
    def nodes(self) -> set[NodeId]:
        """The nodes that have replicas."""
        nodes = {node for stream in self.plain_streams.values() for node in stream.replicas}
        return nodes if self.columns is None else nodes.union(self.columns.nodes())

    def restore(self, round_: Round) -> None:
        """Apply a round that was read from the round log at start. Call it oldest first."""
        if round_.high_watermark <= self.high_watermark:
            return
        self._adopt(round_)

    def begin_at(self, start: Glsn) -> None:
        """Begin at `start`: lower positions belong to an earlier segment."""
        self.high_watermark = max(self.high_watermark, start - 1)

    def doubt(self) -> None:
        """Treat the ends of streams as unknown, because the last rounds may be lost. Streams whose
        recorded seal proves the end are exempt."""
        for stream in self.streams.values():
            stream.heard = 0 < stream.sealed_at <= self.high_watermark

    @property
    def unheard(self) -> list[StreamRounds]:
        """The streams that take appends and may have more committed entries than known here."""
        return [s for s in self.streams.values() if not s.heard and not s.closed]

    # ---- reports in

    def report(self, node: NodeId, report: Report) -> None:
        """Process a report. `reconnected` is called before the first one of a connection."""
        stream = self.streams.get(report.stream_id)
        if stream is None or (node not in stream.replicas and node != stream.joining):
            return
        stream.reports[node] = report
        if report.uncommitted_llsn_offset + report.uncommitted_llsn_length > (
            stream.committed_llsn_end
        ):
            self.waiting.add(report.stream_id)
        if node in stream.replicas:
            stream.heard = True
            if report.resend or node not in stream.sent:
                stream.sent[node] = report.high_watermark

    def reconnected(self, node: NodeId, among: Iterable[StreamId] | None = None) -> None:
        """Forget what was sent to a node and its reports: commits may have been lost with the old
        connection. `among` includes all streams of the node; None: they are not known."""
        if self.columns is not None:
            self.columns.leave_on(node)
        for stream in self._plain(among):
            stream.sent.pop(node, None)
            stream.reports.pop(node, None)

    def _plain(self, among: Iterable[StreamId] | None) -> Iterable[StreamRounds]:
        """Return those of the streams that are not in columns."""
        plain = self.plain_streams
        return plain.values() if among is None else [plain[s] for s in among if s in plain]

    def change_replicas(self, stream_id: StreamId, replicas: tuple[NodeId, ...]) -> None:
        """Replace the replicas of a sealed stream."""
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
        """Return the next round, which is then under way; None if there is nothing to commit, or
        a round is under way already."""
        if self._under_way is not None:
            return None
        if self.columns is not None and not self._was_packed and self._begin_packed():
            return self._under_way
        high, holder = self.high_watermark, self._holder()
        waiting = sorted(self.waiting)
        self.waiting.clear()
        parts = []
        for stream_id in waiting:
            stream = self.streams.get(stream_id)
            if stream is None:  # it was removed
                continue
            begin = stream.committed_llsn_end
            gets_none = stream.sealed or stream.closed or holder not in (None, stream_id)
            end = begin if gets_none else stream.next_end(high)
            if stream.has_more_than(end):
                self.waiting.add(stream_id)
            if end > begin:
                fields = (stream_id, stream.epoch, begin, high + 1, end - begin)
                parts.append(tuple.__new__(RoundPart, fields))  # faster than the constructor
                high += end - begin
        if parts:
            self._under_way = Round(self.log_id, self.high_watermark, high, tuple(parts))
            self._was_packed = False
        elif self.columns is not None:
            self._begin_packed()
        return self._under_way

    def _begin_packed(self) -> bool:
        """Begin a round of the streams in columns. The other streams take part in the next one."""
        assert self.columns is not None
        held = self._holder() is not None
        parts = None if held else self.columns.next_parts(self.high_watermark)
        if parts is None:
            return False
        last = parts[-1]
        high = last.glsn + last.length - 1
        self._under_way = Round(self.log_id, self.high_watermark, high, parts)
        self._was_packed = True
        return True

    def durable(self) -> None:
        """Called when the round under way is durable."""
        assert self._under_way is not None
        round_, self._under_way = self._under_way, None
        self._adopt(round_)
        self._unsent.append(round_)

    def _adopt(self, round_: Round) -> None:
        self.high_watermark = round_.high_watermark
        parts: Iterable[RoundPart] = round_.parts
        if self.columns is not None and isinstance(parts, PackedParts):
            parts = self.columns.adopt(parts, round_.high_watermark)
        for part in parts:
            stream = self.streams.get(part.stream_id)
            if stream is not None:
                stream.committed_llsn_end = part.llsn + part.length
                stream.committed_epoch = part.epoch
                if part.length:
                    stream.given_before, stream.given = stream.given, round_.high_watermark
        self.kept.append(round_)

    # ---- holds

    def hold(self, stream_id: StreamId, epoch: int, expected: Glsn) -> Hold:
        """Give positions to this stream only, as long as the tail is `expected`.

        Raise Conflict if the tail is higher, Busy or NotYetWritten if the caller may try again."""
        stream = self.streams[stream_id]
        self.leave_columns(stream_id)
        if stream.sealed or stream.closed or stream.epoch != epoch:
            raise Sealed(f"stream {stream_id} takes no appends in epoch {epoch}")
        tail = self.high_watermark
        if tail > expected:
            raise Conflict(f"the tail is {tail}, not {expected}")
        if self._under_way is not None or self._holder() not in (None, stream_id):
            raise Busy(f"log {self.log_id} has other appends under way: try again in a moment")
        if tail < expected:
            raise NotYetWritten(f"the tail is {tail}, not {expected}")
        self._hold = Hold(stream_id, expected)
        return self._hold

    def release(self, hold: Hold) -> None:
        if self._hold is hold:
            self._hold = None

    def _holder(self) -> StreamId | None:
        hold = self._hold
        if hold is None or hold.expected != self.high_watermark:
            return None
        stream = self.streams.get(hold.stream_id)
        return None if stream is None or stream.sealed or stream.closed else hold.stream_id

    # ---- commits out

    def new_packed_commits(self) -> Mapping[NodeId, bytes]:
        """Return the commits of a new round of streams in columns, as bytes for each node. Call
        `new_commits` afterwards for the rest."""
        if self.columns is None or len(self._unsent) != 1:
            return {}
        [round_] = self._unsent
        if not isinstance(round_.parts, PackedParts):
            return {}
        commits, rest = self.columns.commits(round_.parts, round_.high_watermark)
        self._unsent = [round_._replace(parts=rest)]
        return commits

    def new_commits(self) -> Iterator[tuple[StreamId, CommitContext, list[NodeId]]]:
        """Yield the commits of the rounds that became durable since the last call, with the nodes
        to send each to. A stream that a round gave nothing gets no message; its next commit covers
        that round, too."""
        rounds, self._unsent = self._unsent, []
        for round_ in rounds:
            high = round_.high_watermark
            for part in round_.parts:
                stream = self.streams.get(part.stream_id) if part.length else None
                if stream is None:
                    continue
                for sent, nodes in stream.lacking(high).items():
                    if sent < stream.given_before or len(rounds) > 1:
                        commits = commits_after(self.kept, stream.stream_id, sent)
                    else:
                        commits = [round_.commit_of(part, sent)]
                    for commit in commits:
                        yield part.stream_id, commit, nodes
                    for node in nodes if commits else ():
                        stream.sent[node] = commits[-1].high_watermark

    def commits_for(
        self, node: NodeId, *, empty: bool, among: Iterable[StreamId] | None = None
    ) -> list[tuple[StreamId, CommitContext]]:
        """Return all commits that were not sent to a node yet. With `empty`, streams that got
        nothing are sent an empty commit with the new high watermark. `among` is as for
        `reconnected`."""
        if self.columns is not None:
            self.columns.leave_behind(node, self.high_watermark)
        plain = self._plain(among)
        return [commit for s in plain for commit in self.commits_of(s, node, empty=empty)]

    def commits_of(
        self, stream: StreamRounds, node: NodeId, *, empty: bool
    ) -> list[tuple[StreamId, CommitContext]]:
        """Return the commits of one stream as `commits_for` does."""
        sent = stream.sent.get(node)
        if sent is None or sent >= self.high_watermark:
            return []
        commits = []
        for commit in commits_after(self.kept, stream.stream_id, sent):
            commits.append((stream.stream_id, commit))
            sent = commit.high_watermark
        if empty and sent < self.high_watermark:
            end = stream.committed_llsn_end
            bare = CommitContext(self.high_watermark, sent, 0, end, 0, stream.epoch)
            commits.append((stream.stream_id, bare))
            sent = self.high_watermark
        stream.sent[node] = sent
        return commits

    # ---- forgetting

    def forget_stored(self) -> None:
        """Drop the rounds that all their replicas have stored. A node that is down holds back only
        rounds of its own streams."""
        self.kept = deque(round_ for round_ in self.kept if not self._stored(round_))

    def _stored(self, round_: Round) -> bool:
        parts: Iterable[RoundPart] = round_.parts
        if self.columns is not None and isinstance(parts, PackedParts):
            is_stored, parts = self.columns.stored(parts, round_.high_watermark)
            if not is_stored:
                return False
        for part in parts:
            stream = self.streams.get(part.stream_id)
            if (
                part.length
                and stream is not None
                and stream.stored_high_watermark() < round_.high_watermark
            ):
                return False
        return True

    def lost_commits(self, stream: StreamRounds, node: NodeId) -> bool:
        """Return whether a replica has committed entries without their commits, and those are no
        longer kept. It must have stored them once and lost them."""
        report = stream.reports.get(node)
        if report is None or node not in stream.replicas or report.damaged:
            return False
        holes = self.holes(stream, report)
        return bool(holes) and holes[0].first < report.written_end

    def holes(self, stream: StreamRounds, report: Report) -> list[Span]:
        """Return the entries whose commits a replica lacks, and that no kept round covers."""
        first, after = report.uncommitted_llsn_offset, report.high_watermark
        lacked = Span(first, stream.committed_llsn_end, after, self.high_watermark)
        parts = ((round_, round_.part_of(stream.stream_id)) for round_ in self.kept)
        return holes_in(
            lacked,
            (
                Span(p.llsn, p.llsn + p.length, r.prev_high_watermark, r.high_watermark)
                for r, p in parts
                if p is not None and p.length
            ),
        )
