"""`loom doctor` and `loom status` against real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_rig import Loom, Up, loom_up
from poll import wait_until


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with loom_up(tmp_path, "--nodes", "3", "--heartbeat-timeout", "1", "--sync", "none") as running:
        yield running


def findings(loom: Loom, code: int) -> dict[str, list[dict[str, Any]]]:
    """Return what the doctor found, by check."""
    ended = loom.run("doctor", "--json")
    assert ended.returncode == code, ended
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(ended.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return found


def test_the_doctor_finds_nothing_and_then_a_dead_node(up: Up) -> None:
    loom = Loom(up.mr)
    for protocol in ("ordered", "chained", "copyset"):
        loom.json("log", "create", protocol, "--protocol", protocol)
        loom.says("append", protocol, given="one\ntwo")
    wait_until(lambda: loom.json("status")["conditions"] == [])
    assert "healthy" in loom.says("status")
    found = findings(loom, 0)
    assert [finding["result"] for finding in found["address"]] == ["ok"] * 4
    assert all(finding["result"] == "ok" for finding in found["metadata"])
    assert len(found["disk"]) == 4, "of three nodes and the metadata repository"
    assert [finding["result"] for finding in found["conditions"]] == ["ok"]

    os.kill(up.pids["vsn-2"], signal.SIGKILL)
    found = findings(loom, 1)
    (unreached,) = (f for f in found["address"] if f["result"] == "problem")
    assert unreached["subject"] == "node 2"
    assert "start it" in unreached["help"]
    logs = {"ordered", "chained", "copyset"}
    wait_until(lambda: {condition["log"] for condition in under_replicated(loom)} == logs)
    assert "under-replicated" in findings(loom, 1)
    assert "have fewer copies than wanted" in loom.says("status")


def under_replicated(loom: Loom) -> list[dict[str, Any]]:
    conditions = loom.json("status")["conditions"]
    return [condition for condition in conditions if condition["kind"] == "under-replicated"]
