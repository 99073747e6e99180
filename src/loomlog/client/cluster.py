"""The public class Cluster, and `connect`.

A Cluster has one producer id, one connection per server, and one Log object per name. It belongs to
one event loop and is not thread-safe; the blocking client (client/blocking) is.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Self, TypeVar, Unpack, overload

from loomlog import limits, protocol_names
from loomlog.client.access import AccessControl
from loomlog.client.append.appender import Producer
from loomlog.client.append.spin import CPUS_MIN, Spinner, usable_cpus
from loomlog.client.arguments import (
    check_count,
    check_flag,
    check_name,
    check_number,
    check_seconds,
    check_text,
    is_int,
    retention_s,
    timestamp_us,
)
from loomlog.client.arguments import retention_bytes as bytes_kept
from loomlog.client.coded_log import CodedLog
from loomlog.client.context import Client
from loomlog.client.kv.leases import Leases
from loomlog.client.kv.registers import Registers
from loomlog.client.log import Log
from loomlog.client.log_parts import LogParts
from loomlog.client.operator import Operator
from loomlog.client.publish.publications import Publications
from loomlog.client.servers import Connections, Metadata
from loomlog.client.settings import ClientOptions, checked_settings
from loomlog.client.subscribe.subscription import OpenSubscriptions
from loomlog.client.transactions.transaction import Transaction
from loomlog.codecs import Codec
from loomlog.config import ClientSettings
from loomlog.core.permissions import Verb
from loomlog.core.transactions import DECISIONS_LOG
from loomlog.errors import AlreadyExists, InvalidArgument, LoomError, NotFound, Unavailable, shown
from loomlog.net.address import split_address
from loomlog.net.credentials import Credentials
from loomlog.staging_logs import staged_log, staging_name
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec as WireCodec
from loomlog.wire.events import EventInfo, event_info
from loomlog.wire.info import ClusterStatus, LogInfo, cluster_status, log_info

T = TypeVar("T")


async def connect(
    addresses: str | Iterable[str],
    *,
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.time,
    **settings: Unpack[ClientOptions],
) -> Cluster:
    """Connect to a cluster and return it; use it with `async with`, or call its `close`.

    `addresses` are those of one or more of its metadata repositories: "host:port", several
    separated by commas, or an iterable of them. `settings` are the fields of
    loomlog.config.ClientSettings, and `token_file`. `rng` and `clock` (seconds since 1970) replace
    randomness and time in simulations.

    Raise InvalidArgument for an invalid address or setting, Unavailable or Timeout if no metadata
    repository answers, Unauthorized if the cluster rejects the certificate or token."""
    cluster = Cluster(parse_addresses(addresses), checked_settings(settings), rng, clock)
    try:
        await cluster.reach()
    except BaseException:
        await cluster.close()
        raise
    return cluster


class Cluster(Operator, AccessControl, Registers, Leases):
    """A connection to a cluster, as returned by `connect`. An async context manager that closes it
    on exit.

    All methods raise InvalidArgument for an invalid argument, PermissionDenied if the caller lacks
    a permission, and a Retryable error (Timeout, Unavailable, …) if servers did not answer in time.
    """

    def __init__(
        self,
        addresses: list[str],
        settings: ClientSettings,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
        role: str = "client",
    ) -> None:
        """`role` is the role of this process; servers use a client to write their audit trail."""
        self._rng = rng = rng or random.Random()  # noqa: S311 - delays, choices, ids; no secrets
        loop = asyncio.get_running_loop()
        codec = WireCodec(role, token=settings.token, credentials=Credentials.chosen(settings.tls))
        self._connections = Connections(codec, rng, settings.connect_timeout_s)
        self._metadata = Metadata(addresses, self._connections, rng, settings.request_timeout_s)
        self._client = Client(
            metadata=self._metadata,
            connections=self._connections,
            producer=Producer(rng, clock),
            settings=settings,
            rng=rng,
            loop=loop,
            spinning=Spinner(loop, settings.spin_s if usable_cpus() >= CPUS_MIN else 0.0),
            subscriptions=OpenSubscriptions(),
        )
        self._publications = Publications(self._client, self._parts_of, self._make_staging_log)
        self._logs: dict[str, Log] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def reach(self) -> None:
        """Connect to a metadata repository; raise an error if none answers."""
        await self._metadata.reach()

    async def close(self) -> None:
        """Close all connections. Pending appends fail, and subscriptions end with an error. Calling
        it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._client.subscriptions.close()
        await asyncio.gather(*(log._parts.close() for log in self._logs.values()))
        await self._metadata.close()
        await self._connections.close()

    # ---- logs

    async def create_log(
        self,
        name: str,
        protocol: str = protocol_names.DEFAULT,
        streams: int = 1,
        replicas: int = 3,
        *,
        min_replicas: int | None = None,
        nodeset: int | None = None,
        retention: str | float | None = None,
        retention_bytes: str | int | None = None,
        compression: str = "none",
        exist_ok: bool = False,
        first_position: Glsn = 1,
    ) -> Log:
        """Create a log and return it. Raise AlreadyExists if there is a log of this name; with
        `exist_ok`, return that log, whatever its settings are.

        - `protocol`: "ordered", "chained" or "copyset"; docs/protocols.md helps you choose.
        - `streams`: how many streams share the appends of the log.
        - `replicas`: the number of copies of each entry.
        - `min_replicas`: with fewer live nodes than `replicas`, appends continue on the remaining
          ones, down to this number, and the missing copies are made later. Default: one less than
          `replicas`, but at least 2 if there are several.
        - `nodeset`: for "copyset" only: the number of nodes, of which any `replicas` store an
          entry. Default: up to 20.
        - `retention`: delete entries that are older: a duration such as "7d", seconds, or None.
        - `retention_bytes`: delete old entries while the newer ones have at least this size: a
          size such as "10G", bytes, or None.
        - `compression`: "none", "lz4" or "zstd", for clients without a `compression` of their own.
        - `first_position`: the position of the first entry; the log looks as if all before it had
          been trimmed.

        Raise InvalidArgument if the cluster cannot create such a log, e.g. because it has fewer
        nodes than `replicas`."""
        if staged_log(check_name("a log's name", name)) is not None:
            raise InvalidArgument(
                f"{name!r} is the name of a staging log, which is created when needed: choose "
                "another name"
            )
        check_flag("exist_ok", exist_ok)
        check_text("protocol", protocol)
        check_count("streams", streams, limits.STREAMS_PER_LOG_MAX)
        check_count("replicas", replicas, limits.STREAMS_PER_LOG_MAX)
        if nodeset is not None:
            check_count("nodeset", nodeset, limits.NODESET_MAX)
        if min_replicas is not None:
            check_count("min_replicas", min_replicas, replicas)
        check_number("first_position", first_position)
        request = pb.CreateLog(
            name=name,
            protocol=protocol,
            streams=streams,
            replicas=replicas,
            retention_s=retention_s(retention),
            retention_bytes=bytes_kept(retention_bytes),
            nodeset=nodeset or 0,
            min_replicas=min_replicas or 0,
            first_position=first_position,
            compression=check_text("compression", compression),
        )
        try:
            return await self._create_log(request)
        except AlreadyExists:
            if exist_ok:
                return self.log(name)
            raise

    async def make_staging_log(self, log: str, first_position: Glsn) -> None:
        """Create the staging log of a restored log, so that no staged row gets a position that was
        used before. For backups only: otherwise staging logs are created when they are needed."""
        check_number("first_position", first_position)
        like = await self.log(log).describe()
        await self._make_staging_log(staging_name(log), like, first_position)

    async def _make_staging_log(self, name: str, like: LogInfo, first_position: Glsn = 1) -> None:
        """Create a staging log with the settings of log `like`. Writers remember its tail as the
        first position where they may have staged rows, so its protocol must never lower the tail.
        """
        active = like.segments[-1]
        request = pb.CreateLog(
            name=name,
            protocol=protocol_names.STAGING,
            streams=active.streams,
            replicas=active.replicas,
            min_replicas=active.min_replicas if active.min_replicas > 1 else 0,
            first_position=first_position,
            compression=active.compression,
        )
        await self._create_log(request)

    async def _create_log(self, request: pb.CreateLog) -> Log:
        await self._metadata.request(pb.Frame(create_log=request), repeatable=False)
        return self.log(request.name)

    @overload
    def log(self, name: str, codec: None = None) -> Log: ...

    @overload
    def log(self, name: str, codec: Codec[T]) -> CodedLog[T]: ...

    def log(self, name: str, codec: Codec[T] | None = None) -> Log | CodedLog[T]:
        """Return a handle for the log of this name, without checking that the log exists.

        With a `codec` (see loomlog.codecs), values are objects instead of bytes."""
        log = self._log(name)
        return log if codec is None else CodedLog(log, codec)

    def _log(self, name: str) -> Log:
        log = self._logs.get(check_name("a log's name", name))
        if log is None:
            if self._closed:
                raise Unavailable("this client was closed")
            importlib.import_module("loomlog.columns")  # load Arrow before the first append
            parts = LogParts(name, self._client, self._parts_of)
            log = self._logs[name] = Log(parts, self._publications)
        return log

    def _parts_of(self, name: str) -> LogParts:
        return self._log(name)._parts

    def transaction(self, *, timeout_s: float | None = None) -> Transaction:
        """Return a transaction, whose entries become visible in all their logs or in none, as in
        `async with cluster.transaction() as t: t.append("orders", a); t.append("audit", b)`.

        `timeout_s` limits the commit (default: `append_timeout_s` of `connect`)."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, 0.001)
        timeout_s = self._client.settings.append_timeout_s if timeout_s is None else timeout_s
        return Transaction(self._client, self._parts_of, self._decisions_log, timeout_s)

    async def _decisions_log(self) -> LogParts:
        parts = self._parts_of(DECISIONS_LOG)
        try:
            await parts.cached.cached()
        except NotFound:
            try:
                await self._make_decisions_log()
            except LoomError as error:
                if type(error) is not LoomError:
                    raise
                raise Unavailable(f"nothing was appended: {error}") from error
        return parts

    async def _make_decisions_log(self) -> None:
        for replicas in range(limits.DECISION_REPLICAS, 0, -1):
            try:
                await self.create_log(
                    DECISIONS_LOG, protocol_names.DECISIONS, replicas=replicas, exist_ok=True
                )
                return
            except InvalidArgument:  # the cluster has fewer nodes
                if replicas == 1:
                    raise

    async def logs(self) -> list[LogInfo]:
        """Return descriptions of all logs of the cluster, including staging logs."""
        answer = await self._metadata.request(pb.Frame(list_logs=pb.ListLogs()))
        return [log_info(log) for log in answer.log_list.logs]

    async def delete_log(self, name: str) -> None:
        """Delete a log with its entries, checkpoints, groups, queues and staged rows; raise
        NotFound if there is no such log."""
        parts = self._parts_of(name)
        log_id = (await parts.cached.fetch(Verb.DELETE)).log_id
        await self._delete_log(name)
        await parts.checkpoints.forget(log_id)
        await parts.groups.forget(log_id)
        await parts.queues.forget(log_id)
        staging = staging_name(name)
        try:
            await self._parts_of(staging).describe()
        except NotFound:
            return  # nothing was ever staged
        await self._publications.forget_writers(name)
        await self._delete_log(staging)

    async def _delete_log(self, name: str) -> None:
        frame = pb.Frame(delete_log=pb.DeleteLog(name=name))
        await self._metadata.request(frame, repeatable=False)

    async def status(self) -> ClusterStatus:
        """Return the state of all metadata repositories, storage nodes and logs."""
        answer = await self._metadata.request(pb.Frame(get_status=pb.GetStatus()))
        return cluster_status(answer.status)

    async def events(
        self, since: datetime | float | None = None, *, after: int = 0
    ) -> list[EventInfo]:
        """Return the events of the cluster that are still kept, oldest first.

        Only events at or after `since` (a datetime, or seconds since 1970) are returned, and only
        those after the event whose id is `after`."""
        if not is_int(after) or after:
            check_number("after", after)
        since_s = 0.0 if since is None else timestamp_us(since) / 1_000_000
        events: list[EventInfo] = []
        more = True
        while more:
            request = pb.ListEvents(after=after, since_s=since_s)
            answer = (await self._metadata.request(pb.Frame(list_events=request))).event_list
            events += map(event_info, answer.events)
            more, after = answer.more, answer.last
        return events


def parse_addresses(addresses: str | Iterable[str]) -> list[str]:
    """Return the addresses in an iterable, or in a string that separates them by commas."""
    try:
        given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
        parsed = [address.strip() for address in given if address.strip()]
    except (AttributeError, TypeError):
        raise InvalidArgument(
            f"addresses must be strings such as 127.0.0.1:7400, not {shown(addresses)}"
        ) from None
    if not parsed:
        raise InvalidArgument("no address given: write host:port, e.g. 127.0.0.1:7400")
    for address in parsed:
        split_address(address)
    return parsed
