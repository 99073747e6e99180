"""Up to which epochs a salvaged shard lost copies: never fewer than it did, and none that began
while it was closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from loomlog.core.copyset.losses import Closing, Closings
from loomlog.core.copyset.record import Epoch
from loomlog.types import LogId, ShardId

SHARD, LOG = 1, 7
SEEDS, STEPS = 200, 60


def test_what_began_while_a_shard_was_closed_is_not_lost() -> None:
    closings, closing = Closings(), Closing("a", 1)
    closings.note(SHARD, closing, {LOG: 3})
    closings.note(SHARD, closing, {LOG: 4})
    assert closings.lost_through(SHARD, closing, {LOG: 5, LOG + 1: 1}) == {LOG: 3}


@pytest.mark.parametrize("other", [Closing("a", 2), Closing("b", 1), Closing("a", 0)])
def test_another_closing_says_nothing(other: Closing) -> None:
    closings = Closings()
    closings.note(SHARD, Closing("a", 1), {LOG: 3})
    assert closings.lost_through(SHARD, other, {LOG: 5}) == {LOG: 5}


def test_a_shard_that_is_open_again_is_not_closed_any_more() -> None:
    closings, closing = Closings(), Closing("a", 1)
    closings.note(SHARD, closing, {LOG: 3})
    closings.note(SHARD, Closing("a", 0), {LOG: 4})
    assert closings.lost_through(SHARD, closing, {LOG: 5}) == {LOG: 5}


# ---- a shard and the metadata repository, by chance


@dataclass
class Registration:
    closing: Closing
    lost: bool


@dataclass
class World:
    """Epochs begin, a shard stores copies, is closed, salvaged and restarted, and registers; its
    requests and the answers may be lost."""

    random: Random
    resets: bool = True  # the number of a closing, when copies are taken again
    closings: Closings = field(default_factory=Closings)
    epoch: Epoch = 1
    lost_through: Epoch = 0  # as the metadata repository knows
    copies: set[Epoch] = field(default_factory=set)
    missing: set[Epoch] = field(default_factory=set)
    process: int = 1
    count: int = 0  # of closings in the process
    closing: int = 0
    is_open: bool = True
    unreported: bool = False
    joined: bool = False
    bounded: int = 0  # losses that spared an epoch

    def step(self) -> None:
        match self.random.randrange(8):
            case 0:
                self.epoch += 1
            case 1 | 2 if self.is_open and self.joined:
                self.copies.add(self.epoch)
            case 3 if self.is_open:
                self._close()
            case 4 if not self.is_open:
                self._open(salvaged=self.random.random() < 0.7)
            case 5 if self.random.random() < 0.3:
                self._restart()
            case 6 | 7:
                self._register()

    def _close(self) -> None:
        self.is_open = False
        if not self.closing:
            self.count += 1
            self.closing = self.count

    def _open(self, *, salvaged: bool) -> None:
        self.is_open = True
        if salvaged:
            self.missing |= {e for e in self.copies if self.random.random() < 0.7}
            self.unreported, self.joined = True, False
        elif self.resets and not self.unreported:
            self.closing = 0

    def _restart(self) -> None:
        self.process += 1
        self.count = self.closing = 0
        self.joined, self.is_open = False, True
        if self.random.random() < 0.7:
            self._close()

    def _register(self) -> None:
        sent = Registration(Closing(str(self.process), self.closing), self.unreported)
        if self.random.random() < 0.3:  # it is on its way
            if self.random.random() < 0.5:
                self.epoch += 1
            if not self.is_open:
                self._open(salvaged=True)
        if self.random.random() < 0.2:
            return
        newest = {LOG: self.epoch}
        if sent.lost:
            lost = self.closings.lost_through(SHARD, sent.closing, newest)[LOG]
            self.lost_through = max(self.lost_through, lost)
            self.bounded += lost < self.epoch
        else:
            self.closings.note(SHARD, sent.closing, newest)
        if self.random.random() < 0.2:
            return
        if sent.lost:
            self.unreported = False
            if self.resets:
                self.closing = 0
        if not self.unreported:
            self.joined = True
            assert max(self.missing, default=0) <= self.lost_through, "a loss is not known"


def explore(*, resets: bool = True) -> int:
    """Return how often an epoch was spared."""
    worlds = [World(Random(seed), resets) for seed in range(SEEDS)]
    for world in worlds:
        for _ in range(STEPS):
            world.step()
    return sum(world.bounded for world in worlds)


def test_every_loss_is_known_before_copies_are_taken_again() -> None:
    assert explore() > SEEDS / 4


def test_a_closing_that_lasts_while_copies_are_taken_hides_losses() -> None:
    with pytest.raises(AssertionError, match="not known"):
        explore(resets=False)


def test_what_was_noted_for_another_closing_hides_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost_through(
        self: Closings, shard: ShardId, closing: Closing, newest: Mapping[LogId, Epoch]
    ) -> Mapping[LogId, Epoch]:
        noted = self._noted.get(shard)
        return newest if noted is None else noted.newest

    monkeypatch.setattr(Closings, "lost_through", lost_through)
    with pytest.raises(AssertionError, match="not known"):
        explore()
