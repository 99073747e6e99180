"""Runs a storage node in a process, and restarts it when a failed volume works again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from loomlog.cli.processes.server_process import keep_private
from loomlog.config import NodeSettings
from loomlog.errors import LoomError
from loomlog.net.address import split_address
from loomlog.node import StorageNode

log = logging.getLogger(__name__)


class ServedNode:
    """Serves a storage node; it has started once the metadata repository has registered it."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self.node = StorageNode(settings)
        self._runs = False
        self._changing = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._start()
        try:
            await self.node.registered()
        except BaseException:
            await self.node.stop()
            raise
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[LoomError] = (
            loop.create_future()
        )  # the reason why it cannot continue
        self._watching = loop.create_task(self._watch())

    async def stop(self) -> None:
        async with self._changing:
            if self._watching is not None:
                self._watching.cancel()
            if self._runs:
                await self._stop()

    async def _start(self) -> None:
        keep_private(found for each in self._settings.volumes for found in _directories(each))
        await self.node.start()
        self._runs = True
        self.node.held_back.add_done_callback(self._say_held_back)

    async def _stop(self) -> None:
        self._runs = False
        await self.node.hand_over()
        await self.node.stop()

    async def _watch(self) -> None:
        try:
            while True:
                node = self.node
                events: list[asyncio.Future[Any]] = [node.failed, node.recovered]
                await asyncio.wait(events, return_when="FIRST_COMPLETED")
                if node.failed.done():
                    raise node.failed.result()
                async with self._changing:
                    log.warning("starts again: volume %s works again", node.recovered.result())
                    await self._start_again()
        except (LoomError, OSError) as error:
            self.failed.set_result(error if isinstance(error, LoomError) else LoomError(str(error)))

    async def _start_again(self) -> None:
        """Start with the same addresses, even if the system chose their ports."""
        old, settings = self.node, replace(self._settings, error_if_exists=False)
        if not split_address(settings.listen)[1]:
            settings = replace(settings, listen=old.listening)
        if settings.http is not None and not split_address(settings.http)[1]:
            settings = replace(settings, http=old.http_address)
        await self._stop()
        self.node = StorageNode(settings, audit=old.audit)
        await self._start()

    def _say_held_back(self, why: asyncio.Future[str]) -> None:
        """Notify the parent process, which otherwise waits for the ready line."""
        if not why.cancelled():
            line = {"ready": False, "pid": os.getpid(), "address": self.node.address}
            print(json.dumps({**line, "held_back": why.result()}), flush=True)


def _directories(volume: str) -> list[Path]:
    """Return the directories of clusters on a volume; none if it cannot be read."""
    try:
        return list(Path(volume).glob("cid=*"))
    except OSError:
        return []  # the node reports the problem
