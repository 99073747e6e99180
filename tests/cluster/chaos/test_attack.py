"""A short `make attack`: a few faults at once, for every protocol, on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack import PROTOCOLS, Episode

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_nothing_is_lost_doubled_or_moved_under_attack(tmp_path: Path, protocol: str) -> None:
    episode = Episode(protocol, metadata=1, seed=7, waves=3, losses=1)
    await episode.run(tmp_path)
    assert episode.acked > 0
    assert episode.faults["lose"] == 1
