"""Random and damaged frames to every server: they go on, and no frame is a bug of theirs."""

from __future__ import annotations

import pytest
from live_servers import fuzz_servers


@pytest.mark.parametrize(("metadata", "secure"), [(1, False), (3, False), (1, True)])
async def test_servers_outlast_random_frames(metadata: int, secure: bool) -> None:
    outcome = await fuzz_servers(2, connections=60, metadata=metadata, secure=secure)
    assert outcome.problems == []
