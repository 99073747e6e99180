"""The output for people about copyset segments."""

from __future__ import annotations

from rich.table import Table

from loomlog.cli.console.output import epoch_table, log_table, stream_table
from loomlog.core.copyset.record import make
from loomlog.wire.info import (
    CopysetInfo,
    EpochsInfo,
    LogInfo,
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
    assert cells(log_table([log(copyset())]))["last"] == "25,769,803,788 (e6n12)"


def test_a_log_without_entries() -> None:
    assert cells(stream_table([log(copyset(), tail=0)]))["entries"] == "0"
    assert cells(log_table([log(copyset(), tail=0)]))["last"] == "0"


def copyset() -> CopysetInfo:
    return CopysetInfo(4, 7, closed=False, history=(epochs(6, "1", "2", "4"),))


def cells(table: Table) -> dict[str, str]:
    """Return the cells of the only row."""
    return {str(column.header): str(next(iter(column.cells))) for column in table.columns}
