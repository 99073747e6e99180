"""`loom node …`, `loom stream …` and `loom status` against a scripted metadata repository."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from scripted_vmr import ScriptedVmr

from loomlog.cli.console import changes, failures
from loomlog.cli.loom import app
from loomlog.errors import InvalidArgument
from loomlog.wire import loomlog_pb2 as pb

Stream, Node = pb.ChangeStream, pb.ChangeNode


@pytest.fixture
def vmr() -> Iterator[ScriptedVmr]:
    with ScriptedVmr() as scripted:
        yield scripted


class Loom:
    """The command line in this process, pointed at the scripted repository."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        sys.argv[1:] = arguments
        with pytest.raises(SystemExit) as end:
            failures.main(app, "loom")
        said = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, said.out, said.err

    def says(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, "")
        return out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.says(*arguments, "--json"))


@pytest.fixture
def loom(
    vmr: ScriptedVmr, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Loom:
    monkeypatch.setenv("LOOM_CLUSTER", vmr.address)
    monkeypatch.setattr(sys, "argv", ["loom"])
    monkeypatch.setattr(changes, "LOOK_EVERY_S", 0)
    return Loom(capsys)


# ---- what is asked of the metadata repository


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["stream", "seal", "7"], Stream(action=Stream.SEAL, log_stream_id=7)),
        (["stream", "unseal", "7"], Stream(action=Stream.UNSEAL, log_stream_id=7)),
        (["stream", "add", "events"], Stream(action=Stream.ADD, log="events")),
        (
            ["stream", "move", "7", "--from", "1"],
            Stream(action=Stream.MOVE, log_stream_id=7, from_node=1),
        ),
        (
            ["stream", "move", "7", "--from", "1", "--to", "3"],
            Stream(action=Stream.MOVE, log_stream_id=7, from_node=1, to_node=3),
        ),
        (
            ["stream", "move", "7", "--from", "1", "--part", "2"],
            Stream(action=Stream.MOVE, log_stream_id=7, from_node=1, part=2),
        ),
        (
            ["stream", "unregister", "7", "--node", "2", "--yes"],
            Stream(action=Stream.UNREGISTER, log_stream_id=7, from_node=2),
        ),
        (
            ["stream", "add-replica", "7", "--node", "3"],
            Stream(action=Stream.ADD_REPLICA, log_stream_id=7, to_node=3),
        ),
        (
            ["stream", "add", "events", "--nodes", "1,2"],
            Stream(action=Stream.ADD, log="events", nodes=[1, 2]),
        ),
        (
            ["stream", "primary", "7", "--node", "2"],
            Stream(action=Stream.PRIMARY, log_stream_id=7, to_node=2),
        ),
        (
            ["stream", "sync", "7", "--from", "1", "--to", "2"],
            Stream(action=Stream.SYNC, log_stream_id=7, from_node=1, to_node=2),
        ),
        (
            ["stream", "sync", "7", "--from", "1", "--to", "2", "--part", "3"],
            Stream(action=Stream.SYNC, log_stream_id=7, from_node=1, to_node=2, part=3),
        ),
        (
            ["stream", "primary", "7", "--any"],
            Stream(action=Stream.PRIMARY, log_stream_id=7),
        ),
        (
            ["stream", "remove", "7", "--nodes", "4,5", "--yes"],
            Stream(action=Stream.REMOVE, log_stream_id=7, nodes=[4, 5]),
        ),
        (
            ["stream", "remove", "7", "--part", "0", "--yes"],
            Stream(action=Stream.REMOVE, log_stream_id=7, part=0),
        ),
        (["stream", "remove", "7", "--yes"], Stream(action=Stream.REMOVE, log_stream_id=7)),
        (["stream", "scrub", "7"], Stream(action=Stream.SCRUB, log_stream_id=7)),
        (["log", "scrub", "events"], Stream(action=Stream.SCRUB, log="events")),
        (["node", "drain", "2", "--yes"], Node(action=Node.DRAIN, storage_node_id=2)),
        (["node", "undrain", "2"], Node(action=Node.UNDRAIN, storage_node_id=2)),
        (
            ["node", "drain", "2", "--volume", "/srv/a/"],
            Node(action=Node.DRAIN, storage_node_id=2, volume="/srv/a"),
        ),
        (
            ["node", "undrain", "2", "--volume", "/srv/a"],
            Node(action=Node.UNDRAIN, storage_node_id=2, volume="/srv/a"),
        ),
        (["node", "remove", "2", "--yes"], Node(action=Node.REMOVE, storage_node_id=2)),
        (
            ["node", "remove", "2", "--force", "--yes"],
            Node(action=Node.REMOVE, storage_node_id=2, force=True),
        ),
        (["node", "cleanup", "2", "--yes"], Node(action=Node.CLEANUP, storage_node_id=2)),
        (["node", "replace", "2", "--yes"], Node(action=Node.REPLACE, storage_node_id=2)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_each_command_says_what_it_did_and_what_happens_next(
    vmr: ScriptedVmr, loom: Loom, arguments: list[str], asked: pb.ChangeStream | pb.ChangeNode
) -> None:
    assert loom.says(*arguments) == "it is done\nnext: it goes on\n"
    assert vmr.changes == [asked]
    answer = loom.json(*arguments)
    assert answer["done"] == "it is done"
    assert answer["next"] == "it goes on"


def test_nodes_that_are_not_numbers_are_refused(vmr: ScriptedVmr, loom: Loom) -> None:
    code, _, err = loom.run("stream", "add", "events", "--nodes", "1,b")
    assert (code, vmr.changes) == (2, [])
    assert "'1,b' does not name nodes" in err


def test_what_is_refused_is_one_line_and_exit_code_1(vmr: ScriptedVmr, loom: Loom) -> None:
    vmr.error = InvalidArgument("it is the last replica of stream 7")
    code, out, err = loom.run("stream", "unregister", "7", "--node", "1", "--yes")
    assert (code, out, err) == (1, "", "loom: it is the last replica of stream 7\n")


def test_who_is_not_there_is_said_with_where_to_look(vmr: ScriptedVmr, loom: Loom) -> None:
    code, _, err = loom.run("node", "drain", "9", "--yes")
    assert (code, err) == (1, "loom: there is no node 9: `loom node list` shows them\n")
    code, _, err = loom.run("stream", "move", "9", "--from", "1")
    assert (code, err) == (1, "loom: there is no stream 9: `loom stream list` shows them\n")
    assert vmr.changes == []


# ---- asking first


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["log", "delete", "events"], "Delete events and all its entries?"),
        (["node", "remove", "2"], "Forget node 2, which is alive and holds 1 replicas?"),
        (["node", "cleanup", "2"], "Delete the data of stream 5, 6 on node 2 permanently?"),
        (["node", "drain", "2"], "Drain it anyway?"),
        (["node", "replace", "2"], "Let a node with empty volumes take the number 2?"),
        (["stream", "unregister", "7", "--node", "2"], "Remove the replica on node 2 from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_where_nobody_can_be_asked_dangerous_commands_want_yes(
    vmr: ScriptedVmr, loom: Loom, arguments: list[str], about: str
) -> None:
    vmr.status.nodes[1].unknown_streams.extend([5, 6])
    code, out, err = loom.run(*arguments)
    assert (code, out) == (2, "")
    assert about in err
    assert "--yes" in err
    assert err.count("\n") == 1
    assert vmr.changes == []


