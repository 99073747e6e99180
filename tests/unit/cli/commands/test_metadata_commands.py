"""`loom metadata …` and the options of several vmr: usage, questions, what is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_vmr import ScriptedVmr

from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import EtcdAccess, parse_peers
from loomlog.cli.processes import local_metadata
from loomlog.errors import InvalidArgument
from loomlog.metadata.offline.transfer import Dump
from loomlog.wire import loomlog_pb2 as pb


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"loomlog.cli.{program}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=dict(os.environ) | environment,
    )


VMR = ("vmr", "start", "--cluster-id", "c", "--data", "d")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("loom", "metadata", "import", "f"), "give --data for one vmr, or --etcd and --peers"),
        (("loom", "metadata", "import", "f", "--etcd", "h:1"), "--etcd and --peers for several"),
        (("loom", "metadata", "rebuild"), "give --data for one vmr, or --etcd for several"),
        (("loom", "metadata", "export", "f", "--data", "a", "--data", "b"), "one --data"),
        ((*VMR, "--store", "etcd", "--etcd", "h:1"), "needs --etcd and --peers"),
        ((*VMR, "--peers", "1=h:1"), "are for --store etcd"),
        ((*VMR, "--store", "etcd", "--etcd", "h:1", "--peers", "2=h:1"), "not among --peers"),
        (
            (*VMR, "--store", "etcd", "--etcd", "h:1", "--peers", "1=h:1", "--advertise", "h:2"),
            "--advertise is h:2, and --peers says h:1",
        ),
    ],
)
def test_wrong_usage_is_one_line(command: tuple[str, ...], says: str) -> None:
    done = run(*command)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_peers_are_numbers_and_addresses() -> None:
    assert parse_peers("1=a:1,3=[::1]:2") == {1: "a:1", 3: "[::1]:2"}
    for wrong in ("", "a:1", "1=", "0=a:1", "1=a:1,1=b:1", "1=a:1,2=a:1", "x=a:1"):
        with pytest.raises(UsageError, match="--peers"):
            parse_peers(wrong)


def test_the_password_of_etcd_is_not_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_ETCD_PASSWORD", "secret")
    settings = EtcdAccess(etcd_user="user").settings("a:1,b:2")
    assert settings.endpoints == ("a:1", "b:2")
    assert settings.password == "secret"
    assert "secret" not in repr(settings)
    assert EtcdAccess().settings("a:1").password is None


def test_without_etcd_several_vmr_are_refused_with_what_to_install(tmp_path: Path) -> None:
    arguments = ("up", "--metadata", "3", "--port", "0", "--data", str(tmp_path / "data"))
    done = run("loom", *arguments, PATH="")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "apt-get install etcd-server" in done.stderr


# ---- a cluster that runs


def member(number: int) -> pb.MetadataMember:
    return pb.MetadataMember(member_id=number, address=f"127.0.0.1:{7400 + number}", reachable=True)


def test_members_are_listed_with_who_leads() -> None:
    with ScriptedVmr() as vmr:
        vmr.status.leader, vmr.status.leader_epoch = 2, 9
        vmr.status.members.extend(member(number) for number in (1, 2, 3))
        listed = run("loom", "metadata", "list", "--cluster", vmr.address)
        assert "leader" in listed.stdout
        fields = json.loads(
            run("loom", "metadata", "list", "--json", "--cluster", vmr.address).stdout
        )
        shown = json.loads(run("loom", "status", "--json", "--cluster", vmr.address).stdout)
    assert fields["leader_epoch"] == 9
    for members in (fields["members"], shown["members"]):
        assert [(m["id"], m["leads"]) for m in members] == [(1, False), (2, True), (3, False)]


def test_the_last_that_may_fail_is_not_removed_without_asking() -> None:
    with ScriptedVmr() as vmr:
        vmr.status.members.extend(member(number) for number in (1, 2, 3))
        remove = ("metadata", "remove", "3", "--cluster", vmr.address)
        asked = run("loom", *remove)
        assert asked.returncode == 2
        assert "With 2 metadata repositories left the cluster stops when one fails" in asked.stderr
        assert vmr.changes == []
        assert run("loom", *remove, "--yes").returncode == 0
        assert vmr.changes[0].member_id == 3
        vmr.status.members.extend(member(number) for number in (4, 5))
        assert run("loom", *remove).returncode == 0
        unknown = run("loom", "metadata", "remove", "9", "--cluster", vmr.address)
        assert "there is no metadata repository 9" in unknown.stderr


# ---- a cluster that is stopped


def test_files_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    missing = run("loom", "metadata", "import", str(tmp_path / "none"), "--data", "d")
    assert "No such file" in missing.stderr
    other = tmp_path / "other"
    other.write_text("something else")
    wrong = run("loom", "metadata", "import", str(other), "--data", str(tmp_path / "new"))
    assert "was not written by `loom metadata export`" in wrong.stderr
    assert not (tmp_path / "new").exists()
    taken = run("loom", "metadata", "export", str(other), "--data", str(tmp_path))
    assert "exists: give another name" in taken.stderr
    assert other.read_text() == "something else"


def test_a_file_with_secrets_is_for_its_owner_alone(tmp_path: Path) -> None:
    from loomlog.cli.commands import metadata

    file = tmp_path / "file"
    metadata._write(file, Dump(1, 1, {}, ()).encode())
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---- loom up --metadata


def test_several_stay_where_they_were(tmp_path: Path) -> None:
    first = local_metadata.addresses_for(tmp_path, 3, 0)
    assert first is not None
    assert local_metadata.metadata_found(tmp_path) == 3
    assert local_metadata.addresses_for(tmp_path, 3, 0) == first
    with pytest.raises(InvalidArgument, match="give --port"):
        local_metadata.addresses_for(tmp_path, 3, 1)
    with pytest.raises(InvalidArgument, match="metadata of 3 vmr, not of 1"):
        local_metadata.addresses_for(tmp_path, 1, 0)


def test_ports_follow_the_one_that_was_given(tmp_path: Path) -> None:
    several = local_metadata.addresses_for(tmp_path, 3, 7400)
    assert several is not None
    assert several.peers == "1=127.0.0.1:7400,2=127.0.0.1:7401,3=127.0.0.1:7402"


def test_the_metadata_of_one_is_not_that_of_three(tmp_path: Path) -> None:
    assert local_metadata.metadata_found(tmp_path) == 0
    assert local_metadata.addresses_for(tmp_path, 1, 0) is None
    (tmp_path / "vmr-1").mkdir()
    (tmp_path / "vmr-1" / "metadata.sqlite").touch()
    assert local_metadata.metadata_found(tmp_path) == 1
    with pytest.raises(InvalidArgument, match="loom metadata export"):
        local_metadata.addresses_for(tmp_path, 3, 0)
