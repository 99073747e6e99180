"""Moves replicas to other volumes of their node, while they are in use.

Files that no longer change are copied first. Then the replica seals itself. When the metadata
repository has sealed the stream, the rest is copied before the seal is answered; then the stream
runs again.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from loomlog.errors import LoomError, Unavailable
from loomlog.node.disks import Disks
from loomlog.node.ordered.replica import ReplicaDriver
from loomlog.node.ordered.stores import StreamStores
from loomlog.node.volume import describe
from loomlog.types import ReplicaState, StreamId

logger = logging.getLogger(__name__)

AGAIN_S: Final = 60.0  # before a failed move may be tried again


class ReplicaMover:
    """Moves replicas, one after the other."""

    def __init__(self, stores: StreamStores, disks: Disks) -> None:
        self._stores = stores
        self._disks = disks
        self._loop = asyncio.get_running_loop()
        self._one_by_one = asyncio.Lock()
        self._moves: dict[StreamId, asyncio.Task[None]] = {}
        self._failed: dict[StreamId, tuple[float, str]] = {}  # when, and why

    def begin(self, driver: ReplicaDriver) -> None:
        """Begin to move a replica, unless it is moving already. Raise Unavailable if it cannot be
        moved now."""
        stream_id = driver.stream_id
        if stream_id in self._moves:
            return
        failed_at, why = self._failed.get(stream_id, (0.0, ""))
        if why and self._loop.time() < failed_at + AGAIN_S:
            raise Unavailable(f"stream {stream_id} could not be moved: {why}")
        path = self._stores.place_elsewhere(driver.store)
        self._moves[stream_id] = self._loop.create_task(self._move(driver, path))

    async def end(self, driver: ReplicaDriver) -> None:
        """Abort the move of a replica that leaves, if there is one."""
        if (move := self._moves.get(driver.stream_id)) is not None:
            async with driver.sealing:  # let a switch that has begun finish
                move.cancel()
                await asyncio.wait((move,))

    async def _move(self, driver: ReplicaDriver, path: str) -> None:
        stream_id, source = driver.stream_id, driver.store.path
        try:
            async with self._one_by_one:
                await self._copy_and_switch(driver, path)
            self._failed.pop(stream_id, None)
            logger.info("stream %d moved from %s to %s", stream_id, source, path)
        except (LoomError, OSError) as error:
            self._failed[stream_id] = self._loop.time(), describe(error)
            logger.warning("stream %d did not move to %s: %s", stream_id, path, error)
        finally:
            driver.when_sealed = None
            del self._moves[stream_id]
            self._stores.drop_copy(path)

    async def _copy_and_switch(self, driver: ReplicaDriver, path: str) -> None:
        renewals = driver.renewals
        early = await self._stores.copy_early(driver.store, path)
        moved = self._loop.create_future()

        async def switch() -> None:
            driver.when_sealed = None
            unchanged = early if driver.renewals == renewals else set()
            relocate = partial(self._stores.relocate, driver.store, path, unchanged)
            try:
                await driver.relocate(relocate, self._disks.volume_of(path))
            except LoomError as error:
                moved.set_exception(error)
            else:
                moved.set_result(None)

        driver.when_sealed = switch
        async with driver.sealing:
            if driver.core.state is ReplicaState.SEALED:
                await switch()
        driver.fail("it moves to another volume")
        await moved
