"""What people are shown of copyset segments."""

from __future__ import annotations

from loomlog.cli.output import _epoch_table, _stream_table
from loomlog.client.info import CopysetInfo, EpochsInfo, LogInfo, SegmentInfo, StreamInfo
from loomlog.core.copyset.lsn import make


def log(copyset: CopysetInfo) -> LogInfo:
    stream = StreamInfo(
        *(7, "running", 9, (), make(6, 12)), segment=2, protocol="copyset", copyset=copyset
    )
    segments = (SegmentInfo(2, "copyset", 1, 3, 1, None, nodeset=5),)
    return LogInfo(1, "events", "copyset", 3, 1, make(6, 12), streams=(stream,), segments=segments)


def rows(copyset: CopysetInfo) -> list[list[str]]:
    columns = [list(map(str, column.cells)) for column in _epoch_table(log(copyset)).columns]
    return list(map(list, zip(*columns, strict=True)))


def test_nodesets_are_shown_by_their_epochs() -> None:
    history = (EpochsInfo(3, (5, 1, 2), 2), EpochsInfo(8, (1, 2, 4), 2))
    assert rows(CopysetInfo(4, 7, closed=False, history=history)) == [
        ["2", "3 to 7", "1, 2, 5", "2", "", ""],
        ["2", "8 to 9", "1, 2, 4", "2", "node 4", "epoch 7"],
    ]
    assert rows(CopysetInfo(4, 8, closed=True, history=history[1:])) == [
        ["2", "8 to 9", "1, 2, 4", "2", "closed", "epoch 8"],
    ]


def test_a_log_that_nobody_used_has_no_sequencer() -> None:
    history = (EpochsInfo(10, (1, 2), 2),)
    assert rows(CopysetInfo(None, 9, closed=False, history=history)) == [
        ["2", "10", "1, 2", "2", "none yet", "epoch 9"],
    ]


def test_positions_are_told_by_epoch_and_offset() -> None:
    table = _stream_table([log(CopysetInfo(4, 7, closed=False, history=()))])
    shown = {str(column.header): str(next(iter(column.cells))) for column in table.columns}
    assert shown["entries"] == "to e6n12"