def test_a_drain_that_can_finish_and_a_cleanup_of_nothing_need_no_answer(
    vmr: ScriptedVmr, loom: Loom
) -> None:
    vmr.add_node(3)
    loom.says("node", "drain", "2")
    loom.says("node", "cleanup", "2")
    assert len(vmr.changes) == 2


def test_who_replaces_a_node_is_told_which_streams_are_only_there(
    vmr: ScriptedVmr, loom: Loom
) -> None:
    vmr.put_on(2)
    _, _, err = loom.run("node", "replace", "2")
    assert "It has the only replica of stream 7, which is lost." in err


def test_a_drain_of_a_node_under_several_chains_counts_the_replicas_of_each(
    vmr: ScriptedVmr, loom: Loom
) -> None:
    vmr.add_node(3)
    vmr.put_on(1, 2, 3)  # two chains of two
    vmr.stream.protocol, vmr.stream.loglet_id = "chained", 4
    vmr.status.logs[0].segments.add(loglet_id=4, protocol="chained", streams=2, replicas=2)
    loom.says("node", "drain", "2")
    assert len(vmr.changes) == 1


@pytest.mark.parametrize(("answer", "code", "changes"), [("y", 0, 1), ("n", 1, 0), ("", 1, 0)])
def test_on_a_terminal_it_asks(vmr: ScriptedVmr, answer: str, code: int, changes: int) -> None:
    done = run_on_a_terminal(vmr, answer, "node", "remove", "2")
    assert done.returncode == code
    assert "Forget node 2" in done.stderr
    assert ("nothing was done" in done.stderr) == (not changes)
    assert len(vmr.changes) == changes


