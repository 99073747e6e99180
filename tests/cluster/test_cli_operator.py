"""Commands of operators, on a cluster of real processes, while a log is in use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_rig import Loom, Up, loom_up, program
from poll import wait_until

WAIT = ("--wait", "--timeout", "40")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def up(data: Path) -> Iterator[Up]:
    """Run four nodes: a log has three replicas, so there is a spare."""
    with loom_up(data, "--nodes", "4", "--heartbeat-timeout", "1", "--sync", "none") as running:
        yield running


@pytest.fixture
def loom(up: Up) -> Loom:
    return Loom(up.mr)


LINES = [f"line {n}" for n in range(2000)]


def make_log(loom: Loom, name: str, streams: int = 1) -> dict[str, Any]:
    """Make a log with entries and return its only (or first) stream."""
    made = loom.json("log", "create", name, "--streams", str(streams))
    loom.says("append", name, given="\n".join(LINES))
    stream: dict[str, Any] = made["streams"][0]
    return stream


def streams_of(loom: Loom, name: str) -> list[dict[str, Any]]:
    streams: list[dict[str, Any]] = loom.json("stream", "list", "--log", name)
    return streams


def stream_of(loom: Loom, name: str) -> dict[str, Any]:
    return streams_of(loom, name)[0]


def nodes_of(stream: dict[str, Any]) -> list[int]:
    return [replica["node"] for replica in stream["replicas"]]


def node(loom: Loom, number: int) -> dict[str, Any]:
    found = {node["id"]: node for node in loom.json("node", "list")}
    info: dict[str, Any] = found[number]
    return info


def is_whole(loom: Loom, name: str, lines: list[str] = LINES) -> bool:
    return loom.says("tail", name, "--from", "earliest").splitlines() == lines


def watch_until(loom: Loom, seen: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Follow the status as a program does, until it shows that."""
    command = program("loom", "status", "--watch", "0.1", "--json", "--cluster", loom.cluster)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            for line in watching.stdout:
                status: dict[str, Any] = json.loads(line)
                if seen(status):
                    return status
        finally:
            watching.kill()
    raise AssertionError("the status ended")


def test_a_stream_is_sealed_read_and_unsealed(loom: Loom) -> None:
    stream = make_log(loom, "sealed")
    number = str(stream["id"])
    assert "sealed" in loom.says("stream", "seal", number, *WAIT)
    sealed = stream_of(loom, "sealed")
    assert (sealed["state"], sealed["condition"]) == ("sealed", "sealed by an operator")
    assert is_whole(loom, "sealed")
    loom.says("stream", "unseal", number, *WAIT)
    assert stream_of(loom, "sealed")["state"] == "running"
    loom.says("append", "sealed", given="after\n")
    assert is_whole(loom, "sealed", [*LINES, "after"])


def test_a_log_gets_another_stream(loom: Loom) -> None:
    make_log(loom, "wider")
    added = loom.json("stream", "add", "wider", *WAIT)
    streams = loom.json("stream", "list", "--log", "wider")
    assert [stream["id"] for stream in streams][1] == added["stream"]
    assert all(stream["state"] == "running" for stream in streams)
    more = [f"more {n}" for n in range(500)]
    loom.says("append", "wider", "--batch", "10", given="\n".join(more))
    assert is_whole(loom, "wider", LINES + more)
    assert all(s["entries"] for s in loom.json("stream", "list", "--log", "wider"))


@pytest.mark.parametrize(
    ("protocol", "role"),
    [("ordered", "primary"), ("chained", "head"), ("copyset", "sequencer")],
)
def test_operators_choose_where_appends_go_first(loom: Loom, protocol: str, role: str) -> None:
    name = f"led-{protocol}"
    loom.says("log", "create", name, "--protocol", protocol)
    loom.says("append", name, given="\n".join(LINES))
    number = str(stream_of(loom, name)["id"])

    def leaders() -> list[int]:
        replicas = loom.json("stream", "describe", number)["replicas"]
        return [replica["node"] for replica in replicas if role in replica["role"]]

    before = leaders()
    node = next(node for node in nodes_of(stream_of(loom, name)) if node not in before)
    loom.says("stream", "primary", number, "--node", str(node), *WAIT)
    assert leaders() == [node] != before
    assert "already" in loom.json("stream", "primary", number, "--node", str(node))["done"]
    loom.says("append", name, given="after\n")
    assert is_whole(loom, name, [*LINES, "after"])


