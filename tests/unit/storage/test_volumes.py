"""Spec 1, "Storage node: volumes and start"."""

from __future__ import annotations

import errno
import json
from itertools import count
from pathlib import Path

import pytest
from storage_rig import HandClock, HandWorker, WatchedFiles

from loomlog.config import StorageSettings
from loomlog.errors import AlreadyExists, InvalidArgument, LoomError, NotFound, VersionMismatch
from loomlog.storage.disk import RealFiles, lock_directory
from loomlog.storage.files import File
from loomlog.storage.journal import Journal
from loomlog.storage.stream_meta import StreamMeta
from loomlog.storage.stream_store import StreamStore
from loomlog.storage.volumes import Volumes

_secrets = count(1)


def start(
    *volumes: Path, cluster: str = "c1", node: int = 3, error_if_exists: bool = False
) -> Volumes:
    return Volumes(
        RealFiles(),
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


def add_replica(path: str, stream_id: int) -> None:
    journal = Journal(HandWorker(), HandClock().call_later, StorageSettings())
    StreamStore.create(
        RealFiles(), path, StreamMeta(1, stream_id), journal, StorageSettings()
    ).close()


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return tmp_path / "a", tmp_path / "b"


def test_a_first_start_makes_the_paths_and_one_identity(two: tuple[Path, Path]) -> None:
    volumes = start(*two)
    identities = [json.loads((v / "cid=c1/snid=3/identity").read_text()) for v in two]
    assert identities[0] == identities[1]
    assert identities[0]["node_secret"] == volumes.identity.node_secret != ""
    assert volumes.streams == {}
    assert sorted(p.name for p in two[0].iterdir()) == ["cid=c1"]


def test_the_identity_survives_and_a_new_volume_gets_it(two: tuple[Path, Path]) -> None:
    first = start(two[0])
    first.join("cluster-secret")
    first.close()
    again = start(*two)
    assert again.identity == first.identity
    assert again.identity.cluster_secret == "cluster-secret"
    again.close()
    assert start(two[1]).identity == first.identity


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


def test_replicas_are_found_on_all_volumes(two: tuple[Path, Path]) -> None:
    volumes = start(*two)
    for stream_id in (1, 2, 12):
        add_replica(volumes.place(stream_id, {}), stream_id)
    placed = volumes.streams
    volumes.close()
    (two[0] / "cid=c1/snid=3/lsid=99").mkdir()  # its creation was interrupted
    (two[0] / "cid=c1/snid=3/lsid=x").mkdir()
    assert start(*two).streams == placed


def test_a_new_replica_goes_where_there_is_least(two: tuple[Path, Path]) -> None:
    volumes = start(*two)
    assert volumes.place(1, {}).startswith(f"{two[0]}/")
    assert volumes.place(2, {1: 0}).startswith(f"{two[1]}/"), "as many bytes, fewer replicas"
    assert volumes.place(3, {1: 500, 2: 100}).startswith(f"{two[1]}/")
    assert volumes.place(4, {1: 500, 2: 100, 3: 600}).startswith(f"{two[0]}/")
    with pytest.raises(AlreadyExists, match="lsid=1"):
        volumes.place(1, {})
    volumes.forget(1)
    volumes.place(1, {})
    with pytest.raises(NotFound):
        volumes.forget(77)


def test_a_removal_that_was_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    volumes = start(tmp_path)
    for stream_id in (1, 2):
        add_replica(volumes.place(stream_id, {}), stream_id)
    volumes.remove(1)
    volumes.forget(1)
    path = Path(volumes.streams[2])
    volumes.close()
    path.rename(f"{path}.removed")  # as far as a crash let it come
    volumes = start(tmp_path)
    assert volumes.streams == {}
    assert sorted(p.name for p in path.parent.iterdir()) == ["identity", "lock"]
    add_replica(volumes.place(2, {}), 2)


def test_a_log_stream_on_two_volumes_is_refused(two: tuple[Path, Path]) -> None:
    start(*two).close()
    paths = [f"{volume}/cid=c1/snid=3/lsid=5" for volume in two]
    for path in paths:
        add_replica(path, 5)
    why = refusal(*two)
    assert paths[0] in why
    assert paths[1] in why


def test_a_copied_directory_does_not_pass_for_another_node(tmp_path: Path) -> None:
    start(tmp_path).close()
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
    assert all(secret in why for secret in secrets)


def test_another_cluster_of_the_same_name_is_refused(tmp_path: Path) -> None:
    volumes = start(tmp_path)
    volumes.join("ours")
    volumes.join("ours")
    with pytest.raises(InvalidArgument, match="expected secret ours, found theirs"):
        volumes.join("theirs")


def test_another_format_and_a_broken_identity(tmp_path: Path) -> None:
    start(tmp_path).close()
    path = tmp_path / "cid=c1/snid=3/identity"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "format": 2}))
    assert "expected format 1, found 2" in refusal(tmp_path)
    for broken in ("", "{", "[]", '{"format": 1}'):
        path.write_text(broken)
        with pytest.raises(LoomError, match="identity"):
            start(tmp_path)


def test_files_of_a_simulated_disk_need_no_lock(tmp_path: Path) -> None:
    for _ in range(2):
        Volumes(WatchedFiles(), [str(tmp_path)], "c1", 1, new_secret=lambda: "s")
    assert not (tmp_path / "cid=c1/snid=1/lock").exists()
