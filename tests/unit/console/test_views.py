"""Rates and values as pages show them."""

from __future__ import annotations

from dataclasses import replace

from loomlog.client.operator_results import ReplicaDescription
from loomlog.console import view
from loomlog.console.entries import shown_headers
from loomlog.console.latencies import Counts, Latencies, counts, growth, latencies, operations
from loomlog.console.rates import Look, rates
from loomlog.types import Entry
from loomlog.wire.conditions import ConditionInfo
from loomlog.wire.info import (
    ClusterStatus,
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
        nodes=(replace(NODE, stored_bytes=5000), replace(NODE, id=2), replace(NODE, id=3)),
    )
    found = rates(Look(100.0, STATUS, 0.0), Look(102.0, later, 0.004))
    assert (found.entries, found.rounds, found.stored_bytes) == (10.0, 10.0, 2000.0)
    assert (found.logs, found.metadata_ms) == ({"orders": 10.0}, 4.0)
    assert found.nodes == {1: 2000.0, 2: 0.0}


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
loomlog_read_bytes_total{log="a"} 10.0
loomlog_read_bytes_total{log="b"} %d.0
"""


def between(before: dict[str, Counts], after: dict[str, Counts]) -> Latencies:
    return latencies(growth(before, after), 9.0)


def test_latencies_are_of_what_was_counted_between_two_looks() -> None:
    before, after = counts(PAGE % (100, 200, 200, 0)), counts(PAGE % (150, 300, 300, 600))
    found = between({"a": before, "b": after}, {"a": after, "b": before, "c": after})
    assert found.append is not None
    assert round(found.append, 3) == 9.82  # 49 of 50 between 1 and 10 ms
    assert found[2:] == (None, None, None)
    assert between({"a": after}, {"a": after}).append is None


def test_operations_are_counted_in_a_second() -> None:
    before, after = counts(PAGE % (100, 200, 200, 0)), counts(PAGE % (150, 300, 300, 600))
    found = operations(growth({"a": before, "b": before}, {"a": after}), 9.0, 2.0)
    assert found == (9.0, 50.0, 0.0, 0.0, 0.0, 300.0)
    assert operations(growth({"a": after}, {"a": before}), 9.0, 2.0)[1:] == (None,) * 5
    assert operations(growth({}, {"a": after}), 9.0, 2.0)[1:] == (None,) * 5


def test_what_needs_attention_is_shown_first_and_then_what_is_busy() -> None:
    nodes = [replace(NODE, id=n, alive=n != 7) for n in range(1, 9)]
    assert [node.id for node in view.first_nodes(nodes, 3)] == [7, 1, 2]
    sealed = replace(STREAM, state="sealed")
    logs = [replace(LOG, id=n, name=f"log-{n}") for n in range(9)]
    logs[8] = replace(logs[8], streams=(sealed,))
    rates = {"log-5": 2.0, "log-3": 1.0, "log-0": 0.5}
    assert [log.name for log in view.first_logs(logs, rates, 3)] == ["log-8", "log-3", "log-5"]


def test_the_lag_of_a_stream_is_that_of_its_slowest_replica() -> None:
    replica = ReplicaDescription(1, True, "primary", "running", *(None,) * 10)
    known = replace(replica, node=2, lag=5)
    assert view.lag([replica, known, replace(known, node=3, lag=3)]) == (5, 2)
    assert view.lag([replica]) is None


def test_headers_are_printable() -> None:
    headers = {"raw": b"\xff\x00", "trace": "é\n".encode()}
    entry = Entry(1, 1, 1, 0, None, b"", headers)
    assert shown_headers(entry) == {"raw": "\\xff\\x00", "trace": "é\\n"}


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
    others = [ConditionInfo("w", "warning", "waits", log="a", stream=n) for n in range(9)]
    health = view.health(replace(STATUS, conditions=(wrong, *others)))
    assert health.sentence == "Node 2: it is away. And 1 more condition, below."
    assert view.with_code("use `a <b>` & c") == "use <code>a &lt;b&gt;</code> &amp; c"


def test_durations_have_two_parts_at_most() -> None:
    shown = {5: "5 s", 93.5: "1 m 33 s", 7200: "2 h", 604_800: "7 d", 90_061: "1 d 1 h"}
    assert {seconds: view.duration(seconds) for seconds in shown} == shown


def test_settings_are_shown_as_users_write_them() -> None:
    durations = {None: "", 90: "90s", 5400: "90m", 604_800: "7d"}
    assert {seconds: view.as_duration(seconds) for seconds in durations} == durations
    sizes = {None: "", 1000: "1000", 1 << 30: "1G", 3 << 19: "1536K"}
    assert {count: view.as_size(count) for count in sizes} == sizes


def test_the_slowest_shards_are_shown_with_the_names_of_their_owners() -> None:
    places = ((0, "0.1", 9), (1, "", 3), (2, "1.1", 5))
    shards = [{"number": n, "owner": owner, "position": at} for n, owner, at in places]
    group = {"members": [{"id": "0.1", "name": "ann"}, {"id": "1.1", "name": "bob"}]}
    shown = view.slowest_shards({**group, "shards": shards}, 2)
    assert [(shard["number"], shard["owner_name"]) for shard in shown] == [(1, ""), (2, "bob")]
