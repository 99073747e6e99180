"""Take a snapshot of the kept rounds of a log, and recover rounds that a replica lost. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from loomlog.core.ordered.round_parts import RoundPart
from loomlog.core.ordered.rounds import LogRounds, Round, StreamRounds
from loomlog.types import Glsn, NodeId


def needed(log: LogRounds) -> list[Round]:
    """Return a snapshot of a log: the rounds that a restart needs, oldest first. The last one names
    every stream."""
    high, rounds = log.high_watermark, list(log.kept)
    is_kept = bool(rounds) and rounds[-1].high_watermark == high
    last = rounds.pop() if is_kept else Round(log.log_id, high, high, ())
    return [*rounds, whole(log, last)] if high else []


def whole(log: LogRounds, round_: Round) -> Round:
    """Return the round under way, or the last one, with a part for every stream of the log."""
    high, parts = round_.prev_high_watermark, []
    for stream_id, stream in sorted((log.streams | log.removed).items()):
        part = round_.part_of(stream_id)
        if part is None:
            end, epoch = stream.committed_llsn_end, stream.committed_epoch
            part = RoundPart(stream_id, epoch, end, high + 1, 0)
        parts.append(part)
        high += part.length
    return round_._replace(parts=tuple(parts))


def recall(log: LogRounds, stream: StreamRounds, node: NodeId, rounds: Iterable[Round]) -> None:
    """Keep rounds again that a replica had stored and lost, so that they are sent once more.
    `rounds` are those that can still be read."""
    known = {r.high_watermark: r for r in rounds if r.gives(stream.stream_id)}
    _keep(log, known | {round_.high_watermark: round_ for round_ in log.kept})
    report = stream.reports[node]
    # Inferred rounds need at least their original epoch, so that an outdated replica refuses them.
    epoch = stream.committed_epoch or stream.epoch
    for hole in log.holes(stream, report):
        # As many positions as entries: none of them can belong to another stream.
        length = min(hole.end, report.written_end) - hole.first
        if length > 0 and hole.end - hole.first == hole.high_watermark - hole.after:
            part = RoundPart(stream.stream_id, epoch, hole.first, hole.after + 1, length)
            inferred = Round(log.log_id, hole.after, hole.after + length, (part,))
            kept = {round_.high_watermark: round_ for round_ in log.kept}
            _keep(log, {inferred.high_watermark: inferred} | kept)
    stream.sent[node] = report.high_watermark


def _keep(log: LogRounds, rounds: Mapping[Glsn, Round]) -> None:
    past = (high for high in sorted(rounds) if high <= log.high_watermark)
    log.kept = deque(rounds[high] for high in past)
