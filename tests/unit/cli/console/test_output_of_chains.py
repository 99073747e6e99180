"""The output for people about chained segments."""

from __future__ import annotations

from rich.table import Table

from loomlog.cli.console.output import log_table, segment_table, stream_table
from loomlog.wire.info import LogInfo, SegmentInfo, StreamInfo


def log_of(stream: StreamInfo) -> LogInfo:
    segments = (
        SegmentInfo(1, "ordered", 1, 3, 1, 1000),
        SegmentInfo(2, "ordered", 1, 3, 1001, 1000),
        SegmentInfo(3, "chained", 2, 3, 1001, None),
    )
    return LogInfo(1, "events", "chained", 3, 1, 1004, streams=(stream,), segments=segments)


def cells(table: Table, row: int = 0) -> dict[str, str]:
    return {str(column.header): str(list(column.cells)[row]) for column in table.columns}


def test_chains_and_entries_of_the_segment_are_shown() -> None:
    chains = ((1, 2, 3), (4, 1))
    words = "runs with 2 of 3 replicas; node 2 is being filled, 12 % copied"
    stream = StreamInfo(
        *(7, "running", 3, (), None),
        last=1004,
        condition=words,
        joining=2,
        segment=3,
        protocol="chained",
        chains=chains,
    )
    shown = cells(stream_table([log_of(stream)]))
    assert shown["entries"] == "up to 1,004"
    assert shown["nodes"] == "1-2-3, 4-1 (head to tail)"
    assert shown["condition"] == words
    assert cells(log_table([log_of(stream)]))["running"] == "2/2", "a chain is one"


def test_a_segment_without_entries_says_so() -> None:
    log = log_of(StreamInfo(7, "running", 3, (), 1004, segment=3, protocol="chained"))
    assert cells(segment_table(log), 0)["last"] == "1,000"
    assert cells(segment_table(log), 1)["last"] == "(empty)"
    assert cells(segment_table(log), 2)["last"] == ""
