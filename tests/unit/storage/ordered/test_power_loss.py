"""Random work on a simulated disk that loses power between any two steps, many times over.

All acknowledged data must be there afterwards, nothing may look damaged, and truncated or trimmed
data must not reappear.
"""

from __future__ import annotations

import random

import pytest
from storage_rig import SMALL, StorageRig

from loomlog.errors import Trimmed
from loomlog.storage.files import Step
from loomlog.testing.sim.disk import SimDisk
from loomlog.testing.sim.world import World


class PowerLoss(Exception):  # noqa: N818 - an event, not an error
    pass


class Story:
    """One replica through many lives."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimDisk(World(seed), "host")
        files = self.disk.mount()
        files.make_directory("/volume")
        files.sync_directory("/")
        self.epoch = 0
        self.acknowledged = 0  # LLSN
        self.stored_high_watermark = 0
        self.trimmed = 0
        self.positions: dict[int, int] = {}  # LLSN to GLSN, as committed
        self.open()

    def open(self) -> None:
        self.epoch += 1
        self.rig = StorageRig("/volume/lsid=7", SMALL, self.disk.mount())
        self.uncommitted = self.rig.store.context.uncommitted_begin
        self.high_watermark = self.rig.store.context.high_watermark

    def live(self) -> None:
        """Work until the power goes."""
        try:
            for _ in range(self.random.randrange(60)):
                self.act()
        except PowerLoss:
            pass
        self.disk.crash()
        self.open()
        self.check()

    def act(self) -> None:
        action = self.random.random()
        if action < 0.4:
            sizes = [self.random.choice((10, 300, 2000, 9000)) for _ in range(3)]
            self.append(*sizes[: self.random.randint(1, 3)])
        elif action < 0.6:
            self.commit()
        elif action < 0.65 and self.high_watermark:
            self.trim(self.random.randint(1, self.high_watermark))
        elif action < 0.7:
            self.truncate()
        else:
            self.work()

    def append(self, *sizes: int) -> None:
        last, epoch = self.rig.store.last_llsn + len(sizes), self.epoch

        def done(error: BaseException | None) -> None:
            assert error is None
            if epoch == self.epoch:  # else it is being cut off again
                self.acknowledged = max(self.acknowledged, last)

        self.rig.append(*sizes, epoch=self.epoch, done=done)

    def commit(self) -> None:
        """Commit only what is stored."""
        length = self.random.randint(0, max(0, self.acknowledged + 1 - self.uncommitted))
        glsn = self.high_watermark + self.random.randint(1, 3)
        self.high_watermark = glsn + length
        for number in range(length):
            self.positions[self.uncommitted + number] = glsn + number
        self.uncommitted += length
        high_watermark = self.high_watermark

        def done(error: BaseException | None) -> None:
            assert error is None
            self.stored_high_watermark = max(self.stored_high_watermark, high_watermark)

        self.rig.commit(glsn, length, high_watermark=high_watermark, epoch=self.epoch, done=done)

    def trim(self, glsn: int) -> None:
        def done(error: BaseException | None) -> None:
            assert error is None
            self.trimmed = max(self.trimmed, glsn)

        self.rig.store.trim(glsn, done)

    def truncate(self) -> None:
        """Drop everything that is not committed, as a seal does."""
        keep = self.uncommitted - 1
        self.acknowledged = min(self.acknowledged, keep)
        self.epoch += 1
        truncated: list[BaseException | None] = []
        self.rig.store.truncate(keep, truncated.append)
        while not truncated:
            self.work()
        assert truncated == [None]
        assert self.rig.store.last_llsn == keep

    def work(self) -> None:
        if not self.rig.worker.jobs:
            self.rig.clock.ring()
        if self.rig.worker.jobs:
            steps, finished = self.rig.worker.jobs.popleft()
            for step in steps:
                self.step(step)
            finished(None)

    def step(self, step: Step) -> None:
        if self.random.random() < 0.02:
            raise PowerLoss
        step()

    def check(self) -> None:
        store, context = self.rig.store, self.rig.store.context
        assert not context.damaged
        assert store.last_llsn >= self.acknowledged
        assert self.high_watermark >= self.stored_high_watermark
        assert store.meta.trimmed_glsn >= self.trimmed
        self.trimmed = store.meta.trimmed_glsn
        self.acknowledged = store.last_llsn
        for llsn in range(1, self.uncommitted):
            glsn = self.positions[llsn]
            if glsn <= self.trimmed:
                with pytest.raises(Trimmed):
                    store.read(llsn, llsn, 1)
            else:
                chunk = store.read(llsn, llsn, 1)
                assert chunk.first_llsn == llsn
                assert chunk.first_glsn == glsn


@pytest.mark.parametrize("seed", range(60))
def test_what_was_acknowledged_survives_power_loss(seed: int) -> None:
    story = Story(seed)
    for _ in range(8):
        story.live()


class Killed(Exception):  # noqa: N818 - an event, not an error
    pass


@pytest.mark.parametrize("change", range(1, 60))
def test_what_a_killed_process_left_unsynced_is_relied_on_only_once_it_holds(change: int) -> None:
    """The process is killed at any change, another one continues, and then the power fails, too."""
    disk = SimDisk(World(change), "host")
    disk.mount().make_directory("/volume")
    disk.mount().sync_directory("/")

    def kill() -> None:
        raise Killed

    disk.strike_after(change, kill)
    try:
        begun = StorageRig("/volume/lsid=7", SMALL, disk.mount())
        begun.append(300, 300)
        begun.settle()
        begun.commit(1, 2)
        begun.settle()
    except Killed:
        pass
    disk.strike_after(0, None)

    rig = StorageRig("/volume/lsid=7", SMALL, disk.mount())
    rig.append(10)
    rig.settle()
    last = rig.store.last_llsn
    first = rig.store.context.uncommitted_begin
    rig.commit(first, last + 1 - first)
    rig.settle()
    assert set(rig.answers) == {None}
    disk.crash()
    after = StorageRig("/volume/lsid=7", SMALL, disk.mount()).store
    assert not after.context.damaged
    assert after.context.uncommitted_begin == last + 1