def test_a_trim_asks_on_a_terminal(vmr: ScriptedVmr) -> None:
    """Without a terminal it does not ask, so that scripts can trim."""
    done = run_on_a_terminal(vmr, "n", "log", "trim", "events", "7")
    assert done.returncode == 1
    assert "Delete all entries of events up to and including position 7?" in done.stderr
    assert "nothing was done" in done.stderr


def run_on_a_terminal(
    vmr: ScriptedVmr, answer: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, f"{answer}\n".encode())
        return subprocess.run(
            [sys.executable, "-m", "loomlog.cli.loom", *arguments],
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "LOOM_CLUSTER": vmr.address},
        )
    finally:
        os.close(keyboard)
        os.close(terminal)


# ---- waiting


def test_drain_waits_until_the_node_is_empty(vmr: ScriptedVmr, loom: Loom) -> None:
    vmr.add_node(3)
    vmr.then(lambda: setattr(vmr.stream, "joining_node", 3))
    vmr.then(lambda: setattr(vmr.stream, "copied_entries", 500))
    vmr.then(lambda: vmr.put_on(1, 3))
    *begun, finished, last = loom.says("node", "drain", "2", "--wait").splitlines()
    assert begun == ["it is done", "next: it goes on"]
    assert re.fullmatch(r"finished after \d\.\d s", finished)
    assert last == "node 2 is empty: stop its vsn, then run `loom node remove 2`"
    assert not vmr.steps


def test_a_move_is_finished_when_the_stream_runs_again(vmr: ScriptedVmr, loom: Loom) -> None:
    def swapped() -> None:
        vmr.put_on(2, 3)
        vmr.stream.joining_node = 0

    vmr.then(lambda: setattr(vmr.stream, "joining_node", 3))
    vmr.then(lambda: setattr(vmr.stream, "state", pb.STREAM_SEALED))
    vmr.then(swapped)
    vmr.then(lambda: setattr(vmr.stream, "state", pb.RUNNING))
    answer = loom.json("stream", "move", "7", "--from", "1", "--wait")
    assert answer["waited_s"] >= 0
    assert not vmr.steps


def test_a_move_of_a_sealed_stream_does_not_wait_for_it_to_run(
    vmr: ScriptedVmr, loom: Loom
) -> None:
    vmr.stream.state = pb.STREAM_SEALED
    vmr.then(lambda: vmr.put_on(2, 3))
    loom.says("stream", "move", "7", "--from", "1", "--wait")


