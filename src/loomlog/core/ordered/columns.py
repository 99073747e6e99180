"""The streams of a log that run undisturbed, as columns of numbers. Pure.

A round over thousands of streams must not touch an object for each of them. Streams whose state is
nothing but numbers are therefore kept in arrays, and reports, rounds and commits are arrays of
fixed-size rows. Code that reads the counters or reports of such a stream, or changes any of its
attributes, makes it leave the columns and become an ordinary object; it enters again with the next
packed report. The decisions are the same as in `rounds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loomlog.core.ordered.round_parts import PART, PackedParts, RoundPart
from loomlog.core.ordered.rounds import LogRounds, StreamRounds
from loomlog.core.packed import (
    COMMIT,
    REPORT,
    RUNNING,
    HeldReplica,
    pack_report,
    unpack_reports,
)
from loomlog.errors import Corrupt
from loomlog.types import Glsn, LogId, NodeId, ReplicaState, StreamId

Numbers = npt.NDArray[np.int64]
Rows = Numbers  # in one of the formats below: each column is 64 bits wide
Mask = npt.NDArray[np.bool_]
Left = Callable[[StreamId, Sequence[tuple[NodeId, HeldReplica]]], None]

_NONE: Final = np.iinfo(np.int64).max  # fills the cells of streams with fewer replicas than others
_EPOCH_MAX: Final = (1 << 31) - 1
# The low half of the first column is the stream, the high half the flags or the epoch.
_STREAM_BITS: Final = 32
_STREAM_MASK: Final = (1 << _STREAM_BITS) - 1
# The columns of a report (_R), a part of a round (_P) and a commit (_C): packed.py, round_parts.py.
_R_LLSN, _R_LENGTH, _R_HIGH, _R_EPOCH, _R_STORED, _R_BYTES, _R_STAMP, _R_BIRTH = range(1, 9)
_P_LLSN, _P_GLSN, _P_LENGTH = range(1, 4)
_C_GLSN, _C_LENGTH, _C_HIGH, _C_BEFORE, _C_LLSN = range(1, 6)


def _rows(data: bytes, size: int) -> Rows:
    return np.frombuffer(data, "<i8").reshape(-1, size // 8)


def read_reports(data: bytes) -> Rows:
    if len(data) % REPORT.size:
        raise Corrupt("packed reports have a wrong size")
    rows = _rows(data, REPORT.size)
    ends = rows[:, _R_LLSN] + rows[:, _R_LENGTH]
    if len(rows) and (rows[:, _R_LLSN:_R_STAMP].min() < 0 or ends.min() < 0):
        raise Corrupt("a report has numbers that no stream can have")
    return rows


def streams_of(rows: Rows) -> Numbers:
    return rows[:, 0] & _STREAM_MASK


class LogIndex:
    """Finds the logs of many streams at once."""

    def __init__(self, logs: Mapping[LogId, LogRounds]) -> None:
        pairs = sorted((stream, log.log_id) for log in logs.values() for stream in log.streams)
        self._streams = np.array([stream_id for stream_id, _ in pairs], np.int64)
        self._logs = np.array([log_id for _, log_id in pairs], np.int64)

    def split(self, rows: Rows) -> Iterator[tuple[LogId, Rows]]:
        """Yield the reports of each log; those of unknown streams under log 0."""
        at, known = _find(self._streams, streams_of(rows))
        if not known.any():
            yield 0, rows
            return
        logs = self._logs.take(at) * known
        if (logs == logs[0]).all():
            yield int(logs[0]), rows
            return
        yield from _groups(logs, rows)


class StreamInColumns(StreamRounds):
    """A stream in columns. Accessing its numbers, or setting an attribute, makes it leave them."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in _NUMBERS:
            _columns_of(self).leave(self)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _columns_of(self).leave(self)
        setattr(self, name, value)


_NUMBERS: Final = frozenset(
    ("committed_llsn_end", "committed_epoch", "given", "given_before", "reports", "sent")
)


def _columns_of(stream: StreamRounds) -> StreamColumns:
    columns = object.__getattribute__(stream, "columns")
    assert isinstance(columns, StreamColumns)
    return columns


