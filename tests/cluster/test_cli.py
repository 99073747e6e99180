"""The command line against a cluster of real processes that `loom up` runs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_rig import Loom, Up, loom_up, program


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with loom_up(tmp_path_factory.mktemp("cluster"), "--nodes", "3", "--locations", "2") as running:
        yield running


@pytest.fixture
def loom(up: Up) -> Loom:
    return Loom(up.mr)


def test_up_says_where_everything_is(up: Up) -> None:
    assert set(up.pids) == {"vmr-1", "vsn-1", "vsn-2", "vsn-3"}
    with urllib.request.urlopen(f"http://{up.http}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://{up.http}/status", timeout=10) as answer:
        nodes = json.load(answer)["nodes"]
    places = {node["id"]: node["location"] for node in nodes}
    assert places == {1: "rack=1", 2: "rack=2", 3: "rack=1"}
    with urllib.request.urlopen(f"http://{up.http}/metrics", timeout=10) as answer:
        assert b"# TYPE" in answer.read()


def test_lines_come_back_in_order(loom: Loom) -> None:
    loom.says("log", "create", "lines", "--streams", "2")
    lines = [f"line {n}" for n in range(3000)]
    done = loom.json("append", "lines", given="\n".join(lines))
    assert done == {"log": "lines", "count": 3000, "first": 1, "last": 3000}
    assert loom.says("tail", "lines", "--from", "earliest").splitlines() == lines
    assert loom.says("tail", "lines").splitlines() == lines[-10:]
    assert loom.says("tail", "lines", "--from", "2999").splitlines() == lines[2998:]
    assert loom.says("tail", "lines", "-n", "2").splitlines() == lines[-2:]
    assert loom.says("tail", "lines", "-n", "0") == ""
    assert loom.says("tail", "lines", "--since", "1h", "-n", "2").splitlines() == lines[:2]
    assert loom.says("tail", "lines", "--from", "2999-01-01") == ""
    behind = loom.run("tail", "lines", "--from", "9999")
    assert (behind.returncode, behind.stdout) == (0, b"")
    assert behind.stderr == b"lines ends at 3000: there is nothing from 9999 on\n"


def test_gaps_are_told_where_they_are_asked_for(loom: Loom) -> None:
    loom.says("log", "create", "gappy", "--protocol", "copyset", "--replicas", "2")
    loom.says("append", "gappy", given="a\nb\n")
    assert loom.says("tail", "gappy").splitlines() == ["a", "b"]
    first = (1 << 32) + 1
    lines = loom.says("tail", "gappy", "--from", "1", "--gaps", "--json").splitlines()
    gap, *entries = map(json.loads, lines)
    assert gap == {"gap": "bridge", "first": 1, "last": first - 1}
    assert [entry["position"] for entry in entries] == [first, first + 1]
    told = loom.run("tail", "gappy", "--from", "1", "--gaps", "--max", "1")
    assert told.stdout == b"a\n"
    assert told.stderr.decode() == f"positions 1 to {first - 1:,} have no entry: bridge\n"


def test_a_log_is_switched_and_shows_its_segments(loom: Loom) -> None:
    loom.says("log", "create", "changing")
    loom.says("append", "changing", given="a\nb\n")
    assert "3 streams, 3 replicas from position 3 on" in loom.says(
        "log", "switch", "changing", "--streams", "3"
    )
    assert "already" in loom.says("log", "switch", "changing", "--streams", "3")
    loom.says("append", "changing", given="c\n")
    assert loom.says("tail", "changing").splitlines() == ["a", "b", "c"]
    segments = loom.json("log", "describe", "changing")["segments"]
    assert [(s["streams"], s["start"], s["end"]) for s in segments] == [(1, 1, 2), (3, 3, None)]
    assert "active" in loom.says("log", "describe", "changing")


def test_text_output_says_how_many_and_where(loom: Loom) -> None:
    loom.says("log", "create", "few")
    assert loom.says("append", "few", given="a\nb\n") == (
        "appended 2 entries at positions 1 to 2\n"
    )
    assert loom.says("tail", "few", "--positions") == "1\ta\n2\tb\n"
    assert "no lines" in loom.says("append", "few")
    assert loom.says("append", "few", "-", given="c\n") == "appended 1 entry at position 3\n"
    assert "no log 'missing'" in loom.fails("append", "missing")
    assert loom.says("tail", "few", "--from", "earliest", "--max", "1") == "a\n"
    assert loom.says("tail", "few", "--from", "latest") == ""


def test_closed_descriptors_and_names_that_are_not_utf_8(loom: Loom) -> None:
    loom.says("log", "create", "closed")
    command = shlex.join(program("loom", "append", "closed", "--cluster", loom.cluster))
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(f"{command} {closed}", shell=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, closed
    refused = loom.run("tail", b"\xff".decode(errors="surrogateescape"))
    assert refused.returncode == 1
    assert refused.stderr == b"loom: a log's name must be valid UTF-8, not '\\udcff'\n"


def test_keys_and_bytes_that_are_not_text(loom: Loom) -> None:
    loom.says("log", "create", "keyed")
    loom.says("append", "keyed", "--key-separator", "=", given=b"user-1=hi\nuser-2=\xff\x01\n")
    assert loom.says("tail", "keyed") == "user-1\thi\nuser-2\t\\xff\\x01\n"
    assert loom.run("tail", "keyed", "--raw").stdout == b"user-1\thi\nuser-2\t\xff\x01\n"
    template = r"{position}: {key}\t{value}"
    shown = loom.run("tail", "keyed", "--format", template, "--raw").stdout
    assert shown == b"1: user-1\thi\n2: user-2\t\xff\x01\n"
    refused = loom.run("tail", "keyed", "--format", "{offset}")
    assert (refused.returncode, b"{position}, {time}" in refused.stderr) == (2, True)
    entries = [json.loads(line) for line in loom.says("tail", "keyed", "--json").splitlines()]
    assert [entry["key"] for entry in entries] == ["user-1", "user-2"]
    assert [entry["position"] for entry in entries] == [1, 2]
    assert entries[1]["value_base64"] == "/wE="


def test_what_tail_prints_as_json_is_a_file_to_append(loom: Loom, tmp_path: Path) -> None:
    loom.says("log", "create", "source")
    loom.says("log", "create", "target")
    loom.says("append", "source", "--key-separator", "=", given=b"a=1\nb=\xff\n")
    entries = loom.says("tail", "source", "--json")
    (tmp_path / "entries").write_text(entries)
    done = loom.json("append", "target", str(tmp_path / "entries"), "--format", "json")
    assert done["count"] == 2
    fields = ("key", "value", "value_base64", "timestamp")
    shown = [
        [json.loads(line).get(name) for name in fields]
        for line in [*entries.splitlines(), *loom.says("tail", "target", "--json").splitlines()]
    ]
    assert shown[:2] == shown[2:]
    refused = loom.run("append", "target", str(tmp_path / "no such file"))
    assert (refused.returncode, b"no such file" in refused.stderr) == (2, True)


def test_lines_behind_an_expected_tail_only(loom: Loom) -> None:
    loom.says("log", "create", "expected")
    append = ("append", "expected", "--batch", "1", "--expected-tail")
    assert loom.json(*append, "0", given="a\nb\n")["last"] == 2
    assert "nothing was appended" in loom.fails(*append, "1", given="c\n")
    assert loom.json(*append, "2", given="c\n")["last"] == 3


def test_a_line_without_a_key_fails_and_says_what_went_before(loom: Loom) -> None:
    loom.says("log", "create", "half-keyed")
    arguments = ("append", "half-keyed", "--key-separator", "=", "--batch", "1")
    error = loom.fails(*arguments, given="a=1\nnothing\n")
    assert "line 2 has no key" in error
    assert "appended 1 entry" in error


def test_a_log_from_creation_to_deletion(loom: Loom) -> None:
    made = loom.json("log", "create", "life", "--streams", "2", "--replicas", "2")
    assert (made["name"], len(made["streams"]), made["replicas"]) == ("life", 2, 2)
    assert "life" in {info["name"] for info in loom.json("log", "list")}
    loom.says("append", "life", given="a\nb\nc\n")
    assert loom.json("log", "trim", "life", "1") == {"log": "life", "head": 2}
    assert loom.json("log", "trim", "life", "2", "--yes") == {"log": "life", "head": 3}
    assert loom.says("tail", "life") == "c\n"
    assert loom.json("log", "describe", "life")["tail"] == 3
    assert "running" in loom.says("log", "describe", "life")
    assert loom.json("log", "delete", "life", "--yes") == {"deleted": "life"}
    assert "life" in loom.fails("log", "describe", "life")


def test_status_shows_nodes_logs_and_streams(loom: Loom) -> None:
    loom.says("log", "create", "shown")
    shown = loom.says("status")
    assert "3 of 3 nodes alive" in shown
    assert "shown" in shown
    status = loom.json("status")
    assert [node["sync_mode"] for node in status["nodes"]] == ["always"] * 3


def test_what_cannot_be_done_is_said_in_one_line(loom: Loom) -> None:
    assert "nowhere" in loom.fails("tail", "nowhere")
    assert "nowhere" in loom.fails("append", "nowhere", given="x\n")
    loom.says("log", "create", "twice")
    assert "twice" in loom.fails("log", "create", "twice")
    loom.fails("log", "create", "too-wide", "--replicas", "9")
    loom.fails("log", "create", "odd", "--protocol", "telepathy")


def test_without_a_cluster_the_error_says_how_to_get_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    error = Loom(free).fails("status")
    assert f"cannot reach {free}" in error
    assert "loom up" in error


def test_follow_shows_new_entries_and_ctrl_c_is_quiet(loom: Loom) -> None:
    loom.says("log", "create", "followed")
    loom.says("append", "followed", given="before\n")
    following = subprocess.Popen(
        program("loom", "tail", "followed", "--follow", "--cluster", loom.cluster),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with following:
        assert following.stdout is not None
        assert following.stdout.readline() == "before\n"
        loom.says("append", "followed", given="after\n")
        assert following.stdout.readline() == "after\n"
        following.send_signal(signal.SIGINT)
        assert following.communicate(timeout=30) == ("", "")
        assert following.returncode == 130


def test_a_reader_that_goes_away_is_quiet(loom: Loom) -> None:
    loom.says("log", "create", "piped")
    loom.says("append", "piped", given="x" * 99 + "\n" + ("y" * 99 + "\n") * 20_000)
    command = ("loom", "tail", "piped", "--from", "earliest", "--cluster", loom.cluster)
    tail = " ".join(program(*command))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{tail} | head -n 1"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "x" * 99 + "\n"


def test_a_child_that_dies_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    with loom_up(tmp_path, "--nodes", "2") as running:
        os.kill(running.pids["vsn-2"], signal.SIGKILL)
        assert running.process.stderr is not None
        assert "vsn-2" in running.process.stderr.readline()
        loom = Loom(running.mr)
        loom.says("log", "list")
    assert running.process.returncode == 0


def test_data_is_there_after_a_restart(tmp_path: Path) -> None:
    with loom_up(tmp_path, "--nodes", "1") as running:
        loom = Loom(running.mr)
        loom.says("log", "create", "kept", "--replicas", "1")
        loom.says("append", "kept", given="one\ntwo\n")
    with loom_up(tmp_path) as running:
        assert set(running.pids) == {"vmr-1", "vsn-1"}, "as many nodes as the data has"
        loom = Loom(running.mr)
        assert loom.says("tail", "kept") == "one\ntwo\n"
        assert loom.json("append", "kept", given="three\n")["first"] == 3


def test_nothing_is_left_running(tmp_path: Path) -> None:
    with loom_up(tmp_path, "--nodes", "1") as running:
        pass
    assert running.process.returncode == 0
    for pid in running.pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = program("loom", "up", "--port", port, "--data", str(tmp_path))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert port in done.stderr


def server_error(*command: str) -> str:
    done = subprocess.run(program(*command), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == "", "not ready"
    return done.stderr.splitlines()[-1]


def vsn_start(volume: Path, mr: str, number: int = 9) -> list[str]:
    return [
        *("vsn", "start", "--cluster-id", "local", "--storage-node-id", str(number)),
        *("--volumes", str(volume), "--mr", mr, "--listen", "127.0.0.1:0"),
    ]


def test_a_node_refuses_a_volume_that_it_cannot_use(up: Up, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert str(missing) in server_error(*vsn_start(missing, up.mr))
    a_file = tmp_path / "file"
    a_file.touch()
    assert str(a_file) in server_error(*vsn_start(a_file, up.mr))


def test_a_node_refuses_data_that_is_there_when_told_to(tmp_path: Path) -> None:
    with loom_up(tmp_path, "--nodes", "1") as running:
        mr = running.mr
    error = server_error(*vsn_start(tmp_path / "vsn-1", mr, 1), "--error-if-exists")
    assert str(tmp_path / "vsn-1") in error


def test_a_node_of_another_cluster_is_refused(up: Up, tmp_path: Path) -> None:
    """A mismatch of identities says what was expected and what was found."""
    with loom_up(tmp_path, "--nodes", "1"):
        pass
    error = server_error(*vsn_start(tmp_path / "vsn-1", up.mr, 1))
    assert "vsn: " in error