def test_a_stream_is_removed(loom: Loom) -> None:
    loom.says("log", "create", "narrower", "--streams", "2")
    loom.says("append", "narrower", given="\n".join(LINES))
    fuller, other = sorted(streams_of(loom, "narrower"), key=lambda s: s["entries"], reverse=True)
    removed = loom.json("stream", "remove", str(fuller["id"]), "--yes")
    assert removed["done"] == f"stream {fuller['id']} takes no more appends"
    [condition] = [s["condition"] for s in streams_of(loom, "narrower") if s["id"] == fuller["id"]]
    assert "trimmed" in condition
    loom.fails("stream", "remove", str(other["id"]), "--yes")
    loom.says("log", "trim", "narrower", str(len(LINES)), "--yes")
    watch_until(loom, lambda _: [s["id"] for s in streams_of(loom, "narrower")] == [other["id"]])


def test_a_replica_moves(loom: Loom) -> None:
    before = nodes_of(make_log(loom, "moved"))
    (spare,) = {1, 2, 3, 4} - set(before)
    number = str(stream_of(loom, "moved")["id"])
    loom.says("stream", "move", number, "--from", str(before[0]), "--to", str(spare), *WAIT)
    after = stream_of(loom, "moved")
    assert set(nodes_of(after)) == {*before[1:], spare}
    assert (after["state"], after["joining"]) == ("running", None)
    loom.says("append", "moved", given="after\n")
    assert is_whole(loom, "moved", [*LINES, "after"])


def test_the_primary_and_the_nodes_of_a_stream_are_chosen_by_hand(loom: Loom, data: Path) -> None:
    stream = make_log(loom, "by-hand")
    number, nodes = str(stream["id"]), nodes_of(stream)
    loom.says("stream", "primary", number, "--node", str(nodes[2]), *WAIT)
    assert nodes_of(stream_of(loom, "by-hand")) == [nodes[2], nodes[0], nodes[1]]
    loom.says("append", "by-hand", given="after\n")
    added = loom.json("stream", "add", "by-hand", "--nodes", "4,2,1", *WAIT)
    streams = loom.json("stream", "list", "--log", "by-hand")
    assert [nodes_of(s) for s in streams if s["id"] == added["stream"]] == [[4, 2, 1]]
    between = ("--from", str(nodes[0]), "--to", str(nodes[1]))
    assert "already" in loom.says("stream", "sync", number, *between, *WAIT)

    def have_all() -> bool:  # nodes report it
        states = [(r["lag"], r["state"], r["written"]) for r in describe()["replicas"]]
        return states == [(0, "running", len(LINES) + 1)] * 3

    describe = partial(loom.json, "stream", "describe", number)
    wait_until(have_all)
    described = describe()
    assert (described["log"], described["stream"]["state"]) == ("by-hand", "running")
    for replica in described["replicas"]:
        assert replica["alive"]
        assert Path(replica["path"]).name == f"lsid={number}"
        assert replica["volume"] == str(data / f"vsn-{replica['node']}")
        assert replica["total_bytes"] > replica["free_bytes"] > 0
    assert [r["role"] for r in described["replicas"]] == ["primary", "backup", "backup"]
    assert "primary" in loom.says("stream", "describe", number)
    assert is_whole(loom, "by-hand", [*LINES, "after"])
    assert "there is no stream 999" in loom.fails("stream", "describe", "999")


@pytest.mark.parametrize(("protocol", "directory"), [("chained", "chains"), ("copyset", "logs")])
def test_streams_of_other_protocols_are_described(
    loom: Loom, protocol: str, directory: str
) -> None:
    made = loom.json("log", "create", f"shown-{protocol}", "--protocol", protocol)
    loom.says("append", f"shown-{protocol}", given="a\nb\n")
    described = loom.json("stream", "describe", str(made["streams"][0]["id"]))
    paths = [Path(replica["path"]).name for replica in described["replicas"] if replica["path"]]
    assert len(paths) >= 3
    assert set(paths) == {directory}
    role = {"chained": "chain 0: head", "copyset": "sequencer"}[protocol]
    assert any(role in replica["role"] for replica in described["replicas"])