def test_seal_unseal_and_add_wait_for_the_state(vmr: ScriptedVmr, loom: Loom) -> None:
    vmr.then(lambda: setattr(vmr.stream, "state", pb.SEALING))
    vmr.then(lambda: setattr(vmr.stream, "state", pb.STREAM_SEALED))
    loom.says("stream", "seal", "7", "--wait")
    vmr.then(lambda: None)  # asked to unseal
    vmr.then(lambda: setattr(vmr.stream, "state", pb.RUNNING))
    loom.says("stream", "unseal", "7", "--wait")
    vmr.answer.log_stream_id = 8
    vmr.then(lambda: None)  # asked to add

    def added() -> None:
        vmr.status.logs[0].streams.add(
            log_stream_id=8, loglet_id=1, protocol="ordered", state=pb.SEALING
        )

    vmr.then(added)
    vmr.then(lambda: setattr(vmr.status.logs[0].streams[1], "state", pb.RUNNING))
    assert loom.json("stream", "add", "events", "--wait")["stream"] == 8
    assert not vmr.steps


def test_nobody_waits_for_the_first_append_to_a_copyset_log(vmr: ScriptedVmr, loom: Loom) -> None:
    vmr.stream.protocol = "copyset"
    vmr.stream.copyset.SetInParent()  # no node sequences it yet
    loom.says("stream", "primary", "7", "--node", "2", "--wait", "--timeout", "1")


def test_a_sync_is_asked_for_again_until_it_is_finished(vmr: ScriptedVmr, loom: Loom) -> None:
    vmr.answer.finished = False
    vmr.then(lambda: None)
    vmr.then(lambda: setattr(vmr.answer, "finished", True))
    loom.says("stream", "sync", "7", "--from", "1", "--to", "2", "--wait")
    assert len(vmr.changes) == 3
    assert not vmr.steps


def test_a_primary_is_a_node_or_any(vmr: ScriptedVmr, loom: Loom) -> None:
    for arguments in ([], ["--node", "2", "--any"]):
        code, _, err = loom.run("stream", "primary", "7", *arguments)
        assert code == 2
        assert "give either --node NODE or --any" in err
    assert vmr.changes == []


def test_a_replica_is_added_when_it_is_whole(vmr: ScriptedVmr, loom: Loom) -> None:
    vmr.then(lambda: setattr(vmr.stream, "joining_node", 3))
    vmr.then(lambda: setattr(vmr.stream, "joining_node", 0))
    vmr.then(lambda: vmr.put_on(1, 2, 3))
    loom.says("stream", "add-replica", "7", "--wait")
    assert not vmr.steps


def test_waiting_may_end_before_and_says_how_far_it_is(vmr: ScriptedVmr, loom: Loom) -> None:
    vmr.stream.condition = "no spare node for another replica"
    code, out, err = loom.run("node", "drain", "2", "--yes", "--wait", "--timeout", "0")
    assert code == 1
    assert out.startswith("it is done\n")
    assert "still under way" in err
    assert "1 replicas left on node 2: no spare node" in err


# ---- scrub


def scrubs(vmr: ScriptedVmr, *, finished: bool, corrupt: int = 0, repaired: int = 0) -> None:
    del vmr.answer.scrubs[:]
    for number in (1, 2):
        progress = pb.ScrubResponse(
            finished=finished,
            stored_bytes=4096,
            checked_bytes=2048,
            corrupt_batches=corrupt,
            repaired_batches=repaired,
        )
        vmr.answer.scrubs.add(storage_node_id=number, progress=progress)


def test_a_scrub_is_begun_once_and_followed_to_its_end(vmr: ScriptedVmr, loom: Loom) -> None:
    scrubs(vmr, finished=False)
    vmr.then(lambda: None)
    vmr.then(lambda: scrubs(vmr, finished=True, corrupt=2, repaired=2))
    shown = loom.says("stream", "scrub", "7", "--wait")
    assert "2.0 KiB" in shown
    assert "whole" in shown
    assert [change.tell_only for change in vmr.changes] == [False, True, True]


def test_what_no_replica_could_repair_is_a_failure(vmr: ScriptedVmr, loom: Loom) -> None:
    scrubs(vmr, finished=True, corrupt=2, repaired=1)
    code, out, err = loom.run("stream", "scrub", "7", "--wait", "--json")
    assert code == 1
    assert json.loads(out)["scrubs"][0]["corrupt_batches"] == 2
    assert "1 batches of stream 7 stay corrupt or missing on node 1" in err


