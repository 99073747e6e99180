"""Metrics of servers that run, and what is made of them: the dashboard and the alerts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_rig import Up, loom_up
from scrape import scrape, values

import loomlog
from loomlog.errors import NotFound
from loomlog.spark.pipelines.store import encode, register_name
from loomlog.spark.pipelines.units import Counters, Progress

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROTOCOLS = ("ordered", "chained", "copyset")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster in which something has happened to logs of all protocols."""
    data = tmp_path_factory.mktemp("cluster")
    with loom_up(data, "--nodes", "1", "--restart", "--console") as running:
        with loomlog.connect_sync(running.mr) as cluster:
            for protocol in PROTOCOLS:
                log = cluster.create_log(protocol, protocol, replicas=1)
                last = log.append_many([b"a", b"b", b"c"])[-1]
                assert [entry.value for entry in log.subscribe(stop=last.position)][-1] == b"c"
            cluster.log("ordered").checkpoint("billing").set(1)
            progress = Progress({}, {"ordered": 1}, counters=Counters(units=1, records=1_234_567))
            cluster.register(register_name("counts")).swap(encode(progress), 0)
            with pytest.raises(NotFound):
                cluster.log("nothing").tail()
        yield running


@pytest.fixture(scope="module")
def pages(up: Up) -> dict[str, str]:
    console = up.console.removeprefix("http://").rstrip("/")
    return {name: scrape(at) for name, at in {**up.metrics, "console": console}.items()}


def test_a_node_counts_what_each_log_gets_and_gives(pages: dict[str, str]) -> None:
    node = values(pages["vsn-1"])
    for log in PROTOCOLS:
        assert node[f'loomlog_append_records_total{{log="{log}"}}'] == 3
        assert node[f'loomlog_append_requests_total{{log="{log}"}}'] >= 1
        assert node[f'loomlog_append_bytes_total{{log="{log}"}}'] > 100
        assert node[f'loomlog_read_bytes_total{{log="{log}"}}'] > 100
    for operation in ("append", "chain_write", "copyset_append"):
        times = f'loomlog_request_seconds_%s{{operation="{operation}"}}'
        assert node[times % "count"] >= 1
        assert 0 < node[times % "sum"] < 60
    assert node["loomlog_sync_seconds_count"] > 0
    assert node["loomlog_registered"] == 1
    assert node['loomlog_connections{role="client"}'] >= 0
    assert any(name.startswith("loomlog_disk_free_bytes{") for name in node)


def test_the_leader_counts_rounds_errors_and_where_readers_are(pages: dict[str, str]) -> None:
    vmr = values(pages["vmr-1"])
    assert vmr["loomlog_metadata_leads"] == 1
    assert vmr["loomlog_round_seconds_count"] == vmr["loomlog_rounds_total"] >= 1
    assert vmr['loomlog_request_errors_total{error="NotFound"}'] >= 1
    assert vmr['loomlog_reader_position{log="ordered",reader="billing"}'] == 1
    assert vmr['loomlog_reader_lag{log="ordered",reader="billing"}'] == 2
    assert vmr['loomlog_stream_lag_entries{log="ordered",stream="1"}'] == 0
    assert vmr['loomlog_connections{role="vsn"}'] == 1
    assert vmr["process_resident_memory_bytes"] > 1e6


def test_a_console_says_how_far_pipelines_are_when_it_is_asked(
    up: Up, pages: dict[str, str]
) -> None:
    found = values(pages["console"])
    assert found['loomlog_pipeline_lag_records{pipeline="counts"}'] == 2
    assert found['loomlog_pipeline_records_total{pipeline="counts"}'] == 1_234_567
    assert found['loomlog_pipeline_running{pipeline="counts"}'] == 0
    assert found["process_resident_memory_bytes"] > 0
    with loomlog.connect_sync(up.mr) as cluster:
        cluster.log("ordered").append(b"d")
    later = values(scrape(up.console.removeprefix("http://").rstrip("/")))
    assert later['loomlog_pipeline_lag_records{pipeline="counts"}'] == 3


def test_every_metric_has_a_help_text_and_a_type(pages: dict[str, str]) -> None:
    for page in pages.values():
        named = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if line[0] != "#"}
        helped = set(re.findall(r"^# HELP (\S+) \S", page, re.MULTILINE))
        assert helped == typed(page)
        for name in named:
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert {name, family} & helped, name


def typed(page: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+) ", page, re.MULTILINE))


@pytest.mark.parametrize(
    "name",
    [
        "deploy/prometheus/alerts.yml",
        "deploy/prometheus/alerts_test.yml",
        "deploy/grafana/loomlog.json",
        "docs/metrics.md",
    ],
)
def test_files_for_operators_name_metrics_that_exist(name: str, pages: dict[str, str]) -> None:
    known = set().union(*map(typed, pages.values()))
    found = set(re.findall(r"\b(?:loomlog|process)_[a-z_]+", (ROOT / name).read_text()))
    assert len(found) >= 3
    named = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in found} - {"process_"}
    assert named <= known
    if name.startswith("docs/"):
        assert {metric for metric in known if metric.startswith("loomlog_")} <= named


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "loomlog.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    assert all(panel["targets"] for panel in panels if panel["type"] != "row")


def test_promtool_finds_nothing_wrong(pages: dict[str, str]) -> None:
    beside = Path(sys.executable).with_name("promtool")
    promtool = str(beside) if beside.exists() else shutil.which("promtool")
    if promtool is None:
        pytest.skip("`make promtool` installs promtool on Debian")
    alerts = DEPLOY / "prometheus"
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")):
        done = subprocess.run(
            [promtool, *arguments], cwd=alerts, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    for page in pages.values():
        done = subprocess.run(
            [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("server", ["vmr-1", "vsn-1"])
def test_a_server_that_takes_part_is_healthy_and_ready(up: Up, server: str) -> None:
    for path in ("/healthz", "/readyz"):
        with urllib.request.urlopen(f"http://{up.metrics[server]}{path}", timeout=10) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{up.metrics[server]}/nothing", timeout=10)


@pytest.mark.parametrize("server", ["vsn-1", "vmr-1"])
def test_a_server_that_dies_is_started_again_at_its_address(up: Up, server: str) -> None:
    before = values(scrape(up.metrics[server]))["process_start_time_seconds"]
    os.kill(up.pids[server], signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            ready = f"http://{up.metrics[server]}/readyz"
            with urllib.request.urlopen(ready, timeout=10):
                now = values(scrape(up.metrics[server]))["process_start_time_seconds"]
            if now > before:
                break
        except OSError:  # refused, or not ready
            time.sleep(0.05)
    with loomlog.connect_sync(up.mr) as cluster:
        assert cluster.log("ordered").append(b"more").position > 3
