"""Rates, events and values as pages show them."""

from __future__ import annotations

from dataclasses import replace

from loomlog.console import view
from loomlog.console.latencies import counts, latencies
from loomlog.console.rates import Look, rates
from loomlog.console.timeline import changes
from loomlog.wire.info import (
    ClusterStatus,
    ConditionInfo,
    LogInfo,
    NodeInfo,
    ReplicaInfo,
    SegmentInfo,
    StreamInfo,
)

STREAM = StreamInfo(5, "running", 1, (ReplicaInfo(1, "a:1"), ReplicaInfo(2, "a:2")), 10, segment=3)
LOG = LogInfo(
    *(1, "orders", "ordered", 2, 1, 10, (STREAM,)),
    segments=(SegmentInfo(3, "ordered", 1, 2, 1, None),),
    reached=10,
)
NODE = NodeInfo(1, "a:1", True, 0.1, "always", 1, 1000)
STATUS = ClusterStatus("c", "a:0", 100.0, 50, (NODE, replace(NODE, id=2)), (LOG,), leader=1)


def test_rates_are_of_the_time_between_two_looks() -> None:
    later = replace(
        STATUS,
        rounds=70,
        logs=(replace(LOG, reached=30), replace(LOG, id=2, name="new", reached=5)),
        nodes=(replace(NODE, stored_bytes=5000), replace(NODE, id=2)),
    )
    found = rates(Look(100.0, STATUS, 0.0), Look(102.0, later, 0.004))
    assert (found.entries, found.rounds, found.stored_bytes) == (10.0, 10.0, 2000.0)
    assert (found.logs, found.metadata_ms) == ({"orders": 10.0}, 4.0)


def test_a_new_epoch_and_a_new_leader_are_no_rates() -> None:
    jumped = replace(STATUS, rounds=1, logs=(replace(LOG, reached=1 << 32),))
    found = rates(Look(100.0, STATUS, 0.0), Look(101.0, jumped, 0.0))
    assert (found.entries, found.rounds) == (0.0, 0.0)


PAGE = """# HELP loomlog_request_seconds Time.
loomlog_request_seconds_bucket{le="0.001",operation="append"} %d.0
loomlog_request_seconds_bucket{le="0.01",operation="append"} %d.0
loomlog_request_seconds_bucket{le="+Inf",operation="append"} %d.0
loomlog_request_seconds_bucket{le="+Inf",operation="get_status"} 7.0
loomlog_sync_seconds_bucket{le="+Inf"} 0.0
"""


def test_latencies_are_of_what_was_counted_between_two_looks() -> None:
    before, after = counts(PAGE % (100, 200, 200)), counts(PAGE % (150, 300, 300))
    found = latencies({"a": before, "b": after}, {"a": after, "b": before, "c": after}, 9.0)
    assert found.append is not None
    assert round(found.append, 3) == 9.82  # 49 of 50 between 1 and 10 ms
    assert found[2:] == (None, None, None)
    assert latencies({"a": after}, {"a": after}, 9.0).append is None


def texts(after: ClusterStatus) -> set[tuple[str, str, str]]:
    return {each[1:] for each in changes(STATUS, after, 7.0)}


def test_events_are_what_changed() -> None:
    assert texts(STATUS) == set()
    away = ConditionInfo("node-away", "warning", "it does not report", "start it", node=2)
    moved = replace(STREAM, epoch=2, replicas=STREAM.replicas[::-1])
    after = replace(
        STATUS,
        nodes=(NODE, replace(NODE, id=2, alive=False)),
        logs=(replace(LOG, streams=(moved,)), replace(LOG, id=9, name="b")),
        conditions=(away,),
    )
    assert texts(after) == {
        ("problem", "node 2", "is away"),
        ("info", "log orders", "stream 5 began epoch 2"),
        ("info", "log orders", "nodes of stream 5: 2, 1 (first: primary)"),
        ("good", "log b", "was created: ordered, 2 replicas"),
        ("warning", "node 2", "it does not report"),
    }
    back = {each[1:] for each in changes(after, STATUS, 8.0)}
    assert ("good", "node 2", "is back") in back
    assert ("good", "node 2", "node-away is over") in back
    assert ("info", "log b", "was deleted") in back


def test_values_are_shown_as_what_they_are() -> None:
    assert view.shown(b'{"a":1}') == ("json", '{\n  "a": 1\n}', 7, False)
    assert view.shown(b"<b>").text == "<b>"
    assert view.shown(b"{not json").kind == "text"
    assert view.shown(b"") == ("empty", "", 0, False)
    binary = view.shown(b"\xff\x00A")
    assert binary.kind == "binary"
    assert binary.text == f"000000  {'ff 00 41':<47}  ··A"
    assert view.shown(b"\x00" * 5000).cut
    assert view.summary(b"a\nb" + b"x" * 500, 10) == "a·bxxxxxx…"
    assert view.summary(b"\xff\x00" * 500, 10) == "ff 00 ff …"


def test_health_is_one_sentence_with_what_helps() -> None:
    assert view.health(STATUS).title == "Healthy"
    wrong = ConditionInfo("node-away", "problem", "it is away", "start it", node=2)
    health = view.health(replace(STATUS, conditions=(wrong,)))
    assert health == ("problem", "Problem", "Node 2: it is away.", "Start it")
    assert view.with_code("use `a <b>` & c") == "use <code>a &lt;b&gt;</code> &amp; c"
