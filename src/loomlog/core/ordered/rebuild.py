"""Rebuild the rounds of a log from its replicas when every round log is lost. Pure.

This relies on three facts (docs/design/metadata.md has the reasoning):

    positions are dense   each position up to the high watermark belongs to an entry of a stream,
                          except for those `elsewhere`, in segments that are trimmed or of another
                          protocol, and those that are `gone` with streams that were removed
    all or nothing        a round covers only entries that ALL replicas of a stream had written
    replicas know first   clients learn a position only from a replica that received its commit

Nothing is guessed: a single doubt makes it refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from loomlog.core.history import Doubt
from loomlog.core.ordered.evidence import StreamEvidence, doubts_about
from loomlog.core.ordered.recovery import last_place
from loomlog.core.ordered.round_parts import RoundPart
from loomlog.core.ordered.rounds import Round
from loomlog.types import CommitContext, Glsn, Llsn, LogId, StreamId


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The rounds that the metadata repository needs to start; none if there are doubts."""

    high_watermark: Glsn
    rounds: tuple[Round, ...]
    doubts: tuple[Doubt, ...]


class Elsewhere(NamedTuple):
    """A range of positions that belong to none of the streams."""

    first: Glsn
    last: Glsn


def commits_after(
    streams: Iterable[StreamEvidence], elsewhere: Sequence[Elsewhere] = (), gone: int = 0
) -> dict[StreamId, Glsn]:
    """Return, from reports alone, the high watermark above which the commits of each stream are
    needed. They are needed further back than replicas lack them only if positions are missing."""
    streams = list(streams)
    high = _high_watermark(streams)
    whole = _known_whole(streams) if _missing(streams, elsewhere, gone) else high
    return {stream.stream_id: min(whole, stream.least_watermark()) for stream in streams}


def rebuild(
    log_id: LogId,
    trimmed: Glsn,
    streams: Sequence[StreamEvidence],
    elsewhere: Sequence[Elsewhere] = (),
    gone: int = 0,
) -> Rebuilt:
    """Rebuild the rounds of a log, or return the doubts that prevent it."""
    streams = sorted(streams, key=lambda stream: stream.stream_id)
    high = _high_watermark(streams)
    doubts = [doubt for stream in streams for doubt in doubts_about(stream)]
    if not doubts:
        doubts = _contradictions(streams, trimmed, elsewhere, gone)
    filled: dict[StreamId, list[CommitContext]] = {}
    if not doubts:
        filled, doubts = _fill(streams, _gaps(streams, elsewhere, gone, trimmed))
    if doubts:
        return Rebuilt(high, (), tuple(doubts))
    return Rebuilt(high, tuple(_rounds(log_id, streams, filled)), ())


def trimmed_and_gone(
    trimmed: Glsn, streams: Iterable[StreamEvidence], elsewhere: Sequence[Elsewhere]
) -> int:
    """Return how many positions up to `trimmed` no stream claims: entries of streams that were
    removed, which happens only once they are trimmed. All commits above `trimmed` must be known."""
    claimed = sum(max(0, min(place.last, trimmed) - place.first + 1) for place in elsewhere)
    for stream in streams:
        kept = (last_place(c).glsn - max(c.glsn, trimmed + 1) + 1 for c in stream.commits())
        claimed += stream.committed_end - 1 - sum(max(0, number) for number in kept)
    return trimmed - claimed


# ---- are the streams consistent with each other?


def _contradictions(
    streams: Sequence[StreamEvidence], trimmed: Glsn, elsewhere: Sequence[Elsewhere], gone: int
) -> list[Doubt]:
    high = _high_watermark(streams)
    if trimmed > max([high, *(place.last for place in elsewhere)]):
        text = f"it was trimmed up to position {trimmed}, but no node knows of one above {high}"
        return [Doubt(0, text)]
    for before, after in pairwise(sorted(_ranges(streams, elsewhere))):
        if after.first <= before.last:
            both = f"in {before.where} and in {after.where}"
            return [Doubt(0, f"position {after.first} is {both}")]
    gaps = _gaps(streams, elsewhere, gone, trimmed)
    if _missing(streams, elsewhere, gone) != sum(gap.length for gap in gaps):
        entries = sum(stream.committed_end - 1 for stream in streams)
        text = f"its streams have {entries} entries, which do not fit its last position, {high}"
        return [Doubt(0, text)]
    return []


# ---- positions of rounds whose commits no replica received


class _Range(NamedTuple):
    first: Glsn
    last: Glsn
    stream_id: StreamId = 0  # 0: elsewhere

    @property
    def length(self) -> int:
        return self.last - self.first + 1

    @property
    def where(self) -> str:
        return f"stream {self.stream_id}" if self.stream_id else "another segment"


def _high_watermark(streams: Iterable[StreamEvidence]) -> Glsn:
    return max((stream.high_watermark for stream in streams), default=0)