def test_a_replica_leaves_and_comes_again(loom: Loom) -> None:
    """Unregistering leaves the data; the same stream is refused until it is deleted."""
    stream = make_log(loom, "thinner")
    number, leaver = str(stream["id"]), str(nodes_of(stream)[-1])
    loom.says("stream", "unregister", number, "--node", leaver, "--yes")
    watch_until(loom, lambda _: len(stream_of(loom, "thinner")["replicas"]) == 2)
    loom.says("append", "thinner", given="between\n")
    again = ("stream", "add-replica", number, "--node", leaver)
    assert "cleanup" in loom.fails(*again)
    wait_until(lambda: stream["id"] in node(loom, int(leaver))["unknown_streams"])
    assert f"stream {number}" in loom.says("node", "cleanup", leaver, "--yes")
    loom.says(*again, *WAIT)
    assert sorted(nodes_of(stream_of(loom, "thinner"))) == sorted(nodes_of(stream))
    assert is_whole(loom, "thinner", [*LINES, "between"])


def test_a_flipped_byte_is_found_and_repaired(loom: Loom, data: Path) -> None:
    stream = make_log(loom, "scrubbed")
    holder = nodes_of(stream)[1]
    flip_byte_of_data(data / f"vsn-{holder}", stream["id"])
    found = loom.json("stream", "scrub", str(stream["id"]), *WAIT)
    by_node = {scrub["node"]: scrub for scrub in found["scrubs"]}
    assert all(scrub["finished"] for scrub in found["scrubs"])
    assert [by_node[n]["corrupt_batches"] > 0 for n in nodes_of(stream)] == [False, True, False]
    assert by_node[holder]["repaired_batches"] == by_node[holder]["corrupt_batches"]
    again = loom.json("stream", "scrub", str(stream["id"]), *WAIT)
    assert not any(scrub["corrupt_batches"] for scrub in again["scrubs"])
    assert is_whole(loom, "scrubbed")


def flip_byte_of_data(node_directory: Path, stream: int) -> None:
    """Flip a byte of the first value that is found on the disk."""
    for path in sorted(node_directory.glob(f"**/lsid={stream}/**/*")):
        content = path.read_bytes() if path.is_file() else b""
        at = content.find(b"line 7line 8")
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"LINE")
            return
    raise AssertionError(f"no data of stream {stream} below {node_directory}")


def test_a_node_is_drained_used_again_drained_and_removed(loom: Loom, up: Up) -> None:
    stream = make_log(loom, "drained", streams=2)
    number = nodes_of(stream)[0]
    drain = ("node", "drain", str(number), *WAIT)
    loom.says(*drain)
    drained = node(loom, number)
    assert (drained["draining"], drained["replicas"]) == (True, 0)
    assert is_whole(loom, "drained")
    assert "alive" in loom.fails("log", "create", "too-wide", "--replicas", "5")
    loom.says("node", "undrain", str(number))
    assert not node(loom, number)["draining"]
    loom.says(*drain)
    loom.says("node", "remove", str(number), "--yes")
    assert number not in {node["id"] for node in loom.json("node", "list")}
    loom.says("append", "drained", given="after\n")
    assert is_whole(loom, "drained", [*LINES, "after"])


# ---- a node dies; each of these needs a cluster of its own


@contextmanager
def started_again(data: Path, mr: str, number: int) -> Iterator[None]:
    """Start a node on the data that it had."""
    command = program(
        *("vsn", "start", "--cluster-id", "local", "--storage-node-id", str(number)),
        *("--volumes", str(data / f"vsn-{number}"), "--mr", mr, "--listen", "127.0.0.1:0"),
    )
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            yield
        finally:
            process.terminate()
            process.wait(30)


