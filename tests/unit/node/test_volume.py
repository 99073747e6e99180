"""Whether a volume works: errors of its stores, and its own looks."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from loomlog import limits
from loomlog.node.volume import Volume
from loomlog.storage.disk import RealFiles, ThreadWorker
from loomlog.storage.files import Space


class Disk(RealFiles):
    """A real one, with as much space as a test wants."""

    def __init__(self) -> None:
        self.free = 1 << 40

    def space(self, path: str) -> Space:
        return Space(self.free, 1 << 41)


class Watched:
    """A volume, and how often it changed."""

    def __init__(self, path: Path) -> None:
        self.disk = Disk()
        self.path = path / "cid=c" / "snid=1"
        self.path.mkdir(parents=True)
        self.changes = 0
        self.worker = ThreadWorker(asyncio.get_running_loop())
        self.volume = Volume(self.disk, str(self.path), lambda: self.worker, self._changed)
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
    watched.disk.free = 1000
    await watched.until(lambda: volume.nearly_full)
    assert (volume.works, volume.takes_more) == (True, False)
    volume.failed(OSError(errno.ENOSPC, "No space left on device"))
    assert volume.is_full
    await asyncio.sleep(2 * limits.VOLUME_FAILED_S)
    await volume.look()
    assert (volume.works, volume.is_full) == (False, True)
    watched.disk.free = 1 << 40
    await watched.until(lambda: volume.takes_more)
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
