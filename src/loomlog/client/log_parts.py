"""The implementation of one log in a client, behind the public class `Log`."""

from __future__ import annotations

from collections.abc import Callable

from loomlog import tracing
from loomlog.client.append.appender import Appender
from loomlog.client.append.conditional import ConditionalAppends
from loomlog.client.append.delivery import Delivery
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.groups.groups import Groups
from loomlog.client.kv.checkpoints import Checkpoints
from loomlog.client.loglets.registry import Loglets
from loomlog.client.loglets.times import NextRows
from loomlog.client.queues.queues import Queues
from loomlog.client.reader import Reader, TimeSearch
from loomlog.client.subscribe.log_pieces import LogPieces
from loomlog.client.subscribe.with_archive import ArchivedLog
from loomlog.client.transactions.decisions import Decisions
from loomlog.core.transactions import DECISIONS_LOG
from loomlog.errors import Retryable, Trimmed
from loomlog.types import Entry, Gap, Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.info import LogInfo, log_info


class LogParts:
    """The services of one log: appender, reader, subscriptions, checkpoints, groups, queues and
    archive. `parts_of` returns those of another log."""

    def __init__(self, name: str, client: Client, parts_of: Callable[[str], LogParts]) -> None:
        self.name = name
        self.metadata = client.metadata
        self.cached = cached = CachedLog(name, client.metadata)
        self.loglets = loglets = Loglets(cached, client)
        self.appender = Appender(name, Delivery(cached, client, loglets.carriers()), client)
        self.reader = Reader(cached, loglets, client)
        self.times = TimeSearch(name, loglets, client)
        self.checkpoints = Checkpoints(cached, loglets, client)
        self.groups = Groups(self, client)
        self.queues = Queues(self, client, parts_of)
        self.archived = ArchivedLog(cached, loglets, client)
        self.pieces = LogPieces(
            cached,
            loglets,
            self.archived,
            client.subscriptions,
            client.settings.read_ahead_bytes,
            self.head,
            lambda name: parts_of(name).pieces,
            lambda: parts_of(DECISIONS_LOG).decisions,
        )
        self.conditional = ConditionalAppends(name, self.appender, self.pieces, self.tail, client)
        self.decisions = Decisions(loglets, client)  # used only if this is the log of decisions
        self._enlisted: LogId | None = None

        self._tracer = tracing.active()
        if self._tracer is not None:
            self.read = self._traced_read  # type: ignore[method-assign]

    async def describe(self) -> LogInfo:
        return log_info(await self.loglets.fetch_with_tail())

    async def bounds(self) -> pb.Bounds:
        return await self.cached.bounds()

    async def head(self) -> Glsn:
        return (await self.cached.fetch()).head

    async def tail(self) -> Glsn:
        return (await self.bounds()).tail

    async def known_tail(self) -> Glsn | None:
        """Return the tail, or None if it cannot be determined at present."""
        try:
            return await self.tail()
        except Retryable:
            return None

    async def read(self, position: Glsn) -> Entry:
        try:
            single = await self.reader.read(position)
            return single if isinstance(single, Entry) else await self.pieces.row(single)
        except Trimmed:
            entry = await self.archived.read(position)
            if entry is None:
                raise
            return entry

    async def _traced_read(self, position: Glsn) -> Entry:
        assert self._tracer is not None
        with self._tracer.span("read", {"log": self.name, "position": position}):
            return await LogParts.read(self, position)

    async def find_time(self, timestamp_us: int) -> Glsn:
        return await self.times.find(timestamp_us, self._rows_from)

    async def _rows_from(self, start: Glsn, stop: Glsn) -> NextRows:
        pieces = self.pieces.rows(start, stop, archived=False, gaps=True)
        lost: Gap | None = None
        try:
            while isinstance(piece := await pieces.next(), Gap):
                if piece.kind == "dataloss":
                    lost = piece
            return NextRows(None if piece is None else piece.to_arrow(), lost)
        finally:
            pieces.close()

    async def trim(self, position: Glsn) -> None:
        """Trim this log, but not its staging log."""
        frame = pb.Frame(trim_log=pb.TrimLog(name=self.name, position=position))
        await self.metadata.request(frame)

    async def find_expired(self) -> Glsn:
        """Return the last position that retention and archive allow to trim, or 0 if none."""
        request = pb.FindExpired(name=self.name)
        return (await self.metadata.request(pb.Frame(find_expired=request))).expired.position

    async def enlist(self) -> None:
        """Keep decisions for as long as this log may have entries of transactions."""
        log_id = (await self.cached.cached()).log_id
        if self._enlisted != log_id:
            await self.metadata.request(pb.Frame(enlist_log=pb.EnlistLog(name=self.name)))
            self._enlisted = log_id

    async def close(self) -> None:
        await self.appender.close()
        await self.loglets.close()
        await self.cached.close()
