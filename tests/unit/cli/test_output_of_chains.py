"""What people are shown of chained segments."""

from __future__ import annotations

from loomlog.cli.output import _stream_table
from loomlog.client.info import LogInfo, SegmentInfo, StreamInfo


def cells(stream: StreamInfo) -> dict[str, str]:
    segments = (
        SegmentInfo(1, "ordered", 1, 3, 1, 1000),
        SegmentInfo(2, "chained", 2, 3, 1001, None),
    )
    log = LogInfo(1, "events", "chained", 3, 1, 1004, streams=(stream,), segments=segments)
    table = _stream_table([log])
    return {str(column.header): str(next(iter(column.cells))) for column in table.columns}


def test_chains_and_entries_of_the_segment_are_shown() -> None:
    chains = ((1, 2, 3), (4, 1))
    words = "runs with 2 of 3 replicas; node 2 is being filled, 12 % copied"
    stream = StreamInfo(
        *(7, "running", 3, (), 1004),
        condition=words,
        joining=2,
        segment=2,
        protocol="chained",
        chains=chains,
    )
    shown = cells(stream)
    assert shown["entries"] == "4"
    assert shown["nodes"] == "1-2-3, 4-1 (head to tail)"
    assert shown["condition"] == words