# ---- looking


def test_lists_and_status_show_conditions_and_copies(vmr: ScriptedVmr, loom: Loom) -> None:
    vmr.status.nodes[0].draining = True
    vmr.status.nodes[1].alive = False
    vmr.status.nodes[1].unknown_streams.extend([5, 6])
    vmr.status.conditions.add(
        kind="volume-failed", severity="problem", text="its [disk] burns", storage_node_id=2
    )
    vmr.stream.condition = "node 2 is [lost]"
    vmr.stream.joining_node = 3
    vmr.stream.copied_entries = 250
    shown = loom.says("status")
    for word in ("draining", "dead", "5, 6", "node 2 is [lost] (25 %)", "its [disk] burns"):
        assert word in shown
    assert "node 2: its [disk] burns" in loom.says("node", "list")
    assert "draining" in loom.says("node", "list")
    vmr.stream.condition = ""
    assert "node 3 joins (25 %)" in loom.says("stream", "list")
    node = loom.json("node", "list")[1]
    assert (node["alive"], node["unknown_streams"]) == (False, [5, 6])
    assert node["conditions"] == ["its [disk] burns"]
    vmr.status.nodes[1].held_back = "the metadata went back in time"
    assert "nodes alive and 1 held back," in loom.says("status")
    assert "held back" in loom.says("node", "list")
    assert loom.json("node", "list")[1]["held_back"] == "the metadata went back in time"
    stream = loom.json("stream", "list", "--log", "events")[0]
    assert (stream["log"], stream["id"], stream["joining"]) == ("events", 7, 3)


def test_a_staging_log_is_shown_as_what_it_is(vmr: ScriptedVmr, loom: Loom) -> None:
    log = vmr.status.logs.add(
        log_id=2, name="events.staged", protocol="ordered", replicas=2, head=1
    )
    log.segments.add(loglet_id=2, protocol="ordered", start=1)
    assert "events.staged (rows for events)" in loom.says("log", "list", "--all")
    for command in (("log", "list"), ("status",)):
        assert "events.staged" not in (said := loom.says(*command))
        assert "1 internal log: see it with --all" in said
    assert "events.staged" in loom.says("status", "--all")
    assert [log["staging_for"] for log in loom.json("log", "list")] == [None, "events"]


def test_an_empty_cluster_says_how_to_begin(vmr: ScriptedVmr, loom: Loom) -> None:
    del vmr.status.nodes[:], vmr.status.logs[:]
    assert "vsn start" in loom.says("node", "list")
    assert "loom log create" in loom.says("stream", "list")


@pytest.mark.parametrize(
    ("option", "read"),
    [("--json", lambda line: json.loads(line)["cluster_id"]), ("-w", lambda line: line[8:16])],
)
def test_watch_goes_on_until_ctrl_c(
    vmr: ScriptedVmr, option: str, read: Callable[[str], str]
) -> None:
    command = [sys.executable, "-m", "loomlog.cli.loom", "status", "--watch", "0.1", option]
    watching = subprocess.Popen(
        [*command, "--cluster", vmr.address], stdout=subprocess.PIPE, text=True
    )
    with watching:
        assert watching.stdout is not None
        heads = (line for line in iter(watching.stdout.readline, "") if "scripted" in line)
        seen = [read(line) for line in islice(heads, 3)]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30)
    assert seen == ["scripted"] * 3
    assert watching.returncode == 130


@pytest.mark.parametrize("command", ["{id.x}", "{0}", "{host}", "'unclosed", " "])
def test_a_restart_command_that_cannot_run_is_refused_at_once(loom: Loom, command: str) -> None:
    code, _, err = loom.run("maintenance", "--restart-command", command)
    assert (code, "--restart-command is wrong" in err) == (2, True)
