"""Let nodes give another one the copies that it lacks, at an operator's request.

A released record is on all shards of its copyset. So a node compares what it has with the copies of
the other node, and stores there again what that one lacks.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from loomlog.core.copyset.log_state import holders
from loomlog.core.copyset.nodeset import node_of
from loomlog.errors import InvalidArgument, LoomError, Timeout
from loomlog.metadata.background import Background
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

WAIT_S: Final = 5.0  # less than a client waits for its answer
AGAIN_S: Final = 1.0  # until the remaining records are compared again
TRIES_MAX: Final = 10  # that fail or leave something, one after the other


class Synchroniser:
    """Compares the copies of nodes, one pair of nodes after the other for each loglet."""

    def __init__(self, epochs: EpochStore, background: Background) -> None:
        self._catalog, self._nodes = epochs.catalog, epochs.nodes
        self._epochs, self._background = epochs, background
        self._under_way: dict[tuple[LogId, NodeId, NodeId], asyncio.Future[str]] = {}

    async def sync(self, record: CopysetRecord, source: NodeId, target: NodeId) -> pb.Changed:
        stream, key = f"stream {record.stream_id}", (record.loglet, source, target)
        if key not in self._under_way:
            donors, receivers = self._check(record, source, target)
            if set(receivers).intersection(
                each.shard for each in self._epochs.rebuilt(record.loglet)
            ):
                return pb.Changed(
                    done=f"the copies of node {target} are being rebuilt already",
                    next="`loom node rebuild-status` shows how far that is",
                    finished=False,
                )
            self._under_way[key] = asyncio.get_running_loop().create_future()
            self._background.spawn(self._run(key, donors, receivers), "comparison of copies")
        try:
            async with asyncio.timeout(WAIT_S):
                problem = await asyncio.shield(self._under_way[key])
        except TimeoutError:
            return pb.Changed(
                done=f"node {source} gives node {target} the copies of {stream} that it lacks",
                next="the comparison continues; the same command shows when it is finished",
                finished=False,
            )
        if problem:
            return pb.Changed(
                done=f"node {target} may still lack copies of {stream}",
                next=f"{problem}: run the command again, or `loom stream scrub {record.stream_id}`",
                finished=True,
            )
        return pb.Changed(
            done=f"node {target} has every copy of {stream} that it shares with node {source}",
            next="`loom stream scrub` compares all nodes, and checks what is stored",
            finished=True,
        )

    def _check(
        self, record: CopysetRecord, source: NodeId, target: NodeId
    ) -> tuple[list[ShardId], list[ShardId]]:
        """Return the shards of both nodes that may have copies."""
        stream = f"stream {record.stream_id}"
        if source == target:
            raise InvalidArgument(
                f"node {source} cannot be filled from itself: name another source"
            )
        shards = sorted(holders(record.state))
        donors, receivers = ([s for s in shards if node_of(s) == node] for node in (source, target))
        if not donors:
            raise InvalidArgument(f"node {source} has no copies of {stream}: name another source")
        if not receivers:
            log = self._catalog.log_of(record)
            name = log.name if log else "LOG"
            raise InvalidArgument(
                f"node {target} is to have no copies of {stream}: `loom stream add {name} --nodes "
                f"{target}` stores new entries there"
            )
        if away := [n for n in (source, target) if not self._nodes.reachable(n)]:
            raise InvalidArgument(f"node {away[0]} is away: start it, or name another one")
        if not (there := [s for s in donors if self._nodes.can_ask(s)]):
            raise InvalidArgument(f"node {source} does not have its volumes: name another source")
        return there, receivers

    async def _run(
        self, key: tuple[LogId, NodeId, NodeId], donors: list[ShardId], receivers: list[ShardId]
    ) -> None:
        done, problem = self._under_way[key], "it was interrupted"
        try:
            problem = await self._compare(key[0], donors, receivers)
        finally:
            del self._under_way[key]
            done.set_result(problem)

    async def _compare(self, loglet: LogId, donors: list[ShardId], receivers: list[ShardId]) -> str:
        """Return why copies may still be missing; "" if none are."""
        left, tries, problem = list(donors), 0, ""
        while left and tries < TRIES_MAX:
            try:
                checked = await self._nodes.check(left[0], loglet, receivers, newest=True)
                problem = f"{checked.left} copies could not be made" if checked.left else ""
            except Timeout as error:
                if self._nodes.can_ask(left[0]):
                    continue  # another request waits for the same comparison
                problem = str(error)
            except LoomError as error:
                problem = str(error)
            if not problem:
                left.pop(0)
                tries = 0
                continue
            tries += 1
            await asyncio.sleep(AGAIN_S)
        if problem:
            logger.info("segment %d: %s", loglet, problem)
        return problem
