"""An operator who changes the cluster while everything else happens, at random, and never waits
for one thing to be finished before asking for the next.

Much of what such an operator asks is refused: `LEGAL` is how a cluster may say no. In the end all
is put right: every stream is wanted running, no node is drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from loomlog.client.cluster import Cluster
from loomlog.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    LoomError,
    NotFound,
    Retryable,
    RolledBack,
    SwapUnknown,
)
from loomlog.types import NodeId
from loomlog.wire.info import StreamInfo

PAUSES_MAX_S: Final = (0.1, 0.5)
STREAMS_MAX: Final = 5  # more would only make runs slow
REPLICAS_MAX: Final = 4
LEGAL: Final = (
    Retryable,
    InvalidArgument,
    NotFound,
    AlreadyExists,
    Conflict,
    SwapUnknown,
    RolledBack,
)
LEGAL_WORDS: Final = (
    "appends wait until its switch is finished",
    "may or may not have been carried out",
    "the disk failed",
)
ACTIONS: Final = (
    *("add stream", "move", "move", "move", "seal", "unseal", "flip", "flip", "flip"),
    *("add replica", "add replica", "unregister", "unregister", "remove stream"),
    *("drain", "drain", "undrain", "undrain", "clean up", "scrub"),
)
NODE_ACTIONS: Final = ("drain", "undrain", "clean up")


class RestlessOperator:
    """Changes one log until the faults are over."""

    def __init__(self, cluster: Cluster, log: str, nodes: int, random: Random) -> None:
        self._cluster = cluster
        self._log = log
        self._nodes = nodes  # their ids are the numbers from 1 on
        self._random = random
        self._pause_max_s = random.choice(PAUSES_MAX_S)

    async def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await asyncio.sleep(self._random.random() * self._pause_max_s)
            await self._tolerating(self._change_something())
        while not await self._tolerating(self._put_right()):  # noqa: ASYNC110 - it can only be tried
            await asyncio.sleep(0.1)

    async def _tolerating(self, change: Awaitable[None]) -> bool:
        """Return False if the change was refused or its outcome is unknown."""
        try:
            await change
        except LEGAL:
            return False
        except LoomError as error:
            if not any(words in str(error) for words in LEGAL_WORDS):
                raise
            return False
        return True

    async def _change_something(self) -> None:
        action = self._random.choice(ACTIONS)
        log = await self._cluster.log(self._log).describe()
        stream = self._random.choice(log.streams)
        if action in NODE_ACTIONS:
            await self._change_node(action, self._node())
        else:
            await self._change_stream(action, stream, streams=len(log.streams))

    def _node(self) -> NodeId:
        return self._random.randint(1, self._nodes)

    async def _change_stream(self, action: str, stream: StreamInfo, *, streams: int) -> None:
        cluster, random = self._cluster, self._random
        holder = random.choice(stream.replicas).node
        target = random.choice((None, self._node()))
        match action:
            case "add stream" if streams < STREAMS_MAX:
                await cluster.add_stream(self._log)
            case "move":
                await cluster.move_stream(stream.id, holder, target)
            case "seal":
                await cluster.seal_stream(stream.id)
            case "unseal":
                await cluster.unseal_stream(stream.id)
            case "flip":  # clients meet another epoch before they hear of it
                await cluster.seal_stream(stream.id)
                await cluster.unseal_stream(stream.id)
            case "add replica" if len(stream.replicas) < REPLICAS_MAX:
                await cluster.add_replica(stream.id, target)
            case "unregister":
                await cluster.unregister_replica(stream.id, holder)
            case "remove stream":
                await cluster.remove_stream(stream.id)
            case "scrub":
                await cluster.scrub_stream(stream.id)

    async def _change_node(self, action: str, node: NodeId) -> None:
        match action:
            case "drain":
                await self._cluster.drain_node(node)
            case "undrain":
                await self._cluster.undrain_node(node)
            case "clean up":
                await self._cluster.cleanup_node(node)

    async def _put_right(self) -> None:
        status = await self._cluster.status()
        for node in status.nodes:
            await self._cluster.undrain_node(node.id)
        active = {log.segments[-1].id for log in status.logs}
        for stream in (stream for log in status.logs for stream in log.streams):
            is_active = stream.segment in active and not stream.removing
            if is_active and stream.protocol == "ordered":
                await self._cluster.unseal_stream(stream.id)
