"""Random requests to every operation of the HTTP API: none is a bug, none that is refused changes
anything."""

from __future__ import annotations

import pytest
from live_console import fuzz_own_console


@pytest.mark.timeout(240)
async def test_a_console_outlasts_random_requests() -> None:
    outcome = await fuzz_own_console(seed=1, count=400)
    assert outcome.wrong == []
    assert outcome.refused > 100
