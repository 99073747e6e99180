"""The internals of one log in a client, behind the public class `Log`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from loomlog.client.append.appender import Appender, Producer
from loomlog.client.append.delivery import Delivery
from loomlog.client.append.spin import Spinning
from loomlog.client.info import LogInfo, log_info
from loomlog.client.kv.checkpoints import Checkpoints
from loomlog.client.loglets.contract import Context
from loomlog.client.loglets.registry import Loglets
from loomlog.client.reader import Reader, TimeSearch
from loomlog.client.servers import CachedLog, Connections, Metadata
from loomlog.client.subscribe.log_pieces import LogPieces
from loomlog.client.subscribe.subscription import OpenSubscriptions
from loomlog.client.subscribe.with_archive import ArchivedLog
from loomlog.config import ClientSettings
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb


class Client(NamedTuple):
    """State shared by all logs of one client."""

    metadata: Metadata
    connections: Connections
    producer: Producer
    settings: ClientSettings
    rng: random.Random
    loop: asyncio.AbstractEventLoop
    spinning: Spinning
    subscriptions: OpenSubscriptions


class LogParts:
    """The services that make up one log: appender, reader, subscriptions, checkpoints, archive."""

    def __init__(self, name: str, client: Client, parts_of: Callable[[str], LogParts]) -> None:
        metadata, connections, producer, settings, rng, loop, spinning, subscriptions = client
        self.name = name
        self.metadata = metadata
        self.cached = cached = CachedLog(name, metadata)
        self.loglets = loglets = Loglets(
            Context(cached, metadata, connections, producer, settings, rng, loop, spinning)
        )
        delivery = Delivery(cached, settings, rng, loop, loglets.carriers())
        self.appender = Appender(name, delivery, producer, settings, loop)
        self.reader = Reader(cached, loglets, settings.request_timeout_s, rng)
        self.times = TimeSearch(name, loglets, settings.request_timeout_s, rng)
        self.checkpoints = Checkpoints(cached, loglets, metadata, rng, producer.now_us)
        self.archived = ArchivedLog(cached, loglets, metadata, rng)
        self.pieces = LogPieces(
            cached,
            loglets,
            self.archived,
            subscriptions,
            settings.read_ahead_bytes,
            self.head,
            lambda staging: parts_of(staging).pieces,
        )

    async def describe(self) -> LogInfo:
        return log_info(await self.loglets.fetch_with_tail())

    async def bounds(self) -> pb.Bounds:
        frame = pb.Frame(get_bounds=pb.GetBounds(name=self.name))
        return (await self.metadata.request(frame)).bounds

    async def head(self) -> Glsn:
        return (await self.bounds()).head

    async def tail(self) -> Glsn:
        return (await self.bounds()).tail

    async def trim(self, position: Glsn) -> None:
        """Trim the log itself, but not its staging log."""
        frame = pb.Frame(trim_log=pb.TrimLog(name=self.name, position=position))
        await self.metadata.request(frame)

    async def find_expired(self) -> Glsn:
        """Return the last position that retention and archive allow to trim; 0 if none."""
        request = pb.FindExpired(name=self.name)
        return (await self.metadata.request(pb.Frame(find_expired=request))).expired.position

    async def close(self) -> None:
        await self.appender.close()
        await self.loglets.close()
        await self.cached.close()