class StreamColumns:
    """The streams of one log that are in columns; the others are in `outside`."""

    def __init__(self, log: LogRounds, left: Left) -> None:
        """Create columns for the streams of a log; none is in them yet. `left` is called with the
        newest reports of each stream that leaves."""
        streams, self._waiting = log.streams, log.waiting
        rows, width = len(streams), max(len(stream.replicas) for stream in streams.values())
        self.outside = dict(streams)
        self._streams = dict(streams)
        self._left = left
        self._is_fresh = False  # there were reports since the last round
        self._ids = np.array(sorted(streams), np.int64)
        self._is_in = np.zeros(rows, np.bool_)
        self._epoch, self._committed_epoch = np.zeros((2, rows), np.int64)
        self._committed, self._given, self._given_before = np.zeros((3, rows), np.int64)
        # One row for the first replicas of all streams, one for the second ones, and so on.
        self._nodes = np.zeros((width, rows), np.int64)
        self._reports = np.zeros((width * rows, REPORT.size // 8), np.int64)
        self._ends: Numbers = np.full((width, rows), _NONE)
        self._sent, self._stored = self._ends.copy(), self._ends.copy()

    # ---- entering and leaving

    def enter(self, stream: StreamRounds, reports: Sequence[HeldReplica]) -> bool:
        """Move a stream into the columns and return True, unless it needs special treatment.
        `reports` are those of its replicas, in order."""
        width = len(reports)
        if self._streams.get(stream.stream_id) is not stream or width > len(self._nodes):
            return False
        if not _is_undisturbed(stream, reports):
            return False
        at = int(np.searchsorted(self._ids, stream.stream_id))
        self._epoch[at], self._committed_epoch[at] = stream.epoch, stream.committed_epoch
        self._committed[at] = stream.committed_llsn_end
        self._given[at], self._given_before[at] = stream.given, stream.given_before
        rows = _rows(b"".join(map(pack_report, reports)), REPORT.size)
        self._nodes[:, at] = 0
        self._ends[:, at] = self._sent[:, at] = self._stored[:, at] = _NONE
        self._nodes[:width, at] = stream.replicas
        self._reports[at : width * len(self._ids) : len(self._ids)] = rows
        self._ends[:width, at] = rows[:, _R_LLSN] + rows[:, _R_LENGTH]
        self._sent[:width, at] = [stream.sent[node] for node in stream.replicas]
        self._stored[:width, at] = rows[:, _R_STORED]
        self._is_in[at] = self._is_fresh = True
        del self.outside[stream.stream_id]
        self._waiting.discard(stream.stream_id)
        stream.columns = self
        object.__setattr__(stream, "__class__", StreamInColumns)
        return True

    def leave(self, stream: StreamRounds) -> None:
        """Turn a stream back into an ordinary object."""
        object.__setattr__(stream, "__class__", StreamRounds)
        stream.columns = None
        at = int(np.searchsorted(self._ids, stream.stream_id))
        width = len(stream.replicas)
        self._is_in[at] = False
        stream.committed_llsn_end = int(self._committed[at])
        stream.committed_epoch = int(self._committed_epoch[at])
        stream.given, stream.given_before = int(self._given[at]), int(self._given_before[at])
        rows = self._reports[at : width * len(self._ids) : len(self._ids)]
        reports = list(unpack_reports(rows.tobytes()))
        stream.reports.update(zip(stream.replicas, (held.report for held in reports), strict=True))
        stream.sent.update(zip(stream.replicas, self._sent[:width, at].tolist(), strict=True))
        self.outside[stream.stream_id] = stream
        self._waiting.add(stream.stream_id)
        self._left(stream.stream_id, list(zip(stream.replicas, reports, strict=True)))

    def leave_one(self, stream_id: StreamId) -> None:
        """Let a stream leave, if it is in columns."""
        if stream_id in self:
            self.leave(self._streams[stream_id])

    def remove(self, stream_id: StreamId) -> None:
        """Remove a stream that is no longer part of the log."""
        self.leave_one(stream_id)
        del self.outside[stream_id]
        self._streams.pop(stream_id, None)

    def leave_on(self, node: NodeId) -> None:
        """Let all streams with a replica on a node leave."""
        self._leave_all((self._nodes == node).any(axis=0))

    def leave_behind(self, node: NodeId, high_watermark: Glsn) -> None:
        """Let all streams leave whose replica on this node was sent less than `high_watermark`."""
        self._leave_all(((self._nodes == node) & (self._sent < high_watermark)).any(axis=0))

    def _leave_all(self, leaving: Mask) -> None:
        for stream_id in self._ids[leaving & self._is_in].tolist():
            self.leave(self._streams[stream_id])

    def dissolve(self) -> None:
        """Let all streams leave."""
        self._leave_all(self._is_in)

    def __len__(self) -> int:
        """Return the number of streams that may enter, including those that are in."""
        return len(self._streams)

    def __contains__(self, stream_id: StreamId) -> bool:
        return stream_id in self._streams and stream_id not in self.outside

    def nodes(self) -> list[NodeId]:
        """Return the nodes that have replicas of streams in columns."""
        return [node for node in np.unique(self._nodes[:, self._is_in]).tolist() if node]

    # ---- reports in

    def take(self, node: NodeId, rows: Rows, high_watermark: Glsn) -> tuple[Mask, int]:
        """Process those reports of a node in which nothing but numbers has changed. Return a mask
        of them, and by how many bytes their replicas have grown."""
        at, known = _find(self._ids, streams_of(rows))
        slot, here = np.zeros(len(at), np.int64), np.zeros(len(at), np.bool_)
        for number, nodes in enumerate(self._nodes):
            is_this = nodes.take(at) == node
            here |= is_this
            slot += number * is_this
        cell = slot * len(self._ids) + at
        before = self._reports.take(cell, axis=0)
        taken = known & here & self._is_in.take(at)
        taken &= rows[:, 0] >> _STREAM_BITS == RUNNING
        taken &= rows[:, _R_EPOCH] == self._epoch.take(at)
        taken &= rows[:, _R_HIGH] <= high_watermark
        taken &= rows[:, _R_STAMP] == before[:, _R_STAMP]
        taken &= rows[:, _R_BIRTH] == before[:, _R_BIRTH]
        if not taken.all():
            cell, rows, before = cell[taken], rows[taken], before[taken]
        self._reports[cell] = rows
        self._ends.reshape(-1)[cell] = rows[:, _R_LLSN] + rows[:, _R_LENGTH]
        self._stored.reshape(-1)[cell] = rows[:, _R_STORED]
        self._is_fresh |= bool(len(rows))
        return taken, int(rows[:, _R_BYTES].sum() - before[:, _R_BYTES].sum())

    # ---- rounds

    def next_parts(self, high_watermark: Glsn) -> PackedParts | None:
        """Return the parts of the next round for the streams in columns, or None."""
        if not self._is_fresh:
            return None
        self._is_fresh = False
        lengths = self._ends.min(axis=0) - self._committed
        at = np.flatnonzero(self._is_in & (lengths > 0))
        if not len(at):
            return None
        parts, lengths = np.empty((len(at), PART.size // 8), "<i8"), lengths.take(at)
        parts[:, 0] = self._ids.take(at) | self._epoch.take(at) << _STREAM_BITS
        parts[:, _P_LLSN], parts[:, _P_LENGTH] = self._committed.take(at), lengths
        parts[:, _P_GLSN] = high_watermark + 1 + np.cumsum(lengths) - lengths
        return PackedParts(parts.tobytes())

    def adopt(self, parts: PackedParts, high_watermark: Glsn) -> Iterable[RoundPart]:
        """Apply a durable round to the streams in columns. Return the parts of other streams."""
        rows, at, here = self._find_parts(parts)
        at, given = at[here], rows[here]
        self._committed[at] = given[:, _P_LLSN] + given[:, _P_LENGTH]
        self._committed_epoch[at] = given[:, 0] >> _STREAM_BITS
        self._given_before[at], self._given[at] = self._given[at], high_watermark
        return _unpacked(rows[~here])

    def _find_parts(self, parts: PackedParts) -> tuple[Rows, Numbers, Mask]:
        """Return the parts as rows, the indexes of their streams, and a mask of those that are in
        columns."""
        rows = _rows(parts.data, PART.size)
        at, known = _find(self._ids, streams_of(rows))
        return rows, at, known & self._is_in.take(at)

    def commits(
        self, parts: PackedParts, high_watermark: Glsn
    ) -> tuple[dict[NodeId, bytes], tuple[RoundPart, ...]]:
        """Return the commits of a round for each node, and the parts that are left over: of other
        streams, and of streams with a replica that was not sent the previous commit."""
        rows, at, here = self._find_parts(parts)
        here &= (self._sent >= self._given_before).all(axis=0).take(at)
        at, given = at[here], rows[here]
        # A commit has the same columns in another order.
        part = np.empty((len(given), COMMIT.size // 8), "<i8")
        part[:, (0, _C_LLSN, _C_GLSN, _C_LENGTH)] = given
        return self._new_commits(at, part, high_watermark), _unpacked(rows[~here])

    def bare_commits(self, high_watermark: Glsn) -> dict[NodeId, bytes]:
        """Return empty commits with the high watermark for each node. Streams with a replica that
        was not sent all commits leave."""
        lacks: Mask = self._sent < self._given
        self._leave_all(np.asarray(lacks.any(axis=0)))
        at = np.flatnonzero(self._is_in & (self._sent < high_watermark).any(axis=0))
        part = np.zeros((len(at), COMMIT.size // 8), "<i8")
        part[:, 0] = self._ids.take(at) | self._epoch.take(at) << _STREAM_BITS
        part[:, _C_LLSN] = self._committed.take(at)
        return self._new_commits(at, part, high_watermark)

    def _new_commits(self, at: Numbers, parts: Rows, high_watermark: Glsn) -> dict[NodeId, bytes]:
        """Return commits for the replicas that were sent less than this high watermark."""
        sent, nodes = self._sent[:, at], self._nodes[:, at]
        lacks = sent < high_watermark
        commits = np.broadcast_to(parts, (*sent.shape, parts.shape[1]))[lacks]
        commits[:, _C_HIGH], commits[:, _C_BEFORE] = high_watermark, sent[lacks]
        self._sent[:, at] = np.where(lacks, high_watermark, sent)
        groups = _groups(nodes[lacks], commits)
        return {node: rows.tobytes() for node, rows in groups}

    # ---- forgetting

    def stored(self, parts: PackedParts, high_watermark: Glsn) -> tuple[bool, Iterable[RoundPart]]:
        """Return whether all replicas of the streams in columns have stored a round, and the parts
        of other streams."""
        rows, at, here = self._find_parts(parts)
        stored = self._stored.min(axis=0).take(at[here])
        return bool((stored >= high_watermark).all()), _unpacked(rows[~here])


def _is_undisturbed(stream: StreamRounds, reports: Sequence[HeldReplica]) -> bool:
    return (
        not (stream.sealed or stream.closed or stream.removing)
        and stream.epoch <= _EPOCH_MAX
        and stream.heard
        and stream.joining is None
        and len(reports) > 0
        and stream.reports.keys() == stream.sent.keys() == {*stream.replicas}
        and all(
            stream.reports[node] == held.report
            and held.report.epoch == stream.epoch
            and held.report.state is ReplicaState.RUNNING
            and not (held.report.damaged or held.report.resend or held.report.precondition)
            for node, held in zip(stream.replicas, reports, strict=True)
        )
    )


def _find(ids: Numbers, wanted: Numbers) -> tuple[Numbers, Mask]:
    """Return the indexes of numbers in a sorted array, and a mask of those that are in it."""
    if not len(ids):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return at, ids.take(at) == wanted


def _unpacked(rows: Rows) -> tuple[RoundPart, ...]:
    return tuple(PackedParts(rows.tobytes()))


def _groups(keys: Numbers, rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of each key."""
    order = np.argsort(keys, kind="stable")
    keys = keys.take(order)
    begins = np.flatnonzero(np.diff(keys, prepend=-1)).tolist()
    for begin, end in pairwise([*begins, len(keys)]):
        yield int(keys[begin]), rows.take(order[begin:end], axis=0)
