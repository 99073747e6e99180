"""A copyset log whose readers start again and again while nodes are gone and records are copied."""

from __future__ import annotations

from copyset_harm import COPY_AGAIN, LOSE_DISK
from copyset_world import CopysetWorld


class CopiedWorld(CopysetWorld):
    """More disks are lost than there are copies of some records."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, disaster=True)
        self._harm.often[LOSE_DISK], self._harm.often[COPY_AGAIN] = 8, 12

    def _read_in_trouble(self) -> None:
        for _ in range(4):
            super()._read_in_trouble()
            self._calm_down()
            self.settle()
