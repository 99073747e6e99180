"""A program that uses a log through the real client, and knows what was acknowledged."""

from __future__ import annotations

from scripted_node import PATIENCE_S

import loomlog
from loomlog.client.cluster import Cluster
from loomlog.types import Gap, Glsn

HOLE_S = 0.1  # in a test, a writer that does not write at once is gone


class LogUser:
    """A program that connects on first use."""

    def __init__(self, address: str, name: str = "events") -> None:
        self._address = address
        self._name = name
        self._client: Cluster | None = None
        self.acknowledged: dict[Glsn, bytes] = {}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def append(self, value: bytes, count: int = 1) -> Glsn:
        """Append it `count` times and return the first position."""
        log = (await self._connected()).log(self._name)
        found = [place.position for place in await log.append_many([value] * count)]
        self.acknowledged |= dict.fromkeys(found, value)
        return found[0]

    async def entries(self) -> dict[Glsn, bytes]:
        """The whole log."""
        log = (await self._connected()).log(self._name)
        tail = await log.tail()
        if tail < await log.head():
            return {}
        return {entry.position: entry.value async for entry in log.subscribe("earliest", tail)}

    async def lost(self) -> set[Glsn]:
        """The acknowledged positions that are said to be lost; all others must be read."""
        log = (await self._connected()).log(self._name)
        found: dict[Glsn, bytes] = {}
        gaps: list[Gap] = []
        async for item in log.subscribe("earliest", max(self.acknowledged), gaps=True):
            if not isinstance(item, Gap):
                found[item.position] = item.value
            elif item.kind == "dataloss":
                gaps.append(item)
        assert found.items() <= self.acknowledged.items()
        assert not any(gap.first <= position <= gap.last for gap in gaps for position in found)
        missing = self.acknowledged.keys() - found.keys()
        return {p for p in missing if any(gap.first <= p <= gap.last for gap in gaps)}

    async def _connected(self) -> Cluster:
        if self._client is None:
            self._client = await loomlog.connect(
                self._address, hole_timeout_s=HOLE_S, append_timeout_s=PATIENCE_S
            )
        return self._client
