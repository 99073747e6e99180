"""A bound on the rate of background work."""

from __future__ import annotations

import asyncio


class Throttle:
    """Lets so many bytes a second pass; 0: all of them."""

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Wait until what was taken before has been paid for."""
        if not self.bytes_per_s:
            return
        now_s = asyncio.get_running_loop().time()
        free_at_s = max(self._free_at_s, now_s)
        self._free_at_s = free_at_s + count / self.bytes_per_s
        await asyncio.sleep(free_at_s - now_s)
