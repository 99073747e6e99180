"""Copyset logs by the command line, on a cluster of real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from cli_rig import Loom, Up, loom_up

LINES = [f"line {n}" for n in range(500)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    data = tmp_path_factory.mktemp("cluster")
    with loom_up(data, "--nodes", "5", "--heartbeat-timeout", "1", "--sync", "none") as running:
        yield running


@pytest.fixture
def loom(up: Up) -> Loom:
    return Loom(up.mr)


def copyset(loom: Loom, name: str) -> dict[str, Any]:
    streams = loom.json("log", "describe", name)["streams"]
    found: dict[str, Any] = next(s for s in streams if s["protocol"] == "copyset")
    return found


def test_a_log_is_made_used_and_shown(loom: Loom) -> None:
    said = loom.says(
        "log", "create", "a", "--protocol", "copyset", "--nodeset", "4", "--replicas", "2"
    )
    assert "on any of 4 nodes" in said
    loom.says("append", "a", given="\n".join(LINES))
    assert loom.says("tail", "a", "--from", "earliest").splitlines() == LINES
    shown = loom.says("log", "describe", "a")
    assert "recovered to" in shown
    stream = copyset(loom, "a")
    assert len(stream["copyset"]["history"][0]["nodeset"]) == 4
    assert f"node {stream['copyset']['sequencer']}" in shown
    assert loom.json("log", "describe", "a")["segments"][0]["nodeset"] == 4


def test_a_nodeset_that_cannot_be(loom: Loom) -> None:
    failed = loom.run("log", "create", "b", "--protocol", "copyset", "--nodeset", "9")
    assert failed.returncode == 1
    assert b"a nodeset of 9 needs as many nodes, and 5 are alive" in failed.stderr


def test_streams_are_refused(loom: Loom) -> None:
    failed = loom.run("log", "create", "b", "--protocol", "copyset", "--streams", "2")
    assert failed.returncode == 1
    assert b"has one stream: leave out how many" in failed.stderr


def test_a_log_goes_on_without_its_sequencer_and_is_switched(loom: Loom, up: Up) -> None:
    loom.says("log", "create", "c", "--protocol", "copyset", "--replicas", "3")
    loom.says("append", "c", given="\n".join(LINES))
    sequencer = copyset(loom, "c")["copyset"]["sequencer"]
    os.kill(up.pids[f"vsn-{sequencer}"], signal.SIGKILL)
    loom.says("append", "c", given="and on")
    assert loom.says("tail", "c", "--from", "1").splitlines() == [*LINES, "and on"]
    loom.says("log", "switch", "c", "--protocol", "ordered")
    loom.says("append", "c", given="and on")
    lines = [*LINES, "and on", "and on"]
    assert loom.says("tail", "c", "--from", "earliest").splitlines() == lines
    assert loom.says("tail", "c").splitlines() == lines[-10:]
    assert copyset(loom, "c")["copyset"]["closed"]
