"""`loom bench` works and its JSON has the shape that programs rely on. No speed is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loomlog.cli.bench import steadiness

TINY = ("--seconds", "0.2", "--sizes", "128", "--batch", "1,50", "--concurrency", "16")
SCENARIOS = {
    "append, one at a time",
    "append, 16 callers",
    "append_many, 16 callers",
    "read, one at a time",
    "subscribe",
    "subscribe_arrow",
    "append to subscriber",
}

FIELDS = {
    *("scenario", "record_bytes", "batch", "records", "seconds"),
    *("records_per_s", "mb_per_s", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"),
    *("over_time", "cpu_percent"),
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return loom_bench(*TINY, *arguments)


def private(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Measure something else, on a private cluster."""
    return loom_bench(kind, "--seconds", "0.2", *arguments)


def loom_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loomlog.cli.loom", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_a_private_cluster_is_measured_and_gone(tmp_path: Path) -> None:
    done = bench("--up", "3", "--streams", "2", "--sync", "none", "--data", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    cluster = report["cluster"]
    assert (cluster["nodes"], cluster["sync"], cluster["protocol"]) == (3, "none", "ordered")
    assert (cluster["streams"], cluster["replicas"]) == (2, 3)
    assert {result["scenario"] for result in report["results"]} == SCENARIOS
    for result in report["results"]:
        assert result["record_bytes"] == 128
        assert set(result) == FIELDS
    # Reading ends with the log, not with a window: on a stalled machine, too, there is something.
    read = {r["scenario"]: r["records"] for r in report["results"] if "subscribe" in r["scenario"]}
    assert read["subscribe"] > 0
    assert read["subscribe_arrow"] > 0
    assert report["machine"]["fdatasync_ms"] > 0
    servers = {"vmr-1", "vsn-1", "vsn-2", "vsn-3"}
    assert set(report["idle"]["rss_mb"]) == set(report["rss_after_mb"]) == servers
    assert list(tmp_path.iterdir()) == []


def test_for_people_it_is_a_table_with_the_facts_beside_it(tmp_path: Path) -> None:
    protocols = ("--protocol", "chained", "--against", "ordered")
    done = bench("--up", "1", "--replicas", "1", *protocols, "--data", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for word in (
        "chained",
        "sync=always",
        "1 replicas",
        "cores",
        "fdatasync",
        "records/s",
        "p99",
        "ratio",
        "idle:",
    ):
        assert word in done.stdout


def test_options_of_a_command_belong_behind_it() -> None:
    done = bench("append")
    assert done.returncode == 2
    assert "loom bench append …" in done.stderr


LONG = pytest.mark.long  # much the same as the others


@pytest.mark.parametrize(
    "kind",
    ["read", "mixed", pytest.param("append", marks=LONG), pytest.param("subscribe", marks=LONG)],
)
def test_a_command_measures_only_its_part_and_saves_it(tmp_path: Path, kind: str) -> None:
    saved, page = tmp_path / "saved.json", tmp_path / "report.html"
    done = loom_bench(
        *(kind, *TINY, "--up", "1", "--replicas", "1", "--sync", "none"),
        *("--save", str(saved), "--report", str(page)),
    )
    assert done.returncode == 0, done.stderr
    assert "CPU, % of a core: client" in done.stdout
    report = json.loads(saved.read_text())
    assert report["results"]
    for result in report["results"]:
        assert kind in result["scenario"]
        assert set(result["cpu_percent"]) == {"client", "vmr-1", "vsn-1"}
        rates = [rate for rate, _ in result["over_time"]]
        assert result["records_per_s"] == pytest.approx(sum(rates) / len(rates), rel=0.01, abs=1)
        if result["p50_ms"] is not None:  # a latency, not what another writer's bytes spell
            assert 0 < result["p50_ms"] <= result["max_ms"] < 100_000
    text = page.read_text()
    assert text.count("<h2>") == len(report["results"])
    assert "<script" not in text
    assert "http" not in text, "nothing is loaded from elsewhere"
    compared = loom_bench("compare", str(saved), str(saved), "--json")
    lines = json.loads(compared.stdout)["lines"]
    assert {line["ratio"] for line in lines} == {1.0}


def test_only_reports_of_appends_and_reads_are_compared(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("{}")
    done = loom_bench("compare", str(report), str(report))
    assert done.returncode == 1
    assert "is not a report of appends and reads" in done.stderr


def test_the_start_of_a_node_on_its_data_is_measured(tmp_path: Path) -> None:
    done = private("start", "0.02", "--sync", "none", "--data", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    starts = json.loads(done.stdout)["starts"]
    assert [start["before"] for start in starts] == [
        "a clean stop, empty",
        "a clean stop",
        "kill -9",
    ]
    assert [round(start["stored_mb"]) for start in starts] == [0, 20, 20]
    assert all(0 < start["ready_s"] <= start["serving_s"] for start in starts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", ["chained", "copyset"])
def test_the_start_of_a_node_on_many_small_blocks_is_measured(
    tmp_path: Path, protocol: str
) -> None:
    options = ("--protocol", protocol, "--small", "--sync", "none", "--data", str(tmp_path))
    done = private("start", "0.001", *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["protocol"], found["blocks"]) == (protocol, 977)
    assert all(0 < start["ready_s"] <= start["serving_s"] for start in found["starts"])


def test_a_disk_that_is_too_small_is_said_before_it_is_filled(tmp_path: Path) -> None:
    done = private("start", "1000000000", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "free space" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_node_costs_is_measured(tmp_path: Path) -> None:
    arguments = ("failover", "--fill-megabytes", "2", "--sync", "none", "--data", str(tmp_path))
    done = private(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [kill["streams_hit"] for kill in report["kills"]] == [1, 2]
    for kill in report["kills"]:
        assert kill["failed_appends"] == 0
        assert kill["repaired_s"] > 0
        # So little data may be copied between two looks at the status; test_failover.py has more.
        assert all(copy["mb_per_s"] > 0 for copy in kill["copies"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long  # the same measurement as of a killed node, above
def test_what_a_killed_link_of_a_chain_costs_is_measured(tmp_path: Path) -> None:
    arguments = ("failover", "--protocol", "chained", "--fill-megabytes", "2")
    done = private(*arguments, "--data", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)["kills"]
    assert [kill["scenario"] for kill in kills] == ["the head", "the middle", "the tail"]
    for kill in kills:
        assert kill["failed_appends"] == 0
        assert 0 < kill["sealed_s"] <= kill["repaired_s"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long  # the same measurement as of a killed node, above
def test_what_a_killed_sequencer_costs_is_measured(tmp_path: Path) -> None:
    arguments = ("failover", "--protocol", "copyset", "--fill-megabytes", "2")
    done = private(*arguments, "--data", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)["kills"]
    assert [kill["scenario"] for kill in kills] == ["the sequencer", "another node"]
    for kill in kills:
        assert kill["failed_appends"] == 0
        assert kill["copies"] == []
        assert 0 < kill["sealed_s"] <= kill["repaired_s"]
    assert list(tmp_path.iterdir()) == []


def test_the_pause_of_a_switch_is_measured(tmp_path: Path) -> None:
    arguments = ("switch", "--entries", "2000", "--sync", "none", "--data", str(tmp_path))
    done = private(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    switches = json.loads(done.stdout)["switches"]
    assert [(switch["protocol"], switch["wanted"]) for switch in switches] == [
        ("ordered", "chained"),
        ("chained", "chained"),
        ("chained", "ordered"),
        ("ordered", "ordered"),
        ("ordered", "copyset"),
        ("copyset", "copyset"),
        ("copyset", "chained"),
        ("chained", "copyset"),
        ("copyset", "ordered"),
    ]
    for switch in switches:
        assert switch["failed_appends"] == 0
        assert 2000 <= switch["entries"] < 1_000_000
        assert switch["pause_s"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", ["ordered", "copyset"])
def test_many_logs_are_measured(tmp_path: Path, protocol: str) -> None:
    arguments = ("many-logs", "20", "--protocol", protocol, "--up", "3", "--data", str(tmp_path))
    done = private(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["protocol"], report["logs"], report["nodes"]) == (protocol, 20, 3)
    assert (report["appends"], report["failed"]) == (20, 0)
    assert 0 < report["p50_ms"] <= report["p99_ms"] <= report["longest_ms"]
    assert 0 < report["disk_mb"] < 5 + 20 * 3 * 0.5, "a small log takes little space"
    assert list(tmp_path.iterdir()) == []


def test_a_protocol_is_measured_against_another_in_one_run(tmp_path: Path) -> None:
    protocols = ("--protocol", "copyset", "--against", "ordered")
    done = bench("--up", "3", *protocols, "--data", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["cluster"]["protocol"] == "copyset"
    ours, others = report["results"], report["against"]
    assert {line["scenario"] for line in ours} == SCENARIOS
    assert [line["scenario"] for line in ours] == [line["scenario"] for line in others]
    for one, other, ratio in zip(ours, others, report["ratios"], strict=True):
        rates = one["records_per_s"], other["records_per_s"]
        assert ratio == pytest.approx(rates[0] / (rates[1] or 1), abs=0.002, rel=0.01)
    assert list(tmp_path.iterdir()) == []


def test_several_metadata_repositories_are_compared_with_one(tmp_path: Path) -> None:
    done = private("takeover", "--round-streams", "50", "--data", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report["one_at_a_time"]) == list(report["concurrent"]) == ["1", "3"]
    assert [lost["how"] for lost in report["takeovers"]] == ["kill -9", "SIGSTOP"]
    assert all(lost["stall_s"] > 0 for lost in report["takeovers"])
    assert report["rounds"]["streams"] == 50
    assert report["rounds"]["rounds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_with_tls_is_compared_with_one_without(tmp_path: Path) -> None:
    few = ("--batch", "1", "--seconds", "0.1")
    done = bench(
        "--up", "1", "--replicas", "1", "--secure", *few, "--data", str(tmp_path), "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["results"]) == len(report["against"]) == len(report["ratios"]) > 0
    assert bench("--secure").returncode == 2


def test_steadiness_is_measured(tmp_path: Path) -> None:
    done = private("steady", "--protocol", "copyset", "--data", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["appends_per_s"] > 0
    assert report["failed"] == 0
    assert 0 < report["p50_ms"] <= report["p999_ms"] <= report["longest_ms"] * 1.02
    assert len(report["periods"]) == steadiness.PERIODS
    assert set(report["periods"][-1]["rss_mb"]) == {"client", "vmr-1", "vsn-1", "vsn-2", "vsn-3"}
