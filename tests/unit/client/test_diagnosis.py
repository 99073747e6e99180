"""`loom doctor` draws conclusions from the status and from what servers say of themselves."""

from __future__ import annotations

import time

import pytest

from loomlog.client.diagnosis import Checked, Finding, answered, diagnose
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.info import cluster_status
from loomlog.wire.server_check import server_check, volume_check

GB = 1 << 30


def status() -> pb.Status:
    """A cluster of one metadata repository and a node with a log."""
    found = pb.Status(cluster_id="prod", leader=1)
    found.members.add(member_id=1, address="m:1", reachable=True)
    found.nodes.add(storage_node_id=1, address="n:1", alive=True)
    log = found.logs.add(log_id=1, name="events", protocol="ordered", replicas=1)
    log.segments.add(loglet_id=1, protocol="ordered", streams=1, replicas=1, start=1)
    stream = log.streams.add(log_stream_id=1, state=pb.RUNNING, loglet_id=1, protocol="ordered")
    stream.replicas.add(storage_node_id=1, address="n:1")
    return found


def answers() -> tuple[pb.ServerCheck, pb.ServerCheck]:
    """Return answers of a metadata repository and a node that are well."""
    vmr, vsn = server_check("prod"), server_check("prod", 1)
    vmr.store, vmr.store_read_s = "SQLite", 0.001
    for server in (vmr, vsn):
        server.open_files_max = 1 << 20
        server.volumes.append(volume_check("/data", 0.001, (50 * GB, 100 * GB), ""))
    return vmr, vsn


def found_by(
    status: pb.Status, vmr: pb.ServerCheck, vsn: pb.ServerCheck | str, took_s: float = 0.0
) -> list[Finding]:
    """Return what is not ok, without the limits of the machine that runs this test."""
    now_s = time.time()
    servers: dict[str, Checked] = {"m:1": answered(vmr, now_s - took_s, now_s)}
    servers["n:1"] = vsn if isinstance(vsn, str) else answered(vsn, now_s - took_s, now_s)
    found = diagnose(cluster_status(status), servers)
    assert found
    return [f for f in found if f.result != "ok" and f.subject != "this machine"]


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert found_by(status(), *answers()) == []


def test_servers_that_do_not_answer_or_are_others_are_problems() -> None:
    vmr, vsn = answers()
    (found,) = found_by(status(), vmr, "connection refused")
    assert (found.result, found.subject) == ("problem", "node 1")
    assert found.text == "cannot be reached at n:1: connection refused"
    vsn.storage_node_id = 7
    (found,) = found_by(status(), vmr, vsn)
    assert found.text == "at n:1 is node 7"
    vsn.cluster_id = "test"
    (found,) = found_by(status(), vmr, vsn)
    assert found.text == "at n:1 is a server of cluster 'test'"


@pytest.mark.parametrize(
    ("change", "check", "result", "words"),
    [
        ({"software": "9.9"}, "version", "warning", "runs 9.9, this client"),
        ({"clock_us": int((time.time() + 3600) * 1e6)}, "clock", "warning", "s ahead of"),
        ({"open_files_max": 256}, "open files", "warning", "may open 256 files"),
    ],
)
def test_servers_that_differ_are_named(
    change: dict[str, int | str], check: str, result: str, words: str
) -> None:
    vmr, vsn = answers()
    for field, value in change.items():
        setattr(vsn, field, value)
    (found,) = found_by(status(), vmr, vsn)
    assert (found.check, found.result, found.subject) == (check, result, "node 1")
    assert words in found.text
    assert found.help


def test_a_clock_is_not_wrong_because_an_answer_took_long() -> None:
    """Servers look at their clocks first, and may then wait, for example for etcd."""
    vmr, vsn = answers()
    for server in (vmr, vsn):
        server.clock_us = int((time.time() - 15) * 1e6)
    assert found_by(status(), vmr, vsn, took_s=15.5) == []
    found = found_by(status(), vmr, vsn, took_s=1.0)
    assert [each.check for each in found] == ["clock", "clock"]


@pytest.mark.parametrize(
    ("volume", "result", "words"),
    [
        (volume_check("/data", 0.2, (50, 100), ""), "warning", "a sync takes 200.0 ms"),
        (volume_check("/data", 0.001, (5, 100), ""), "warning", "5% of it is free"),
        (volume_check("/data", 0.0, (0, 0), "Input/output error"), "problem", "Input/output"),
    ],
)
def test_slow_full_and_broken_disks_are_named(
    volume: pb.VolumeCheck, result: str, words: str
) -> None:
    vmr, vsn = answers()
    vsn.volumes[0].CopyFrom(volume)
    (found,) = found_by(status(), vmr, vsn)
    assert (found.check, found.result, found.subject) == ("disk", result, "node 1, /data")
    assert words in found.text


def test_a_metadata_store_that_fails_or_is_slow_is_named() -> None:
    vmr, vsn = answers()
    vmr.store_read_s = 2.0
    (found,) = found_by(status(), vmr, vsn)
    assert (found.result, found.text) == ("warning", "reads from SQLite in 2000.0 ms")
    vmr.store_error = "no answer in time"
    (found,) = found_by(status(), vmr, vsn)
    assert found.result == "problem"


def test_records_that_do_not_agree_are_problems() -> None:
    wrong = status()
    wrong.logs[0].streams[0].replicas[0].storage_node_id = 9
    wrong.logs[0].segments.add(loglet_id=2, protocol="ordered", start=5)
    wrong.logs.add(log_id=2, name="empty", protocol="ordered")
    third = wrong.logs.add(log_id=3, name="bare", protocol="ordered")
    third.segments.add(loglet_id=3, protocol="ordered", start=1)
    third.streams.add(log_stream_id=3, state=pb.RUNNING, loglet_id=3)
    assert [found.text for found in found_by(wrong, *answers())] == [
        "segment 2 of log events has no stream",
        "stream 1 of log events names node 9, which does not exist",
        "log empty has no segment",
        "stream 3 of log bare has no replica",
    ]


def test_conditions_are_findings() -> None:
    ill = status()
    ill.conditions.add(kind="data-lost", severity="problem", text="is lost", log="events")
    ill.conditions.add(kind="repair", severity="work", text="copies", log="events")
    (found,) = found_by(ill, *answers())
    assert (found.result, found.check, found.subject) == ("problem", "data-lost", "log events")
