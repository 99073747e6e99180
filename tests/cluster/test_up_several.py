"""`loom up --metadata 3`: several metadata repositories and a local etcd on one machine, with TLS
and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_rig import Loom, Up, environment, loom_up, program
from http_rig import Http
from poll import wait_until

PATIENCE_S = 40.0  # never waited for in full, unless something is broken


def members(loom: Loom) -> dict[int, dict[str, Any]]:
    return {member["id"]: member for member in loom.json("metadata", "list")["members"]}


def leader(loom: Loom) -> int:
    return next(number for number, member in members(loom).items() if member["leads"])


def test_it_goes_on_without_its_leader_and_after_a_restart(tmp_path: Path) -> None:
    tls = str(tmp_path / "certs" / "operator-admin.pem")
    with loom_up(tmp_path, "--metadata", "3", "--nodes", "2", "--secure") as up:
        vmrs = ["vmr-1", "vmr-2", "vmr-3"]
        assert set(up.pids) == {"etcd-1", *vmrs, "vsn-1", "vsn-2"}
        assert len(up.mr.split(",")) == 3
        loom = Loom(up.mr, tls)
        loom.says("log", "create", "kept", "--replicas", "2")
        loom.says("append", "kept", given="one\ntwo\n")
        healthy = loom.json("doctor")["findings"]
        assert {each["result"] for each in healthy if each["check"] != "disk"} == {"ok"}
        stores = [each["text"] for each in healthy if each["check"] == "metadata store"]
        assert len(stores) == 3
        assert all("from etcd" in text for text in stores)
        first = leader(loom)
        os.kill(up.pids[f"vmr-{first}"], signal.SIGKILL)
        assert loom.json("append", "kept", given="three\n")["first"] == 3
        assert leader(loom) != first
        ended = loom.run("doctor", "--json")
        problems = [f for f in json.loads(ended.stdout)["findings"] if f["result"] == "problem"]
        assert (ended.returncode, len(problems)) == (1, 1)
        assert problems[0]["subject"] == f"metadata repository {first}"
        assert not members(loom)[first]["reachable"]
    with loom_up(tmp_path) as again:
        assert set(again.pids) == set(up.pids), "as many of each as the data has"
        assert again.mr == up.mr, "they know each other there"
        loom = Loom(again.mr, tls)
        assert loom.json("append", "kept", given="four\n")["first"] == 4
        assert loom.says("tail", "kept") == "one\ntwo\nthree\nfour\n"
        wait_until(lambda: all(member["reachable"] for member in members(loom).values()))
        _add_one_and_remove_one(again, loom, tmp_path)
    for pid in again.pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_console_and_etcd_are_started_again_too(tmp_path: Path) -> None:
    with loom_up(tmp_path, "--metadata", "2", "--nodes", "1", "--restart", "--console") as up:
        loom, http = Loom(up.mr), Http(up.console.rstrip("/"))
        for name in ("console", "etcd-1"):
            os.kill(up.pids[name], signal.SIGKILL)
        assert up.process.stderr is not None
        lines = iter(up.process.stderr.readline, "")
        started: set[str] = set()
        while not started >= {"console", "etcd-1"}:
            line = next(lines)
            if line.rstrip().endswith("is up"):
                started.add(line.split()[1])
        assert http.ask("GET", "/healthz").status == 200
        loom.says("log", "create", "made", "--replicas", "1")  # etcd stores it


def _add_one_and_remove_one(up: Up, loom: Loom, directory: Path) -> None:
    addresses = json.loads((directory / "metadata.json").read_text())
    peers = [f"{number}={address}" for number, address in enumerate(addresses["members"], 1)]
    certs = directory / "certs"
    loom.says("certs", "metadata", "4", "--host", "127.0.0.1", "--dir", str(certs))
    own = str(certs / "metadata-4.pem")
    command = program(
        *("vmr", "start", "--cluster-id", "local", "--data", str(directory / "vmr-4")),
        *("--listen", "127.0.0.1:0", "--http", "none", "--store", "etcd"),
        *("--etcd", addresses["etcd"], "--member-id", "4", "--tls", str(certs)),
        *("--etcd-ca", str(certs / "ca.pem"), "--etcd-cert", own, "--etcd-key", own),
        *("--peers", ",".join([*peers, "4=127.0.0.1:1"]), "--log-level", "error"),
    )
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as fourth:
        try:
            assert fourth.stdout is not None
            address = json.loads(fourth.stdout.readline())["address"]
            loom.says("metadata", "add", "4", address)
            wait_until(lambda: members(loom).get(4, {}).get("reachable", False))
            loom.says("metadata", "remove", "1", "--yes")
            wait_until(lambda: sorted(members(loom)) == [2, 3, 4])
            assert loom.json("append", "kept", given="five\n")["first"] == 5
            loom.says("metadata", "remove", "4", "--yes")
            wait_until(lambda: sorted(members(loom)) == [2, 3])
        finally:
            fourth.terminate()
            fourth.communicate(timeout=30)
    assert loom.json("append", "kept", given="six\n")["first"] == 6
