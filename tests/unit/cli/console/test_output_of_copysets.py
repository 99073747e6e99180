"""The output for people about copyset segments."""

from __future__ import annotations

from rich.progress_bar import ProgressBar
from rich.table import Table

from loomlog.cli.console.output import epoch_table, log_table, rebuild_table, stream_table
from loomlog.core.copyset.record import make
from loomlog.wire.info import (
    CopysetInfo,
    EpochsInfo,
    LogInfo,
    RebuildInfo,
    ReplicaInfo,
    SegmentInfo,
    StreamInfo,
)


def log(copyset: CopysetInfo, tail: int = make(6, 12)) -> LogInfo:
    replicas = tuple(ReplicaInfo(node, f"node-{node}:1") for node in (1, 2, 4))
    stream = StreamInfo(
        *(7, "running", 9, replicas, None),
        segment=2,
        protocol="copyset",
        copyset=copyset,
        last=tail,
    )
    segments = (SegmentInfo(2, "copyset", 1, 3, 1, None, nodeset=5),)
    return LogInfo(1, "events", "copyset", 3, 1, tail, streams=(stream,), segments=segments)


def epochs(since: int, *shards: str) -> EpochsInfo:
    nodes = dict.fromkeys(int(shard.partition("/")[0]) for shard in shards)
    return EpochsInfo(since, tuple(nodes), 2, shards)


def rows(copyset: CopysetInfo) -> list[list[str]]:
    columns = [list(map(str, column.cells)) for column in epoch_table(log(copyset)).columns]
    return list(map(list, zip(*columns, strict=True)))


def test_nodesets_are_shown_by_their_epochs() -> None:
    history = (epochs(3, "5", "1", "2/11", "2/2"), epochs(8, "1", "2", "4"))
    assert rows(CopysetInfo(4, 7, closed=False, history=history)) == [
        ["2", "3 to 7", "1, 2/2, 2/11, 5", "2", "", ""],
        ["2", "8 to 9", "1, 2, 4", "2", "node 4", "epoch 7"],
    ]
    assert rows(CopysetInfo(4, 8, closed=True, history=history[1:])) == [
        ["2", "8 to 9", "1, 2, 4", "2", "closed", "epoch 8"],
    ]


def test_a_log_that_nobody_used_has_no_sequencer() -> None:
    history = (epochs(10, "1", "2"),)
    assert rows(CopysetInfo(None, 9, closed=False, history=history)) == [
        ["2", "10", "1, 2", "2", "none yet", "epoch 9"],
    ]


def test_positions_are_told_by_epoch_and_offset() -> None:
    shown = cells(stream_table([log(copyset())]))
    assert shown["entries"] == "up to e6n12"
    assert shown["nodes"] == "2 copies on any of 1, 2, 4"
    assert cells(log_table([log(copyset())]))["last"] == "e6n12"


def test_a_log_without_entries() -> None:
    assert cells(stream_table([log(copyset(), tail=0)]))["entries"] == "0"
    assert cells(log_table([log(copyset(), tail=0)]))["last"] == "0"


def copyset() -> CopysetInfo:
    return CopysetInfo(4, 7, closed=False, history=(epochs(6, "1", "2", "4"),))


def cells(table: Table) -> dict[str, str]:
    """Return the cells of the only row."""
    return {str(column.header): str(next(iter(column.cells))) for column in table.columns}


def test_the_progress_of_rebuilding_is_shown_by_shard() -> None:
    running = RebuildInfo("3/1", 3, "restoring", 1500, 3 << 20, 0.25, left_s=90.0)
    waiting = RebuildInfo("4", 4, "lost", 0, 0, 0.0, waiting="node 5 may return")
    columns = rebuild_table([running, waiting]).columns
    rows = [*zip(*(column.cells for column in columns), strict=True)]
    assert [cells[:2] + cells[3:] for cells in rows] == [
        ("3/1", "restoring", "25%", "1,500", "3.0 MiB", "~1 m 30 s", ""),
        ("4", "lost", "0%", "0", "0 B", "", "node 5 may return"),
    ]
    assert [bar.completed for bar in columns[2].cells if isinstance(bar, ProgressBar)] == [0.25, 0]