def _missing(streams: Sequence[StreamEvidence], elsewhere: Sequence[Elsewhere], gone: int) -> int:
    """Return how many positions up to the high watermark no stream claims."""
    high = _high_watermark(streams)
    others = sum(max(0, min(place.last, high) - place.first + 1) for place in elsewhere)
    return high - others - gone - sum(stream.committed_end - 1 for stream in streams)


def _known_whole(streams: Iterable[StreamEvidence]) -> Glsn:
    """Return the position up to which every stream knows all its commits."""
    return min((s.high_watermark for s in streams if s.may_have_more), default=0)


def _ranges(streams: Iterable[StreamEvidence], elsewhere: Iterable[Elsewhere]) -> list[_Range]:
    ranges = [
        _Range(commit.glsn, last_place(commit).glsn, stream.stream_id)
        for stream in streams
        for commit in stream.commits()
    ]
    return ranges + [_Range(*place) for place in elsewhere]


def _gaps(
    streams: Sequence[StreamEvidence], elsewhere: Sequence[Elsewhere], gone: int, trimmed: Glsn
) -> list[_Range]:
    """Return the ranges of positions up to the high watermark that no stream claims."""
    if _missing(streams, elsewhere, gone) <= 0:
        return []
    gaps = []
    end = max(_known_whole(streams), trimmed if gone else 0)
    high = _high_watermark(streams)
    for taken in sorted(_ranges(streams, elsewhere)):
        if end + 1 < taken.first <= high:
            gaps.append(_Range(end + 1, taken.first - 1))
        end = max(end, taken.last)
    return [*gaps, _Range(end + 1, high)] if high > end else gaps


def _fill(
    streams: Sequence[StreamEvidence], gaps: Sequence[_Range]
) -> tuple[dict[StreamId, list[CommitContext]], list[Doubt]]:
    """Assign each gap to the stream that it must belong to: the only one with enough written
    entries whose replicas have received no commit that far. Doubt if there is no such stream, or
    more than one."""
    filled: dict[StreamId, list[CommitContext]] = {}
    ends = {stream.stream_id: stream.committed_end for stream in streams}
    for gap in gaps:
        able = [
            stream
            for stream in streams
            if stream.high_watermark < gap.first and stream.written_end > ends[stream.stream_id]
        ]
        if len(able) != 1 or able[0].written_end - ends[able[0].stream_id] < gap.length:
            return {}, [Doubt(0, _whose(gap, able))]
        stream, llsn = able[0], ends[able[0].stream_id]
        commit = CommitContext(gap.last, 0, gap.first, llsn, gap.length, stream.epoch)
        filled.setdefault(stream.stream_id, []).append(commit)
        ends[stream.stream_id] += gap.length
    return filled, []


def _whose(gap: _Range, able: Sequence[StreamEvidence]) -> str:
    where = f"position {gap.first}" if gap.length == 1 else f"positions {gap.first} to {gap.last}"
    if not able:
        return f"{where}: no stream has entries for them"
    streams = " or ".join(str(stream.stream_id) for stream in able)
    return f"{where}: in stream {streams}, none of whose replicas received it"


# ---- rounds


def _rounds(
    log_id: LogId,
    streams: Sequence[StreamEvidence],
    filled: dict[StreamId, list[CommitContext]],
) -> list[Round]:
    """Return rounds with all commits that replicas lack, and with the ends of all streams."""
    ends: dict[StreamId, Llsn] = {}
    commits_at: dict[Glsn, dict[StreamId, CommitContext]] = {}
    for stream in streams:
        commits = (*stream.commits(), *filled.get(stream.stream_id, ()))
        ends[stream.stream_id] = max([stream.committed_end, *(c.last_llsn + 1 for c in commits)])
        least = stream.least_watermark()
        for commit in commits:
            if commit.high_watermark > least:
                commits_at.setdefault(commit.high_watermark, {})[stream.stream_id] = commit
    high = _high_watermark(streams)
    if not high:
        return []
    commits_at.setdefault(high, {})
    highs = sorted(commits_at, reverse=True)
    rounds = []
    for this, before in zip(highs, [*highs[1:], 0], strict=True):
        parts = [_part(stream, commits_at[this], ends, before) for stream in streams]
        rounds.append(Round(log_id, before, this, tuple(parts)))
    return rounds[::-1]


def _part(
    stream: StreamEvidence,
    commits_at: dict[StreamId, CommitContext],
    ends: dict[StreamId, Llsn],
    before: Glsn,
) -> RoundPart:
    """Return the part of a stream in a round. Rounds are visited newest first: `ends` has the end
    of each stream after the round, and is set back to its end before the round."""
    commit = commits_at.get(stream.stream_id)
    if commit is None:
        return RoundPart(stream.stream_id, stream.epoch, ends[stream.stream_id], before + 1, 0)
    ends[stream.stream_id] = commit.llsn
    return RoundPart(stream.stream_id, commit.epoch, commit.llsn, commit.glsn, commit.length)
