"""The screen of `loom status`: problems first, and it fits a terminal of 80 columns."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console, RenderableType

from loomlog.cli.bench.reports import number_table
from loomlog.cli.console.status_view import STREAMS_SHOWN, Rates, log_view, status_view
from loomlog.wire.conditions import ConditionInfo
from loomlog.wire.info import (
    ClusterStatus,
    CopysetInfo,
    EpochsInfo,
    LogInfo,
    NodeInfo,
    ReplicaInfo,
    SegmentInfo,
    StreamInfo,
)

NODES = tuple(
    NodeInfo(number, f"10.20.30.{number}:7401", number != 3, 0.4, "always", 120, 10**11)
    for number in (1, 2, 3)
)
REPLICAS = tuple(ReplicaInfo(node.id, node.address) for node in NODES)


def log(name: str, tail: int = 1_000_000_000, state: str = "running") -> LogInfo:
    stream = StreamInfo(7, state, 12, REPLICAS, tail, "" if state == "running" else "waits for 3")
    segments = (SegmentInfo(0, "ordered", 1, 3, 1, None),)
    return LogInfo(1, name, "ordered", 3, 1, tail, (stream,), segments=segments)


def condition(severity: str, words: str, about: str = "") -> ConditionInfo:
    return ConditionInfo(
        kind="appends-wait", severity=severity, text=words, help=f"mend {words}", log=about
    )


STATUS = ClusterStatus(
    cluster_id="prod",
    metadata_address="10.20.30.40:7400",
    nodes=NODES,
    logs=(log("orders"), log("stopped", state="sealed"), log("loomlog.audit")),
    rounds=123_456_789,
    uptime_s=86_400.0 * 30,
    conditions=(
        condition("problem", "no appends " * 15, "stopped"),
        condition("warning", "a clock"),
    ),
)


def lines(view: RenderableType) -> list[str]:
    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(view)
    return shown.get().splitlines()


def test_names_of_usual_length_and_numbers_are_not_broken() -> None:
    copies = replace(log("sensor-readings"), protocol="copyset", tail=(7 << 32) + 1_234_567)
    epochs = (EpochsInfo(7, (1, 2, 3), 3, ("1", "2", "3")),)
    copyset = CopysetInfo(1, 6, closed=False, history=epochs)
    copies = replace(copies, streams=(replace(copies.streams[0], copyset=copyset),))
    kept = replace(log("page-views"), retention_s=7 * 86_400, retention_bytes=10 << 30)
    shown = lines(status_view(replace(STATUS, logs=(copies, kept), conditions=())))
    rows = [line.split() for line in shown]
    assert ["sensor-readings", "copyset", "1/1", "3", "1", "e7n1234567", "forever"] in rows
    kept_for = ["7d,", "10", "GiB"]
    assert ["page-views", "ordered", "1/1", "3", "1", "1,000,000,000", *kept_for] in rows


def test_problems_come_first_with_what_to_do_and_nothing_is_wider_than_the_screen() -> None:
    shown = lines(status_view(STATUS))
    assert max(map(len, shown)) <= 80
    texts = [line.strip() for line in shown]
    [problem] = (n for n, text in enumerate(texts) if text.startswith("problem log stopped: no"))
    [help_] = (n for n, text in enumerate(texts) if text.startswith("→ mend no appends"))
    [warning] = (n for n, text in enumerate(texts) if text.startswith("warning metadata: a clock"))
    [nodes] = (n for n, text in enumerate(texts) if text.startswith("node "))
    assert problem < help_ < warning < nodes
    assert not any("…" in line for line in shown), "nothing is cut off"


def test_only_streams_that_need_a_look_are_listed_and_internal_logs_are_not() -> None:
    brief, whole = "\n".join(lines(status_view(STATUS))), lines(status_view(STATUS, all_logs=True))
    assert "waits for 3" in brief
    assert "loomlog.audit" not in brief
    assert "1 internal log: see it with --all" in brief
    assert (brief.count("orders"), "\n".join(whole).count("orders")) == (1, 2)
    assert any("loomlog.audit" in line for line in whole)


def test_one_log_is_shown_with_its_streams_and_its_problems_alone() -> None:
    shown = "\n".join(lines(log_view(STATUS, "orders")))
    assert "no appends" not in shown
    assert "running" in shown
    assert "stopped" not in shown


def test_rates_are_those_since_the_last_look() -> None:
    rates = Rates()
    assert rates.update([log("a", 100), log("b", 5)], 10.0) == {}
    assert rates.update([log("a", 300), log("c", 9)], 12.0) == {"a": 100.0}
    unknown = replace(log("a"), tail=None)
    assert rates.update([unknown], 13.0) == {}
    shown = lines(status_view(STATUS, rates={"orders": 12_345.6}))
    assert any("12,346" in line for line in shown)


def test_a_cluster_with_many_problems_fits_as_well() -> None:
    away = ConditionInfo("node-away", "warning", "is away", "start its vsn", node=3)
    waits = [
        ConditionInfo("appends-wait", "warning", "waiting for node 3", log="orders", stream=number)
        for number in range(40)
    ]
    nodes = [
        replace(node, address=f"10.200.130.{node.id}:7401", location="eu-central-1a")
        for node in NODES
    ]
    nodes[2] = replace(nodes[2], unknown_streams=tuple(range(100, 200)))
    shown = lines(status_view(replace(STATUS, conditions=(away, *waits), nodes=tuple(nodes))))
    assert max(map(len, shown)) <= 80
    text = "\n".join(shown)
    for words in ("10.200.130.2:7401", "eu-central-1a", "node 3 has data of other streams: 100,"):
        assert words in text
    assert "…" not in text
    assert text.count("waiting for node 3") == 1
    assert any(line.startswith("warning node 3: is away") for line in shown)
    assert "always" not in text, "the mode is named only if a node has another one"
    careless = replace(STATUS, nodes=(replace(NODES[0], sync_mode="none"), *NODES[1:]))
    assert {"none", "always"} <= set(" ".join(lines(status_view(careless))).split())


def test_a_healthy_stream_takes_one_line() -> None:
    [line] = (line for line in lines(log_view(STATUS, "orders")) if "(primary)" in line)
    assert "1 (primary), 2, 3" in line


def test_of_many_streams_that_stopped_the_first_are_shown() -> None:
    stopped = log("stopped", state="sealed")
    streams = tuple(replace(stopped.streams[0], id=number) for number in range(100, 160))
    shown = lines(status_view(replace(STATUS, logs=(replace(stopped, streams=streams),))))
    assert sum("waits for 3" in line for line in shown) == STREAMS_SHOWN
    assert f"and {60 - STREAMS_SHOWN} more streams: see `loom stream list`" in shown


def test_numbers_of_benchmarks_are_whole() -> None:
    columns = ("bytes", "batch", "records/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms")
    table = number_table("scenario", *columns)
    cells = ("1,048,576", "500", "1,571,000", "169.0", "12.83", "449.89", "1449.95", "1450.0")
    table.add_row("append_many, 1024 callers", *cells)
    shown = "\n".join(lines(table))
    assert all(cell in shown for cell in cells)
    assert "…" not in shown


def test_no_word_of_a_condition_is_cut_off() -> None:
    text = "waiting for node two because nobody else could take over any replica of it"
    info = log("payments-europe", 4_294_973_628, state="sealed")
    [stream] = info.streams
    info = replace(info, streams=(replace(stream, condition=text),))
    shown = lines(status_view(replace(STATUS, logs=(info,), conditions=())))
    assert max(map(len, shown)) <= 80
    found = " ".join(shown).split()
    assert [word for word in text.split() if word not in found] == []
