"""Detecting whether a volume works, by errors of its stores and by its own checks."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from poll import until

from loomlog import limits
from loomlog.config import VolumeLimit
from loomlog.limits import MIB
from loomlog.node.volume import Room, Volume
from loomlog.storage.disk import RealFiles, ThreadWorker
from loomlog.storage.files import Space


class Disk(RealFiles):
    """A real one, with as much space as a test wants."""

    def __init__(self) -> None:
        self.free = 1 << 40
        self.used_bytes: int | None = None

    def space(self, path: str) -> Space:
        return Space(self.free, 1 << 41)

    def used(self, path: str) -> int:
        return self.used_bytes if self.used_bytes is not None else super().used(path)


class Watched:
    """A volume, and how often it changed."""

    def __init__(self, path: Path, limit: VolumeLimit | None = None) -> None:
        self.disk = Disk()
        self.path = path / "cid=c" / "snid=1"
        self.path.mkdir(parents=True, exist_ok=True)
        self.changes = 0
        self.worker = ThreadWorker(asyncio.get_running_loop())
        self.volume = Volume(self.disk, str(self.path), lambda: self.worker, self._changed, limit)
        self.volume.start()

    def _changed(self, volume: Volume) -> None:
        self.changes += 1

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def close(self) -> None:
        self.volume.stop()
        self.worker.close()


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(limits, "VOLUME_LOOK_S", 0.02)
    monkeypatch.setattr(limits, "VOLUME_LOOK_FAILED_S", 0.02)
    monkeypatch.setattr(limits, "VOLUME_FAILED_S", 0.1)
    return Watched(tmp_path)


async def test_a_volume_works_again_a_while_after_its_last_error(
    watched: Watched, tmp_path: Path
) -> None:
    volume = watched.volume
    volume.failed(OSError(errno.EIO, "Input/output error"))
    assert volume.condition == f"volume {tmp_path} failed: Input/output error"
    assert (volume.works, volume.takes_more, volume.is_full) == (False, False, False)
    await volume.look()
    assert not volume.works, "a tiny file that can be written proves little"
    await watched.until(lambda: volume.works)
    assert watched.changes == 2
    watched.close()


async def test_a_full_volume_works_again_when_there_is_room(watched: Watched) -> None:
    volume = watched.volume
    watched.disk.free = 100 * MIB
    await watched.until(lambda: volume.nearly_full)
    assert not volume.is_spent, "what is under way may use the reserve"
    watched.disk.free = 1000
    await watched.until(lambda: volume.is_spent)
    assert (volume.works, volume.takes_more) == (True, False)
    volume.failed(OSError(errno.ENOSPC, "No space left on device"))
    assert volume.is_full
    await asyncio.sleep(2 * limits.VOLUME_FAILED_S)
    await volume.look()
    assert (volume.works, volume.is_full) == (False, True)
    watched.disk.free = 1 << 40
    await watched.until(lambda: volume.takes_more)
    watched.close()


async def test_space_is_measured_while_a_check_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "VOLUME_MEASURE_S", 0.01)
    is_synced, workers = threading.Event(), list[ThreadWorker]()

    def new_worker() -> ThreadWorker:
        workers.append(ThreadWorker(asyncio.get_running_loop()))
        return workers[-1]

    disk = Disk()
    volume = Volume(disk, str(tmp_path), new_worker, lambda volume: None)
    monkeypatch.setattr(volume, "_write", is_synced.wait)
    looking = asyncio.create_task(volume.look())
    disk.free = 100 * MIB
    await until(lambda: volume.nearly_full)
    assert not looking.done()
    is_synced.set()
    await looking
    assert volume.nearly_full
    for worker in workers:
        worker.close()


async def test_a_volume_keeps_to_its_limit(watched: Watched, tmp_path: Path) -> None:
    watched.close()
    limited = Watched(tmp_path, VolumeLimit(1000 * MIB))
    volume, disk = limited.volume, limited.disk
    disk.used_bytes = 940 * MIB
    await limited.until(lambda: volume.room.used == 940 * MIB)
    assert volume.takes_more
    disk.used_bytes = 960 * MIB
    await limited.until(lambda: volume.nearly_full)
    assert (volume.works, volume.takes_more) == (True, False)
    assert volume.condition == (
        f"volume {tmp_path} takes no appends, 960 MiB of its limit of 1,000 MiB are used: free "
        "space, trim logs, add nodes, or raise its --volume-limit"
    )
    disk.used_bytes = 945 * MIB  # not much more than the reserve: it must not come and go
    await limited.until(lambda: volume.room.used == 945 * MIB)
    assert volume.nearly_full
    disk.used_bytes = 900 * MIB
    await limited.until(lambda: volume.takes_more)
    limited.close()


async def test_what_vanishes_between_two_counts_counts_as_used(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.close()
    monkeypatch.setattr(limits, "VOLUME_LOOK_S", 100.0)
    monkeypatch.setattr(limits, "VOLUME_MEASURE_S", 0.01)
    limited = Watched(tmp_path, VolumeLimit(part=0.001))
    limited.disk.used_bytes = 2000 * MIB
    await limited.volume.look()
    assert limited.volume.room.limit == (1 << 41) // 1000
    assert not limited.volume.takes_more
    limited.disk.free -= 20 * MIB  # it is not counted again for a while
    await limited.until(lambda: limited.volume.room.used == 2020 * MIB)
    limited.close()


@pytest.mark.parametrize(
    ("room", "left"),
    [
        (Room(0, 0, 1000 * MIB, 10_000 * MIB), 744 * MIB),
        (Room(0, 0, 100 * MIB, 10_000 * MIB), 0),
        (Room(500 * MIB, 1000 * MIB, 5000 * MIB, 10_000 * MIB), 450 * MIB),
        (Room(500 * MIB, 1000 * MIB, 300 * MIB, 10_000 * MIB), 44 * MIB),
    ],
)
def test_how_much_can_be_written_before_appends_are_refused(room: Room, left: int) -> None:
    assert room.left_bytes == left
    assert (room.reserves > 1) is (left > 0)


async def test_the_bytes_on_the_disk_are_counted(watched: Watched) -> None:
    (watched.path / "lsid=1").mkdir()
    (watched.path / "lsid=1" / "file").write_bytes(bytes(MIB))
    await watched.until(lambda: watched.volume.room.used >= MIB)
    assert watched.volume.room.used < 2 * MIB
    watched.close()


async def test_errors_of_single_files_are_not_the_volumes(watched: Watched) -> None:
    """A replica that was just removed has no files any more."""
    for number in (errno.EBADF, errno.ENOENT, errno.EFBIG):
        watched.volume.failed(OSError(number, "no"))
    assert watched.volume.works
    watched.close()


async def test_directories_that_vanish_are_noticed(watched: Watched) -> None:
    volume = watched.volume
    (watched.path / "lsid=1").mkdir()
    volume.watch(f"{watched.path}/lsid=1")
    (watched.path / "lsid=1").rename(watched.path / "elsewhere")
    (watched.path / "lsid=1").mkdir()
    await watched.until(lambda: bool(volume.vanished))
    assert volume.works
    assert "lsid=1 is gone or was replaced" in volume.problem_of(f"{watched.path}/lsid=1")
    watched.path.rename(watched.path.parent / "away")
    await watched.until(lambda: not volume.works)
    assert "its directory is gone or was replaced" in volume.condition
    (watched.path.parent / "away").rename(watched.path)
    await watched.until(lambda: volume.works)
    watched.close()
