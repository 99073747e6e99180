"""Volumes that failed when their node started. The node runs without them, as if they were missing.

They are checked periodically. When one works again, the node has to be restarted, because the data
on all volumes is compared only at a start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from loomlog import limits
from loomlog.core.conditions import Condition, Kind
from loomlog.node.workers import off_loop
from loomlog.storage.files import Worker
from loomlog.storage.volumes import Volumes
from loomlog.types import NodeId

logger = logging.getLogger(__name__)


class FailedVolumes:
    """The volumes that failed when a node was started."""

    def __init__(self, opened: Volumes, new_worker: Callable[[], Worker], node_id: NodeId) -> None:
        self._opened = opened
        self._new_worker = new_worker
        self._node_id = node_id
        self._tasks: list[asyncio.Task[None]] = []
        self.recovered: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # its name

    def start(self) -> None:
        for volume, reason in self._opened.failed.items():
            logger.error("volume %s failed: %s; what it has is not served", volume, reason)
            watching = self._watch(volume, self._new_worker())  # each its own: one may hang
            self._tasks.append(asyncio.get_running_loop().create_task(watching))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def names(self) -> set[str]:
        """The failed volumes that were not given up."""
        return set(self._opened.missing.values()).intersection(self._opened.failed)

    @property
    def conditions(self) -> list[Condition]:
        command = f"`loom node replace {self._node_id} --volume"
        return [
            Condition(
                Kind.VOLUME_FAILED,
                f"volume {name} failed: {self._opened.failed[name]}",
                "make it readable and writable, and the node uses it again; if its disk is lost, "
                f"run {command} {name}`",
                volume=name,
            )
            for name in sorted(self.names)
        ]

    async def _watch(self, volume: str, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        failed_at_s = loop.time()
        while loop.time() < failed_at_s + limits.VOLUME_FAILED_S:
            await asyncio.sleep(limits.VOLUME_LOOK_FAILED_S)
            if not await off_loop(worker, partial(self._opened.look_again, volume)):
                failed_at_s = loop.time()
        if not self.recovered.done():
            self.recovered.set_result(volume)