def replaced(name: str, dead: int) -> Callable[[dict[str, Any]], bool]:
    def seen(status: dict[str, Any]) -> bool:
        (log,) = (log for log in status["logs"] if log["name"] == name)
        return all(
            stream["state"] == "running" and dead not in nodes_of(stream)
            for stream in log["streams"]
        )

    return seen


def test_a_dead_node_is_replaced_and_comes_back_as_a_spare(tmp_path: Path) -> None:
    """Detect, seal, choose a spare, synchronise, unseal; a zombie does no harm."""
    arguments = ("--nodes", "4", "--heartbeat-timeout", "1", "--sync", "none")
    with loom_up(tmp_path, *arguments) as up:
        loom = Loom(up.mr)
        stream = make_log(loom, "events")
        dead = nodes_of(stream)[0]
        # The timeline looks once a second: wait until it has seen one state before the next.
        events_until(loom, "log events", "was created: ordered, 3 replicas")
        os.kill(up.pids[f"vsn-{dead}"], signal.SIGKILL)
        watch_until(loom, replaced("events", dead))
        events_until(loom, "log events", f"stream {stream['id']} began epoch {stream['epoch'] + 1}")
        assert not node(loom, dead)["alive"]
        loom.says("append", "events", given="after\n")
        assert is_whole(loom, "events", [*LINES, "after"])
        with started_again(tmp_path, up.mr, dead):
            wait_until(lambda: node(loom, dead)["unknown_streams"] == [stream["id"]])
            assert node(loom, dead)["alive"]
            events_until(loom, f"node {dead}", "is back")
            assert is_whole(loom, "events", [*LINES, "after"])
            loom.says("node", "cleanup", str(dead), "--yes")
            wait_until(lambda: node(loom, dead)["unknown_streams"] == [])
            assert not list(tmp_path.glob(f"vsn-{dead}/**/lsid={stream['id']}"))
        loom.says("node", "remove", str(dead), "--yes")
        assert dead not in {node["id"] for node in loom.json("node", "list")}
        events = events_until(loom, f"node {dead}", "was removed")
        texts = {(event["subject"], event["text"]) for event in events}
        assert {
            ("log events", "was created: ordered, 3 replicas"),
            (f"node {dead}", "is away"),
            ("log events", f"stream {stream['id']} began epoch {stream['epoch'] + 1}"),
            (f"node {dead}", "is back"),
        } <= texts
        done = [event for event in events if event["severity"] == "action"]
        assert {event["subject"] for event in done} == {"client at 127.0.0.1"}
        actions = [event["text"] for event in done]
        assert actions == ["log create events", f"node cleanup {dead}", f"node remove {dead}"]
        assert [event["text"] for event in events].count("is back") == 1
        assert f"node {dead}: was removed\n" in loom.says("events")


def events_until(loom: Loom, subject: str, text: str) -> list[dict[str, Any]]:
    """Follow the events as a program does, until there is this one."""
    command = program("loom", "events", "--since", "1h", "-f", "--json", "--cluster", loom.cluster)
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            for line in following.stdout:
                found.append(json.loads(line))
                if (found[-1]["subject"], found[-1]["text"]) == (subject, text):
                    return found
        finally:
            following.terminate()
    raise AssertionError(f"no {text!r}")


def test_without_a_spare_it_stays_readable_and_the_status_says_why(tmp_path: Path) -> None:
    arguments = ("--nodes", "3", "--heartbeat-timeout", "1", "--sync", "none")
    with loom_up(tmp_path, *arguments) as up:
        loom = Loom(up.mr)
        dead = nodes_of(make_log(loom, "events"))[-1]
        os.kill(up.pids[f"vsn-{dead}"], signal.SIGKILL)

        def told(status: dict[str, Any]) -> bool:
            stream = status["logs"][0]["streams"][0]
            return stream["state"] == "sealed" and "no spare" in stream["condition"]

        watch_until(loom, told)
        assert is_whole(loom, "events")
        assert "no spare" in loom.says("status")
        with started_again(tmp_path, up.mr, dead):
            watch_until(loom, lambda status: status["logs"][0]["streams"][0]["state"] == "running")
            loom.says("append", "events", given="after\n")
            assert is_whole(loom, "events", [*LINES, "after"])
