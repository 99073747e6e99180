"""Files of large batches contain every reported batch, whatever ends the process."""

from __future__ import annotations

from random import Random

import pytest

from loomlog.limits import ALIGNMENT
from loomlog.storage.batch_files import BatchFiles
from loomlog.testing.sim.disk import SimDisk, SimFiles
from loomlog.testing.sim.world import World

PATH = "/volume/logs"


class PowerLoss(Exception):  # noqa: N818 - an event, not an error
    pass


def strike() -> None:
    raise PowerLoss


class Story:
    """Files through many lives. Treat flushed batches as if a head named their place."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(World(seed), "host")
        files = self.disk.mount()
        files.make_directory(PATH)
        files.sync_directory("/volume")
        files.sync_directory("/")
        self.heads: dict[tuple[int, int], dict[int, bytes]] = {}
        self.open()

    def open(self) -> None:
        self.mounted: SimFiles = self.disk.mount()
        self.files = BatchFiles(self.mounted, PATH)
        self.files.remove_others(self.heads)

    def live(self) -> None:
        """Work until the process or the power goes, which may be at any change of the disk."""
        self.disk.strike_after(self.random.randrange(60), strike)
        try:
            for _ in range(20):
                self.act()
        except PowerLoss:
            pass
        self.disk.strike_after(0, None)
        if self.random.random() < 0.5:
            self.disk.crash()
        self.open()
        self.check()

    def act(self) -> None:
        key = self.random.randint(1, 3), self.random.randint(1, 3)
        chance = self.random.random()
        if chance < 0.15:
            self.heads.pop(key, None)
            self.files.remove(*key)
        elif chance < 0.2:
            self.heads = {each: kept for each, kept in self.heads.items() if each[0] != key[0]}
            self.files.remove_folder(key[0])
        else:
            self.add(key)

    def add(self, key: tuple[int, int]) -> None:
        added = []
        for log in {key[1], self.random.randint(1, 3)}:
            batch = self.random.randbytes(self.random.choice((1, 64, 3000)))
            offset = self.files.add(key[0], log, batch)
            assert offset % ALIGNMENT == 0
            added.append(((key[0], log), offset, batch))
        self.files.flush(sync=True)
        for each, offset, batch in added:
            stored = self.heads.setdefault(each, {})
            assert offset not in stored
            stored[offset] = batch

    def check(self) -> None:
        for (partition, log), batches in self.heads.items():
            file = self.files.open(partition, log)
            for offset, batch in batches.items():
                assert file.read(len(batch), offset) == batch
        on_disk = {
            (int(partition), int(log))
            for partition in self.directory("")
            for log in self.directory(f"/{partition}")
        }
        assert on_disk == self.heads.keys()

    def directory(self, below: str) -> list[str]:
        path = f"{PATH}/batches{below}"
        return self.mounted.list(path) if self.mounted.exists(path) else []


@pytest.mark.parametrize("seed", range(40))
def test_what_was_flushed_survives_power_losses(seed: int) -> None:
    story = Story(seed)
    for _ in range(25):
        story.live()


def test_many_files_are_not_all_kept_open() -> None:
    story = Story(1)
    for log in range(200):
        story.files.add(1, log, b"%d" % log)
        story.files.flush(sync=True)
    assert len(story.files._open) == 64
    for log in range(200):
        story.files.add(1, log, b"more")
        story.files.flush(sync=True)
        file = story.files.open(1, log)
        assert bytes(file.read(4, ALIGNMENT)) == b"more"
        assert bytes(file.read(len(b"%d" % log), 0)) == b"%d" % log


def test_a_directory_that_was_deleted_is_not_made_again() -> None:
    files = SimDisk(World(1), "host").mount()
    files.make_directory(PATH)
    batches = BatchFiles(files, PATH)
    files.remove_tree(PATH)
    with pytest.raises(FileNotFoundError, match="its directory is gone"):
        batches.add(1, 1, b"batch")
    assert not files.exists(PATH)
