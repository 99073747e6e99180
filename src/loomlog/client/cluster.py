"""The client: a cluster and its logs.

One Cluster has one producer id, one connection per server, and one Log object per name. It lives
in one event loop and is not for several threads; `blocking.py` is.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

from loomlog import limits
from loomlog.client import moments
from loomlog.client.appender import Appender
from loomlog.client.archived import ArchivedLog
from loomlog.client.chained.spinning import CPUS_MIN, Spinning, usable_cpus
from loomlog.client.checkpoints import Checkpoints
from loomlog.client.info import ClusterStatus, LogInfo, cluster_status, log_info
from loomlog.client.leases import Leases
from loomlog.client.log import Log
from loomlog.client.metadata import CachedLog, Metadata
from loomlog.client.nodes import Connections
from loomlog.client.operator import Operator
from loomlog.client.orders import ORDERED, Order
from loomlog.client.outgoing import Producer
from loomlog.client.protocols import Protocols
from loomlog.client.publications import Publications
from loomlog.client.reader import Reader
from loomlog.client.registers import Registers
from loomlog.client.subscription import Subscription
from loomlog.client.time_search import TimeSearch
from loomlog.config import ClientSettings
from loomlog.errors import InvalidArgument, NotFound, Unavailable
from loomlog.net.address import split_address
from loomlog.staging_logs import staged_log, staging_name
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec

_SETTINGS = frozenset(field.name for field in fields(ClientSettings))
_COMPRESSIONS = ("none", "lz4", "zstd")
_RETRIES = ("exactly-once", "at-once")


async def connect(
    addresses: str | Iterable[str],
    *,
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.time,
    **settings: Any,
) -> Cluster:
    """Connect to a cluster by the address of its metadata repository, or several of them.

    `settings` are the fields of loomlog.config.ClientSettings. `rng` and `clock` (seconds since
    1970) are for simulations."""
    cluster = Cluster(parse_addresses(addresses), client_settings(settings), rng, clock)
    try:
        await cluster.reach()
    except BaseException:
        await cluster.close()
        raise
    return cluster


class Cluster(Operator, Registers, Leases):
    """A connection to a cluster; `async with` closes it."""

    def __init__(
        self,
        addresses: list[str],
        settings: ClientSettings,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._rng = rng or random.Random()
        self._loop = asyncio.get_running_loop()
        self._connections = Connections(Codec("client"), self._rng, settings.connect_timeout_s)
        self._metadata = Metadata(
            addresses, self._connections, self._rng, settings.request_timeout_s
        )
        self._producer = Producer(self._rng, clock)
        spin_s = settings.spin_s if usable_cpus() >= CPUS_MIN else 0.0
        self._spinning = Spinning(self._loop, spin_s)
        self._publications = Publications(
            self, self._connections, settings.append_timeout_s, self._rng, self._producer.now_us
        )
        self._logs: dict[str, Log] = {}
        self._subscriptions: dict[Subscription, None] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def reach(self) -> None:
        """Make sure that a metadata repository answers."""
        await self._metadata.reach()

    async def close(self) -> None:
        """Close all connections. Appends not yet answered fail, subscriptions end with an error."""
        if self._closed:
            return
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close(Unavailable("this client was closed"))
        for log in self._logs.values():
            await log.close()
        await self._connections.close()

    # ---- logs

    async def create_log(
        self,
        name: str,
        protocol: str = "ordered",
        streams: int = 1,
        replicas: int = 3,
        *,
        nodeset: int | None = None,
        retention: str | float | None = None,
    ) -> Log:
        """Make a new log; raises AlreadyExists. With `retention` ("7d", or seconds) entries go when
        they are so old; else they stay. Of protocol "copyset", entries lie on any `replicas` of the
        nodes of a nodeset, which has so many."""
        if staged_log(_check_name(name)) is not None:
            raise InvalidArgument(
                f"{name!r} is the name of a staging log, which is made when it is needed: choose "
                "another name"
            )
        if nodeset is not None:
            _check_count("nodeset", nodeset, limits.NODESET_MAX)
        return await self._create_log(
            name, protocol, streams, replicas, moments.retention_s(retention), nodeset or 0
        )

    async def make_staging_log(self, name: str, like: LogInfo) -> None:
        """A log for rows of another log that are not published yet. Part of writing there.

        Always `ordered`, which has the bandwidth, and whose tail never falls: from where on a
        writer may have staged something is told by the tail."""
        active = like.segments[-1]
        await self._create_log(name, ORDERED, active.streams, active.replicas)

    async def _create_log(
        self,
        name: str,
        protocol: str,
        streams: int,
        replicas: int,
        retention_s: int = 0,
        nodeset: int = 0,
    ) -> Log:
        _check_count("streams", streams, limits.STREAMS_PER_LOG_MAX)
        _check_count("replicas", replicas, limits.STREAMS_PER_LOG_MAX)
        request = pb.CreateLog(
            name=name,
            protocol=protocol,
            streams=streams,
            replicas=replicas,
            retention_s=retention_s,
            nodeset=nodeset,
        )
        await self._metadata.request(pb.Frame(create_log=request), repeatable=False)
        return self.log(name)

    def log(self, name: str) -> Log:
        """The log of this name; whether it exists shows when it is used."""
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = self._make_log(_check_name(name))
        return log

    async def logs(self) -> list[LogInfo]:
        answer = await self._metadata.request(pb.Frame(list_logs=pb.ListLogs()))
        return [log_info(log) for log in answer.log_list.logs]

    async def delete_log(self, name: str) -> None:
        """Delete a log, all its entries, its checkpoints, and what was staged for it."""
        log = self.log(name)
        log_id = (await log.cached.look()).log_id  # where it ends does not matter
        await self._delete_log(name)
        await log.forget_checkpoints(log_id)
        staging = staging_name(name)
        try:
            await self.log(staging).describe()
        except NotFound:
            return  # nothing was ever staged
        await self._publications.forget_writers(name)
        await self._delete_log(staging)

    async def _delete_log(self, name: str) -> None:
        frame = pb.Frame(delete_log=pb.DeleteLog(name=name))
        await self._metadata.request(frame, repeatable=False)

    async def status(self) -> ClusterStatus:
        answer = await self._metadata.request(pb.Frame(get_status=pb.GetStatus()))
        return cluster_status(answer.status)

    # ---- inside

    def _make_log(self, name: str) -> Log:
        importlib.import_module("loomlog.columns")  # loads Arrow: now, not in the first append
        cached = CachedLog(name, self._metadata)
        settings = self._settings
        ours = (self._connections, self._producer, settings, self._rng, self._loop)
        protocols = Protocols(cached, self._metadata, *ours, self._spinning)
        appender = Appender(cached, *ours, protocols.carriers())
        reader = Reader(
            cached,
            self._connections,
            settings.request_timeout_s,
            self._rng,
            protocols.finders(),
        )
        return Log(
            cached,
            self._metadata,
            appender,
            reader,
            self._subscribe,
            ArchivedLog(cached, self._metadata, self._rng),
            self._publications,
            protocols,
            TimeSearch(cached, self._connections, settings.request_timeout_s, self._rng),
            Checkpoints(cached, self._metadata, self._rng, self._producer.now_us),
        )

    def _subscribe(
        self,
        log: Log,
        order: Order,
        start: int | str,
        stop: int | None,
        *,
        read_ahead_bytes: int | None = None,
        gaps: bool = False,
        payloads: bool = True,
    ) -> Subscription:
        if self._closed:
            raise Unavailable("this client was closed")
        window_bytes = read_ahead_bytes or self._settings.read_ahead_bytes
        parts = log.protocols.parts(order, window_bytes, gaps=gaps, payloads=payloads)
        return Subscription(log.cached, parts, order, start, stop, self._subscriptions)


def parse_addresses(addresses: str | Iterable[str]) -> list[str]:
    """One address, several, or several in one string with commas."""
    given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = [address.strip() for address in given if address.strip()]
    if not found:
        raise InvalidArgument("no address given: write host:port, e.g. 127.0.0.1:7400")
    for address in found:
        split_address(address)
    return found


def client_settings(given: dict[str, Any]) -> ClientSettings:
    unknown = sorted(set(given) - _SETTINGS)
    if unknown:
        raise InvalidArgument(
            f"no setting {', '.join(unknown)}; there are {', '.join(sorted(_SETTINGS))}"
        )
    settings = ClientSettings(**given)
    if settings.compression not in _COMPRESSIONS:
        raise InvalidArgument(
            f"no compression {settings.compression!r}; use one of {', '.join(_COMPRESSIONS)}"
        )
    if settings.retry not in _RETRIES:
        raise InvalidArgument(f"no retry {settings.retry!r}; use one of {', '.join(_RETRIES)}")
    # Not more: a stream remembers only so many batches of a producer to recognise repeats.
    _check_count(
        "appends_in_flight_max", settings.appends_in_flight_max, limits.APPENDS_IN_FLIGHT_MAX
    )
    return settings


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a log's name is a text that is not empty, not {name!r}")
    return name


def _check_count(what: str, count: object, most: int) -> None:
    if not isinstance(count, int) or not 1 <= count <= most:
        raise InvalidArgument(f"{what} must be a number from 1 to {most}, not {count!r}")
