"""An `ordered` log as a loglet (core/loglet.py): sealed stream by stream, tail from the rounds.

The metadata repository decides what is committed, so once every stream is sealed there the tail
cannot move any more, whatever the replicas do or miss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from loomlog.client.info import LogInfo
from loomlog.client.log import Log
from loomlog.client.operator import Operator
from loomlog.core.loglet import Tail
from loomlog.types import Buffer, Entry, Glsn, ReplicaState

LOOK_S: Final = 0.05  # how often, while streams are being sealed


class OrderedLoglet:
    """All streams of one log."""

    def __init__(self, log: Log, operator: Operator) -> None:
        self._log = log
        self._operator = operator

    async def append(self, values: Sequence[Buffer]) -> Glsn:
        """Sealed only after the client's append timeout: a stream might yet be unsealed."""
        return (await self._log.append_many(values))[0].position

    async def read(self, position: Glsn) -> Entry:
        return await self._log.read(position)

    async def tail(self) -> Tail:
        info = await self._log.describe()
        return Tail(info.tail, _is_sealed(info))

    async def trim(self, position: Glsn) -> None:
        await self._log.trim(position)

    async def seal(self) -> Glsn:
        while not _is_sealed(info := await self._log.describe()):
            running = [s.id for s in info.streams if s.state == ReplicaState.RUNNING]
            await asyncio.gather(*map(self._operator.seal_stream, running))
            await asyncio.sleep(0 if running else LOOK_S)
        return info.tail


def _is_sealed(info: LogInfo) -> bool:
    return all(stream.state == ReplicaState.SEALED for stream in info.streams)
