"""Random and damaged frames to every server: they go on, and no frame is a bug of theirs."""

from __future__ import annotations

import pytest
from live_servers import fuzz_servers


@pytest.mark.parametrize("metadata", [1, 3])
async def test_servers_outlast_random_frames(metadata: int) -> None:
    outcome = await fuzz_servers(2, connections=60, metadata=metadata)
    assert outcome.problems == []
