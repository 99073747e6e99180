"""Volumes of a storage node (docs/design/ordered.md, "Volumes and start")."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from storage_rig import WatchedFiles

from loomlog.errors import (
    AlreadyExists,
    Corrupt,
    InvalidArgument,
    LoomError,
    VersionMismatch,
)
from loomlog.storage import identity
from loomlog.storage.disk import RealFiles, lock_directory
from loomlog.storage.files import File
from loomlog.storage.volumes import Volumes

_secrets = count(1)


def start(
    *volumes: Path,
    cluster: str = "c1",
    node: int = 3,
    error_if_exists: bool = False,
    files: RealFiles | None = None,
) -> Volumes:
    return Volumes(
        files or RealFiles(),
        [str(volume) for volume in volumes],
        cluster,
        node,
        new_secret=lambda: f"secret-{next(_secrets)}",
        lock=lock_directory,
        error_if_exists=error_if_exists,
    )


def refusal(*volumes: Path, cluster: str = "c1", node: int = 3, exists: bool = False) -> str:
    """The one line that says why a node does not start on these volumes."""
    with pytest.raises(LoomError) as caught:
        start(*volumes, cluster=cluster, node=node, error_if_exists=exists)
    assert isinstance(caught.value, InvalidArgument | AlreadyExists | VersionMismatch)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return tmp_path / "a", tmp_path / "b"


def test_a_first_start_makes_the_paths_and_one_identity(two: tuple[Path, Path]) -> None:
    volumes = start(*two)
    found = [identity.load(RealFiles(), f"{v}/cid=c1/snid=3") for v in two]
    assert [(own.shard, own.taken) for own in found] == [(0, 1), (1, 1)]
    assert all(replace(own, shard=0, taken=0) == volumes.identity for own in found)
    assert volumes.identity.node_secret
    assert sorted(p.name for p in two[0].iterdir()) == ["cid=c1", "lock"]


def test_the_identity_survives_and_a_new_volume_gets_it(two: tuple[Path, Path]) -> None:
    first = start(two[0])
    first.join("cluster-secret")
    first.close()
    again = start(*two)
    assert again.identity.node_secret == first.identity.node_secret
    assert again.identity.cluster_secret == "cluster-secret"
    again.close()
    assert start(two[1]).identity.node_secret == first.identity.node_secret


def test_a_volume_that_is_not_mounted_is_not_taken_for_a_new_one(two: tuple[Path, Path]) -> None:
    start(*two).close()
    (two[1] / "cid=c1").rename(two[1].parent / "unmounted")
    before = sorted(two[1].rglob("*"))
    assert f"volume {two[1]} is empty, but had data of this node: mount it" in refusal(*two)
    assert sorted(two[1].rglob("*")) == before
    (two[1].parent / "unmounted").rename(two[1] / "cid=c1")
    start(*two).close()


def test_an_empty_volume_is_refused_while_another_is_missing(two: tuple[Path, Path]) -> None:
    """The cause may be a wrong mount: once that is undone, everything is there."""
    start(*two).close()
    wrong = two[0].parent / "c"
    wrong.mkdir()
    for volumes in ([two[0], wrong], [wrong, two[0]]):
        text = refusal(*volumes)
        assert f"volume {wrong} is empty, but volume {two[1]} is missing: mount it" in text
        assert f"`loom node replace 3 --volume {two[1]}`" in text
    assert not list(wrong.iterdir())
    alone = start(two[0])
    assert alone.missing == {1: str(two[1])}
    alone.close()
    assert f"volume {two[1]} is missing" in refusal(two[0], wrong), "also if it ran without it"
    again = start(*two)
    assert (again.missing, list(again.shards.values())) == ({}, [0, 1])
    again.close()
    assert list(start(*two, wrong).shards.values()) == [0, 1, 2], "none is missing"


def test_a_volume_that_was_given_up_is_replaced(two: tuple[Path, Path]) -> None:
    first = start(*two)
    with pytest.raises(InvalidArgument, match="is no missing volume of this node"):
        first.give_up(str(two[1]))
    first.close()
    (two[1] / "cid=c1").rename(two[1].parent / "old")
    alone = start(two[0])
    for wrong in (str(two[0]), "", "/elsewhere"):
        with pytest.raises(InvalidArgument, match=f"missing: {two[1]}"):
            alone.give_up(wrong)
    for _ in range(2):
        alone.give_up(str(two[1]))
        assert alone.missing == {}
    alone.close()
    again = start(*two)
    marks = {"given-up/1": 1, "shard/0": 1, "shard/1": 2}
    assert again.identity == replace(first.identity, marks=marks)
    assert [again.has_replaced(path) for path in again.paths] == [False, True]
    again.close()
    (two[1] / "cid=c1").rename(two[1].parent / "new")
    (two[1].parent / "old").rename(two[1] / "cid=c1")
    assert "was given up as shard 1 of this node" in refusal(*two)
    (two[1] / "cid=c1").rename(two[1].parent / "old")
    assert f"volume {two[1]} is empty, but had data of this node" in refusal(*two)
    (two[1].parent / "new").rename(two[1] / "cid=c1")
    start(*two)


@pytest.mark.parametrize("renames", range(5))
def test_a_crash_while_a_volume_is_taken_in_leaves_none_missing(
    two: tuple[Path, Path], renames: int
) -> None:
    start(two[0]).close()
    third = two[0].parent / "c"
    third.mkdir()
    with suppress(OSError):
        start(*two, third, files=_CrashingFiles(renames)).close()
    assert list(start(*two, third).shards.values()) == [0, 1, 2]


def test_a_volume_keeps_its_shard_wherever_it_is(two: tuple[Path, Path]) -> None:
    start(*two).close()
    moved = two[0].rename(two[0].parent / "c")
    volumes = start(two[1], moved)
    assert list(volumes.shards.values()) == [1, 0]
    volumes.close()
    third = two[0]
    third.mkdir()
    volumes = start(third, two[1], moved)
    assert list(volumes.shards.values()) == [2, 1, 0]
    assert not any(map(volumes.has_replaced, volumes.paths))


def test_a_volume_may_be_left_out_and_come_back(two: tuple[Path, Path]) -> None:
    start(*two).close()
    volumes = start(two[1])
    assert list(volumes.shards.values()) == [1]
    volumes.close()
    volumes = start(*two)
    assert list(volumes.shards.values()) == [0, 1]
    assert not any(map(volumes.has_replaced, volumes.paths))


def test_a_copy_of_a_volume_is_refused(two: tuple[Path, Path]) -> None:
    start(two[0]).close()
    shutil.copytree(two[0] / "cid=c1", two[1] / "cid=c1")
    assert "are copies of one volume" in refusal(*two)


def test_marks_are_kept_when_a_volume_fails(two: tuple[Path, Path]) -> None:
    volumes = start(*two)
    (two[0] / "cid=c1/snid=3").rename(two[0] / "gone")
    volumes.note({"made": 1})
    assert identity.load(RealFiles(), volumes.paths[1]).marks["made"] == 1
    (two[1] / "cid=c1/snid=3").rename(two[1] / "gone")
    with pytest.raises(OSError, match="No such file"):
        volumes.note({"made": 2})
    assert volumes.identity.marks["made"] == 1


class _CrashingFiles(RealFiles):
    """Files that break after a number of renames."""

    def __init__(self, renames: int) -> None:
        super().__init__()
        self._left = renames

    def rename(self, source: str, target: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.EIO, "crashed")
        super().rename(source, target)


@pytest.mark.parametrize("renames", range(4))
def test_an_interrupted_first_start_leaves_no_volume_that_seems_unmounted(
    two: tuple[Path, Path], renames: int
) -> None:
    with pytest.raises(OSError, match="crashed"):
        start(*two, files=_CrashingFiles(renames))
    start(*two)


class _FailingFiles(RealFiles):
    """Files of a disk that fails below one directory, in some operations."""

    def __init__(self, number: int, *operations: str, below: Path) -> None:
        self._error = OSError(number, os.strerror(number))
        self._operations = operations
        self._below = str(below)

    def _check(self, operation: str, path: str) -> None:
        if operation in self._operations and path.startswith(self._below):
            raise self._error

    def open(self, path: str, *, create: bool = False) -> File:
        self._check("create" if create else "open", path)
        return super().open(path, create=create)

    def list(self, path: str) -> list[str]:
        self._check("list", path)
        return super().list(path)

    def exists(self, path: str) -> bool:
        self._check("exists", path)
        return super().exists(path)

    def sync_directory(self, path: str) -> None:
        self._check("sync", path)
        super().sync_directory(path)


FAILURES = [
    (errno.EIO, "list"),
    (errno.EACCES, "list"),
    (errno.EACCES, "list", "/cid=c1"),
    (errno.EACCES, "list", "/cid=c1/snid=3"),
    (errno.EIO, "exists"),
    (errno.EIO, "open"),
    (errno.EROFS, "create"),
    (errno.EIO, "sync"),
]


@pytest.mark.parametrize(("number", "operation", "below"), [(*each, "")[:3] for each in FAILURES])
@pytest.mark.parametrize("place", [0, 1])
def test_a_volume_that_fails_is_left_out_and_nothing_is_written_there(
    two: tuple[Path, Path], place: int, number: int, operation: str, below: str
) -> None:
    first = start(*two)
    first.join("ours")
    first.close()
    bad, before = two[place], _contents(two[place])
    files = _FailingFiles(number, operation, below=Path(f"{bad}{below}"))
    volumes = start(*two, files=files)
    assert volumes.failed == {str(bad): os.strerror(number)}
    assert volumes.missing == {place: str(bad)}
    assert list(volumes.shards.values()) == [1 - place]
    volumes.note({"lost/5": 7})
    assert not volumes.look_again(str(bad))
    volumes.close()
    assert _contents(bad) == before
    again = start(*two)
    assert (again.failed, again.missing, list(again.shards.values())) == ({}, {}, [0, 1])
    assert again.identity.marks["lost/5"] == 7


@pytest.mark.parametrize(("number", "operation", "below"), [(*each, "")[:3] for each in FAILURES])
def test_a_volume_that_fails_is_never_taken_for_a_new_one(
    two: tuple[Path, Path], number: int, operation: str, below: str
) -> None:
    """This applies to the only volume, and to one that no other volume knows; it is not
    replaced."""
    start(two[1]).close()
    before = _contents(two[1])
    files = _FailingFiles(number, operation, below=Path(f"{two[1]}{below}"))
    for volumes in ([two[1]], [two[0], two[1]]):
        with pytest.raises(InvalidArgument, match=os.strerror(number)) as caught:
            start(*volumes, files=files)
        assert "\n" not in str(caught.value)
    assert _contents(two[1]) == before
    start(two[1], two[0]).close()
    empty = two[0].parent / "empty"
    empty.mkdir()
    with pytest.raises(InvalidArgument, match=f"{empty} is empty, but volume {two[1]} is missing"):
        start(two[0], two[1], empty, files=files)
    assert not list(empty.rglob("identity"))


def test_a_damaged_identity_costs_its_own_volume(two: tuple[Path, Path]) -> None:
    start(*two).close()
    path = two[1] / "cid=c1/snid=3/identity"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    volumes = start(*two)
    assert "identity is damaged; copy it from another volume" in volumes.failed[str(two[1])]
    assert path.read_bytes() == whole[:-1]
    path.write_bytes(whole)
    assert volumes.look_again(str(two[1]))


def test_a_volume_that_failed_comes_back_only_as_itself(two: tuple[Path, Path]) -> None:
    other = two[0].parent / "other"
    other.mkdir()
    for joined in (start(*two), start(other, node=4)):
        joined.join("cluster secret")
        joined.close()
    files = _FailingFiles(errno.EIO, "list", below=two[1])
    volumes = start(*two, files=files)
    files._operations = ()
    own = two[1] / "cid=c1"
    own.rename(two[1].parent / "own")
    for contents, reason in (
        (None, "it is empty, but had data of this node: mount it"),
        (other / "cid=c1", "expected cluster c1, storage node 3, found cluster c1, storage node 4"),
        (two[0] / "cid=c1", "are copies of one volume"),
    ):
        if contents is not None:
            shutil.copytree(contents, own)
        assert not volumes.look_again(str(two[1]))
        assert re.search(reason, volumes.failed[str(two[1])])
        shutil.rmtree(own, ignore_errors=True)
    (two[1].parent / "own").rename(own)
    assert volumes.look_again(str(two[1]))
    assert "in use" not in refusal(two[1], node=4), "it holds no lock"
    volumes.give_up(str(two[1]))
    assert not volumes.look_again(str(two[1]))
    assert "was given up" in volumes.failed[str(two[1])]


def _contents(volume: Path) -> dict[Path, bytes]:
    files = (path for path in volume.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes() for path in files}


def test_a_missing_volume(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_volume_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "not a directory" in refusal(tmp_path / "file")


def test_a_volume_that_is_not_writable(tmp_path: Path) -> None:
    class ReadOnly(RealFiles):
        def open(self, path: str, *, create: bool = False) -> File:
            raise OSError(errno.EROFS, "Read-only file system", path)

    with pytest.raises(InvalidArgument, match="not writable"):
        Volumes(ReadOnly(), [str(tmp_path)], "c1", 1, new_secret=str)


def test_no_volume_or_the_same_twice_or_a_bad_cluster_id(tmp_path: Path) -> None:
    assert "needs a volume" in refusal()
    assert "given twice" in refusal(tmp_path, tmp_path)
    assert "cluster id" in refusal(tmp_path, cluster="../c1")


def test_error_if_exists(two: tuple[Path, Path]) -> None:
    start(two[0], error_if_exists=True).close()
    assert f"{two[0]}/cid=c1/snid=3 exists" in refusal(*two, exists=True)
    assert not list(two[1].iterdir())


def test_a_volume_inside_another_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    assert f"{tmp_path}/inner is inside volume {tmp_path}" in refusal(tmp_path / "inner", tmp_path)
    assert f"{tmp_path}/inner is inside volume {tmp_path}" in refusal(tmp_path, tmp_path / "inner")


def test_two_processes_never_run_on_one_path(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert "in use by another process" in refusal(tmp_path)
    first.close()
    start(tmp_path)


def test_a_refused_start_holds_no_lock(two: tuple[Path, Path]) -> None:
    start(two[1]).close()
    second = start(two[1])
    refusal(*two)
    start(two[0]).close()
    second.close()


def test_a_copied_directory_does_not_pass_for_another_node(tmp_path: Path) -> None:
    volumes = start(tmp_path)
    volumes.join("cluster secret")
    volumes.close()
    (tmp_path / "cid=c1/snid=3").rename(tmp_path / "cid=c1/snid=4")
    why = refusal(tmp_path, node=4)
    assert "expected cluster c1, storage node 4" in why
    assert "found cluster c1, storage node 3" in why


def test_volumes_of_two_lives_of_a_node_are_not_mixed(two: tuple[Path, Path]) -> None:
    secrets = []
    for volume in two:
        volumes = start(volume)
        secrets.append(volumes.identity.node_secret)
        volumes.close()
    why = refusal(*two)
    assert all(identity.fingerprint(secret) in why for secret in secrets)
    assert not any(secret in why for secret in secrets)


def test_another_cluster_of_the_same_name_is_refused(tmp_path: Path) -> None:
    volumes = start(tmp_path)
    volumes.join("ours")
    volumes.join("ours")
    with pytest.raises(InvalidArgument, match="belongs to another cluster named c1") as caught:
        volumes.join("theirs")
    assert f"expected cluster secret {identity.fingerprint('ours')}" in str(caught.value)
    assert f"found {identity.fingerprint('theirs')}" in str(caught.value)
    assert "theirs" not in str(caught.value)


def test_another_format_and_a_broken_identity(tmp_path: Path) -> None:
    start(tmp_path).close()
    path = tmp_path / "cid=c1/snid=3/identity"
    whole = path.read_bytes()
    path.write_text(json.dumps({"format": 1, "cluster_id": "c1"}, indent=2))
    assert "expected format 6, found 1" in refusal(tmp_path)
    flipped = [bytes((*whole[:at], whole[at] ^ 1, *whole[at + 1 :])) for at in range(len(whole))]
    for broken in (b"", b"{", b"[]", b'{"format": 5}', whole[:-1], *flipped):
        path.write_bytes(broken)
        with pytest.raises((Corrupt, VersionMismatch), match="identity"):
            start(tmp_path)
    with pytest.raises(Corrupt, match=r"is damaged.*run `loom node replace 3`"):
        start(tmp_path)
    path.write_bytes(whole)
    start(tmp_path)


def test_what_a_protocol_noted_is_not_forgotten(two: tuple[Path, Path]) -> None:
    volumes = start(*two)
    volumes.note({"lost/5": 7})
    volumes.note({"lost/5": 3, "lost/6": 1})  # of metadata that were restored from an older copy
    older = volumes.identity
    volumes.note({"made": 1})
    volumes.close()
    own = identity.load(RealFiles(), volumes.paths[0])
    crashed = replace(own, marks=older.marks)  # as far as a crash let it come
    identity.save(RealFiles(), volumes.paths[0], crashed)
    assert start(*two).identity == replace(older, marks={**older.marks, "made": 1})


def test_files_of_a_simulated_disk_need_no_lock(tmp_path: Path) -> None:
    for _ in range(2):
        Volumes(WatchedFiles(), [str(tmp_path)], "c1", 1, new_secret=lambda: "s")
    assert not (tmp_path / "lock").exists()
