"""A volume belongs to one node: if other data is found under it, nothing is written there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loomlog.errors import InvalidArgument
from loomlog.storage import identity
from loomlog.storage.disk import RealFiles, lock_directory
from loomlog.storage.identity import fingerprint
from loomlog.storage.volumes import Volumes


def start(*volumes: Path, cluster: str = "c1", node: int = 1, secret: str = "mine") -> Volumes:
    return Volumes(
        RealFiles(),
        [str(volume) for volume in volumes],
        cluster,
        node,
        new_secret=lambda: secret,
        lock=lock_directory,
    )


def refusal(*volumes: Path, cluster: str = "c1", node: int = 1) -> str:
    """Return why a node does not start; nothing may have changed on the volumes."""
    before = [snapshot(volume) for volume in volumes]
    with pytest.raises(InvalidArgument) as caught:
        start(*volumes, cluster=cluster, node=node)
    assert [snapshot(volume) for volume in volumes] == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def snapshot(volume: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(volume)): None if path.is_dir() else path.read_bytes()
        for path in volume.rglob("*")
    }


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """The volume of node 2 of cluster c1."""
    volume = tmp_path / "used"
    volume.mkdir()
    volumes = start(volume, node=2, secret="its secret")
    volumes.join("cluster secret")
    volumes.close()
    return volume


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    volume = tmp_path / "empty"
    volume.mkdir()
    return volume


def test_the_volume_of_another_node_is_refused_and_both_are_named(used: Path) -> None:
    why = refusal(used, node=1)
    assert "expected cluster c1, storage node 1" in why
    assert "found cluster c1, storage node 2" in why
    assert f"{used}/cid=c1/snid=2" in why
    assert fingerprint("its secret") in why
    assert "its secret" not in why
    assert "cluster secret cluster secret" not in why
    assert "secret" not in repr(start(used, node=2).identity)


def test_the_volume_of_another_cluster_is_refused_and_both_are_named(used: Path) -> None:
    why = refusal(used, cluster="c9", node=2)
    assert "expected cluster c9, storage node 2" in why
    assert "found cluster c1, storage node 2" in why


def test_one_wrong_volume_among_several_is_refused(used: Path, empty: Path) -> None:
    assert f"{used}/cid=c1/snid=2" in refusal(empty, used, node=1)
    assert not list(empty.iterdir())


@pytest.mark.parametrize("level", ["deep", "deep/deeper"])
def test_a_directory_at_the_wrong_level_is_found(used: Path, empty: Path, level: str) -> None:
    shutil.copytree(used, empty / level)
    assert f"{empty}/{level}/cid=c1/snid=2" in refusal(empty, node=2)
    assert f"{empty}/{level}/cid=c1/snid=2" in refusal(empty, node=1)


@pytest.mark.parametrize("inside", ["cid=c1", "cid=c1/snid=2"])
def test_a_volume_inside_a_node_directory_is_refused(used: Path, inside: str) -> None:
    (used / "cid=c1/snid=2/lsid=1").mkdir()
    assert "cid=c1/snid=2" in refusal(used / inside, node=2)


def test_a_copy_beside_the_own_directory_is_refused(used: Path) -> None:
    shutil.copytree(used / "cid=c1", used / "backup")
    why = refusal(used, node=2)
    assert f"{used}/backup/snid=2 is a second directory of cluster c1, storage node 2" in why
    shutil.rmtree(used / "backup")
    start(used, node=2)


@pytest.mark.parametrize("data", ["lsid=1", "lsid=1.removed", "chains", "logs"])
def test_data_without_an_identity_is_not_adopted(used: Path, data: str) -> None:
    (used / "cid=c1/snid=2" / data).mkdir()
    kept = (used / "cid=c1/snid=2/identity").read_bytes()
    (used / "cid=c1/snid=2/identity").unlink()
    for node in (1, 2):
        assert "cid=c1/snid=2 has data but no identity file" in refusal(used, node=node)
    (used / "cid=c1/snid=2/identity").write_bytes(kept)
    start(used, node=2)


def test_data_without_an_identity_beside_a_volume_that_has_one(used: Path, empty: Path) -> None:
    (empty / "cid=c1/snid=2/lsid=1").mkdir(parents=True)
    assert "has data but no identity file" in refusal(used, empty, node=2)
    (empty / "cid=c1/snid=2/lsid=1").rmdir()
    start(used, empty, node=2)


@pytest.mark.parametrize("at", ["", "cid=c1", "old"])
def test_data_without_an_identity_is_not_overlooked_among_many_files(
    used: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "LISTED_MAX", 100)
    (used / "cid=c1/snid=2/identity").rename(used / "cid=c1/snid=2/lsid=1")
    if at == "old":
        (used / "cid=c1").rename(used / at)
    for number in range(200):
        (used / at / f"a-{number}").touch()
    expected = "other files, so there may be data" if at == "old" else "has data but no identity"
    assert expected in refusal(used, node=2)


def test_a_node_may_share_its_volume_with_many_files(
    used: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "LISTED_MAX", 100)
    for volume in (used, empty):
        for number in range(200):
            (volume / f"a-{number}").touch()
    start(used, node=2).close()
    assert "use a directory without them" in refusal(empty)


def test_a_start_that_was_interrupted_leaves_an_empty_volume(empty: Path) -> None:
    (empty / "cid=c1/snid=1").mkdir(parents=True)
    (empty / "cid=c1/snid=1/identity.tmp").write_text("{")
    (empty / "lost+found").mkdir()
    (empty / "notes").write_text("not ours")
    start(empty)


def test_swapped_volumes_are_refused_and_swapped_back_all_is_well(used: Path, empty: Path) -> None:
    volumes = start(empty, node=1)
    volumes.join("cluster secret")
    volumes.close()
    for node, wrong in ((1, used), (2, empty)):
        refusal(wrong, node=node)
    assert start(used, node=2).identity.node_secret == "its secret"
    assert start(empty, node=1).identity.node_secret == "mine"


def test_a_running_node_keeps_others_from_its_volume(empty: Path) -> None:
    running = start(empty, node=1)
    before = snapshot(empty)
    for node in (1, 2):
        with pytest.raises(InvalidArgument, match="in use by another process"):
            start(empty, node=node)
    running.join("cluster secret")
    with pytest.raises(InvalidArgument, match="storage node 1"):
        start(empty, node=2)
    assert snapshot(empty).keys() == before.keys()
    running.close()


@pytest.mark.parametrize(("cluster", "node"), [("c1", 2), ("c2", 1)])
def test_what_joined_no_cluster_is_free_for_another_number(
    empty: Path, cluster: str, node: int
) -> None:
    start(empty, node=1).close()
    volumes = start(empty, cluster=cluster, node=node)
    assert (volumes.identity.cluster_id, volumes.identity.node_id) == (cluster, node)
    volumes.close()
    assert len(list(empty.rglob("identity"))) == 1


def test_data_that_joined_no_cluster_is_not_free(empty: Path) -> None:
    start(empty, node=1).close()
    (empty / "cid=c1/snid=1/lsid=7").mkdir()
    assert "storage node 1" in refusal(empty, node=2)


@pytest.mark.parametrize("survivors", [("identity",), ("identity", "generation"), ()])
def test_a_removal_that_was_interrupted_goes_on(empty: Path, survivors: tuple[str, ...]) -> None:
    start(empty, node=1).close()
    directory = empty / "cid=c1/snid=1"
    (directory / "generation").write_text("1")
    for name in {"identity", "generation"} - {*survivors}:
        (directory / name).unlink()
    assert start(empty, node=2).identity.node_id == 2
