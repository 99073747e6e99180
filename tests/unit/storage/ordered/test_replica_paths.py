"""The paths of replicas on the volumes of a node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hand_worker import HandWorker
from storage_rig import HandClock

from loomlog.config import StorageSettings
from loomlog.errors import AlreadyExists, NotFound
from loomlog.storage.disk import RealFiles, lock_directory
from loomlog.storage.ordered.journal import Journal
from loomlog.storage.ordered.replica_paths import ReplicaPaths, StreamMeta, set_aside
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.storage.set_aside import find as set_aside_paths
from loomlog.storage.volumes import Volumes


class Found(ReplicaPaths):
    """The replicas of node 3 of cluster c1, on locked volumes."""

    def __init__(self, *volumes: Path) -> None:
        names = [str(volume) for volume in volumes]
        self.volumes = Volumes(
            RealFiles(), names, "c1", 3, new_secret=lambda: "secret", lock=lock_directory
        )
        super().__init__(RealFiles(), self.volumes.paths, self.volumes.cluster_stamp, 3)

    def close(self) -> None:
        self.volumes.close()


def add_replica(path: str, stream_id: int, *, cluster: str = "") -> None:
    journal = Journal(HandWorker(), HandClock().call_later, StorageSettings())
    meta = StreamMeta(1, stream_id, cluster=cluster)
    StreamStore.create(RealFiles(), path, meta, journal, StorageSettings()).close()


def place(replicas: Found, stream_id: int, stored_bytes: dict[int, int]) -> str:
    return replicas.place(stream_id, lambda stream_id: stored_bytes.get(stream_id, 0))


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return tmp_path / "a", tmp_path / "b"


def test_replicas_are_found_on_all_volumes(two: tuple[Path, Path]) -> None:
    replicas = Found(*two)
    for stream_id in (1, 2, 12):
        add_replica(place(replicas, stream_id, {}), stream_id)
    placed = replicas.streams
    replicas.close()
    (two[0] / "cid=c1/snid=3/lsid=99").mkdir()  # its creation was interrupted
    (two[0] / "cid=c1/snid=3/lsid=x").mkdir()
    assert Found(*two).streams == placed


def test_a_new_replica_goes_where_there_is_least(two: tuple[Path, Path]) -> None:
    replicas = Found(*two)
    assert place(replicas, 1, {}).startswith(f"{two[0]}/")
    assert place(replicas, 2, {1: 0}).startswith(f"{two[1]}/"), "as many bytes, fewer replicas"
    assert place(replicas, 3, {1: 500, 2: 100}).startswith(f"{two[1]}/")
    assert place(replicas, 4, {1: 500, 2: 100, 3: 600}).startswith(f"{two[0]}/")
    with pytest.raises(AlreadyExists, match="lsid=1"):
        place(replicas, 1, {})
    replicas.forget(1)
    place(replicas, 1, {})
    with pytest.raises(NotFound):
        replicas.forget(77)


def test_a_removal_that_was_interrupted_is_finished_at_the_next_Found(tmp_path: Path) -> None:
    replicas = Found(tmp_path)
    for stream_id in (1, 2):
        add_replica(place(replicas, stream_id, {}), stream_id)
    replicas.remove(1)
    replicas.forget(1)
    path = Path(replicas.streams[2])
    replicas.close()
    path.rename(f"{path}.removed")  # as far as a crash let it come
    replicas = Found(tmp_path)
    assert replicas.streams == {}
    assert sorted(p.name for p in path.parent.iterdir()) == ["identity"]
    add_replica(place(replicas, 2, {}), 2)


def test_a_log_stream_on_two_volumes_is_refused(two: tuple[Path, Path]) -> None:
    Found(*two).close()
    paths = [f"{volume}/cid=c1/snid=3/lsid=5" for volume in two]
    for path in paths:
        add_replica(path, 5)
    replicas = Found(*two)
    assert replicas.streams == {}
    assert all(path in why for path in paths for why in replicas.found.refused)
    with pytest.raises(AlreadyExists, match="the same log stream is at"):
        place(replicas, 5, {})


def test_a_copied_or_renamed_replica_is_known_by_what_is_in_it(two: tuple[Path, Path]) -> None:
    replicas = Found(*two)
    for stream_id in (1, 2, 3):
        add_replica(place(replicas, stream_id, {}), stream_id)
    replicas.close()
    here, there = (volume / "cid=c1/snid=3" for volume in two)
    shutil.copytree(here / "lsid=1", there / "lsid=99")
    shutil.copytree(here / "lsid=1", there / "lsid=3")  # only its name is that of a served one
    again = Found(*two)
    assert again.streams == replicas.streams
    assert again.found.refused == [
        f"{there}/lsid=3 is not served: it holds log stream 1, not 3; move it out of the volume",
        f"{there}/lsid=99 is not served: it holds log stream 1, not 99; move it out of the volume",
    ]
    with pytest.raises(AlreadyExists, match="it holds log stream 1, not 99"):
        again.place(99, lambda stream_id: 0)
    assert (there / "lsid=99/meta").exists()


def test_replicas_of_another_cluster_are_not_served(two: tuple[Path, Path]) -> None:
    ours, theirs = Found(two[0]), Found(two[1])
    for replicas, secret in ((ours, "a"), (theirs, "b")):
        replicas.volumes.join(secret)
        add_replica(place(replicas, 1, {}), 1, cluster=replicas.volumes.cluster_stamp)
        replicas.close()
    (two[1] / "cid=c1/snid=3/lsid=1").rename(two[0] / "cid=c1/snid=3/lsid=2")
    again = Found(two[0])
    assert list(again.streams) == [1]
    (refused,) = again.found.refused
    assert (
        f"expected '{ours.volumes.cluster_stamp}', found '{theirs.volumes.cluster_stamp}'"
        in refused
    )


@pytest.mark.parametrize("ending", ["seg", "seg.damaged"])
def test_a_replica_without_its_meta_is_kept_if_it_may_have_entries(
    tmp_path: Path, ending: str
) -> None:
    replicas = Found(tmp_path)
    paths = [place(replicas, stream_id, {}) for stream_id in (1, 2, 3)]
    for stream_id, path in enumerate(paths, start=1):
        add_replica(path, stream_id)
        Path(f"{path}/data/{1:020d}.{ending}").write_bytes(b"entries")
    replicas.close()
    Path(f"{paths[0]}/meta").unlink()
    Path(f"{paths[1]}/meta").write_bytes(b"{}")
    again = Found(tmp_path)
    assert list(again.streams) == [3]
    assert "lsid=1 is not served: its meta file is missing" in again.found.conditions[0].text
    assert "lsid=2 is not served: its meta file cannot be read" in again.found.conditions[1].text
    assert again.found.highest_stream_id == 3
    for stream_id, path in enumerate(paths[:2], start=1):
        with pytest.raises(AlreadyExists):
            add_replica(path, stream_id)


def test_a_damaged_replica_is_set_aside_when_it_is_made_anew(tmp_path: Path) -> None:
    replicas = Found(tmp_path)
    path = place(replicas, 7, {})
    for expected in (".damaged", ".damaged-2"):
        add_replica(path, 7)
        Path(path, "meta").write_bytes(b"{}")
        replicas.close()
        replicas = Found(tmp_path)
        assert replicas.found.damaged_of(7) == [path]
        aside = set_aside(RealFiles(), path)
        replicas.found.were_set_aside({path: aside})
        assert aside == path + expected
        assert Path(aside, "meta").read_bytes() == b"{}"
        assert aside in set_aside_paths(RealFiles(), path.rpartition("/")[0])
    replicas.close()
    again = Found(tmp_path)
    assert again.found.conditions == replicas.found.conditions
    assert again.found.highest_stream_id == 7
    assert again.streams == {}
