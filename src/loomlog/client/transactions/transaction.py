"""The public class Transaction: collects entries for several logs and appends them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from loomlog import batch as batches
from loomlog import limits, protocol_names
from loomlog.batch import Cell
from loomlog.client.append import errors
from loomlog.client.append.appender import positions
from loomlog.client.append.encoders import encoded_headers
from loomlog.client.append.options import AppendOptions, as_record
from loomlog.client.arguments import check_name, timestamp_us
from loomlog.client.transactions.decisions import cell_of, fixed_of
from loomlog.core.requests import drive
from loomlog.core.transactions import (
    DECISIONS_LOG,
    AppendParts,
    Enlist,
    Reserve,
    WriterStep,
    commit,
)
from loomlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LoomError,
    NotFound,
    Sealed,
    Unavailable,
    seconds,
)
from loomlog.types import Buffer, Position, StreamId
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    from loomlog.client.context import Client
    from loomlog.client.log_parts import LogParts

Placed = dict[str, Position]  # the position of the first entry in each log
_PAUSE_S: Final = 0.05
_GIVE_UP_S: Final = 1.0


class _Part:
    """The entries for one log."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[bytes | None] = []
        self.timestamps_us: list[int | None] = []

    @property
    def size(self) -> int:
        columns = (self.values, self.keys, self.headers)
        return sum(len(item) for column in columns for item in column if item)

    def encode(self, cell: Cell, *, timestamps_us: int, **stamps: Any) -> Buffer:
        from loomlog.columns.writer import encode

        times = [timestamps_us if each is None else each for each in self.timestamps_us]
        buffer = encode(
            self.values, keys=self.keys, headers=self.headers, timestamps_us=times, **stamps
        )
        batches.assign_cell(buffer, cell)
        return buffer


class Transaction:
    """Entries for several logs that become visible together, as returned by `Cluster.transaction`.

    An async context manager: it commits at the end of the block, as in
    `async with cluster.transaction() as t: t.append("orders", a); t.append("audit", b)`. If the
    block raises an exception, nothing is appended."""

    def __init__(
        self,
        client: Client,
        parts_of: Callable[[str], LogParts],
        decisions_log: Callable[[], Awaitable[LogParts]],
        timeout_s: float,
    ) -> None:
        """`decisions_log` returns the log of decisions, which it creates if necessary."""
        self._client = client
        self._parts_of = parts_of
        self._open_decisions = decisions_log
        self._timeout_s = timeout_s
        self._parts: dict[str, _Part] = {}
        self._ended = False
        self.positions: dict[str, list[Position]] = {}
        """The positions of the entries in each log, once they are visible."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.commit()
        self._ended = True

    def append(
        self,
        log: str,
        value: Buffer,
        key: Buffer | None = None,
        *,
        headers: Mapping[str, bytes] | None = None,
        timestamp: datetime | float | None = None,
    ) -> None:
        """Add an entry for the log named `log`. The entries for one log get consecutive positions,
        in the order of the calls. The other arguments are those of `Log.append`."""
        if self._ended:
            raise InvalidArgument("this transaction has ended: begin another one")
        if len(self._parts) == limits.TRANSACTION_LOGS_MAX and log not in self._parts:
            raise InvalidArgument(f"a transaction has at most {limits.TRANSACTION_LOGS_MAX} logs")
        if log == DECISIONS_LOG:
            raise InvalidArgument(
                f"log {DECISIONS_LOG} is reserved for the decisions on transactions: append to "
                "another log"
            )
        record = as_record(log, value, key)
        encoded = encoded_headers(headers)
        time_us = None if timestamp is None else timestamp_us(timestamp)
        part = self._parts.setdefault(check_name("a log's name", log), _Part())
        part.values.append(record[0])
        part.keys.append(record[1])
        part.headers.append(encoded)
        part.timestamps_us.append(time_us)

    async def commit(self) -> None:
        """Append all entries; called at the end of the `async with` block.

        Raise AppendUnknown if it is not known whether all entries are visible or none. After any
        other error, none is visible and none will be."""
        if self._ended:
            raise InvalidArgument("this transaction has ended: begin another one")
        self._ended = True
        if not self._parts:
            return
        for name, part in self._parts.items():
            if part.size > limits.BATCH_BYTES_MAX:
                raise errors.too_many(name, len(part.values), part.size)
        logs = (self._parts_of(name).cached for name in self._parts)
        await asyncio.gather(*(log.cached() for log in logs))  # raises NotFound
        decisions = await self._open_decisions()
        writer = _Writer(
            self._client,
            self._parts_of,
            decisions,
            self._open_decisions,
            self._parts,
            self._timeout_s,
        )
        placed: Placed = await drive(commit(), writer.carry_out)
        self.positions = {
            name: list(positions(first, len(self._parts[name].values)))
            for name, first in placed.items()
        }


class _Writer:
    """Carries out the steps of one transaction."""

    def __init__(
        self,
        client: Client,
        parts_of: Callable[[str], LogParts],
        decisions: LogParts,
        open_decisions: Callable[[], Awaitable[LogParts]],
        parts: Mapping[str, _Part],
        timeout_s: float,
    ) -> None:
        self._client = client
        self._parts_of = parts_of
        self._log = decisions
        self._open_decisions = open_decisions
        self._parts = parts
        self._deadline_s = client.loop.time() + timeout_s
        self._timeout_s = timeout_s
        self._attempts = 0

    @property
    def _left_s(self) -> float:
        return max(self._deadline_s - self._client.loop.time(), 0.001)

    async def carry_out(self, step: WriterStep[Cell]) -> Any:
        if isinstance(step, Reserve):
            return await self._reserve()
        if isinstance(step, AppendParts):
            return await self._append_parts(step.cell)
        if isinstance(step, Enlist):
            return await self._enlist(step.cell)
        return await self._write(step.cell)

    async def _reserve(self) -> Cell:
        if self._attempts:
            self._check_time()
        self._attempts += 1
        try:
            async with asyncio.timeout(self._left_s):
                try:
                    return await self._reserved()
                except NotFound:  # the log of decisions was deleted: create another one
                    self._log.cached.last_known = None
                    self._log = await self._open_decisions()
                    return await self._reserved()
        except TimeoutError:
            raise Unavailable(
                f"the transaction got no place for its decision within {seconds(self._timeout_s)}"
                f"{self._hindrance}; nothing was appended, try again"
            ) from None

    @property
    def _hindrance(self) -> str:
        """Return, for a message, why the log of decisions is not available, as far as known."""
        log = self._log.cached.last_known
        reasons = (stream.condition for stream in log.streams) if log is not None else ()
        return "".join(f": log {DECISIONS_LOG} {reason}" for reason in reasons if reason)

    async def _reserved(self) -> Cell:
        transaction = self._client.rng.getrandbits(63) or 1
        log, is_new = await self._log.cached.cached(), False
        while True:
            active = log.segments[-1]
            loglet = self._log.loglets.of(active.protocol)
            if loglet.settles:
                stream = _stream_of(log, active)
                try:
                    return cell_of(await loglet.reserve(stream, log.tail, 1), transaction)
                except Sealed:
                    pass  # the log is being switched
            elif is_new:
                wanted = protocol_names.DECISIONS
                raise InvalidArgument(
                    f"transactions need log {DECISIONS_LOG} to be {wanted}: run `loom log switch "
                    f"{DECISIONS_LOG} --protocol {wanted}`"
                )
            if is_new:
                self._check_time()
                await asyncio.sleep(_PAUSE_S)
            log, is_new = await self._log.cached.fetch(), True

    def _check_time(self) -> None:
        if self._client.loop.time() >= self._deadline_s:
            raise Unavailable(
                f"the transaction was not complete within {seconds(self._timeout_s)}: its logs are "
                "slow, or readers gave it up; nothing was appended, try again"
            )

    async def _append_parts(self, cell: Cell) -> Placed:
        names = list(self._parts)
        appends = [self._append(name, self._parts[name], cell) for name in names]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        try:
            if failures:
                raise _as_certain(failures[0])
            self._check_time()
        except BaseException:
            await self._give_up(cell)
            raise
        return {n: at for n, at in zip(names, outcomes, strict=True) if isinstance(at, Position)}

    async def _append(self, name: str, part: _Part, cell: Cell) -> Position:
        appender = self._parts_of(name).appender
        encoder = partial(part.encode, cell)
        count = len(part.values)
        options = AppendOptions(timeout_s=self._left_s)
        return await appender.append_whole(encoder, count, part.size, options)

    async def _enlist(self, cell: Cell) -> None:
        try:
            async with asyncio.timeout(self._left_s):
                await asyncio.gather(*(self._parts_of(name).enlist() for name in self._parts))
        except BaseException as error:
            await self._give_up(cell)
            if isinstance(error, TimeoutError):
                self._check_time()
            raise

    async def _give_up(self, cell: Cell) -> None:
        """Fill the cell, so that readers need not wait for it. Only this writer would write it."""
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                await self._log.decisions.settle(cell, 0.0)
        except (LoomError, TimeoutError):
            pass

    async def _write(self, cell: Cell) -> bool:
        from loomlog.columns.writer import encode

        batch = encode(
            [b""],  # names no log, since all readers of transactions can read it
            timestamps_us=self._client.producer.now_us(),
            producer_id=cell.transaction,
            sequence=1,
        )
        fixed = fixed_of(cell)
        try:
            async with asyncio.timeout(self._left_s):
                loglet = self._log.loglets.of(fixed.protocol)
                if await loglet.append_fixed(fixed, batch, _nothing_to_confirm):
                    return True
                # What was written there instead decides; if it is trimmed or lost, nobody knows.
                return await self._log.decisions.settle(cell, 0.0)
        except (LoomError, TimeoutError) as error:
            raise AppendUnknown(
                "it is not known whether the transaction is visible: its decision was not "
                f"acknowledged in time ({str(error) or 'no answer'}){self._hindrance}; all of it "
                "is, or nothing"
            ) from error


def _stream_of(log: pb.Log, segment: pb.Segment) -> StreamId:
    return next(s.log_stream_id for s in log.streams if s.loglet_id == segment.loglet_id)


async def _nothing_to_confirm() -> None:
    """Confirm nothing, since no other process writes the cell."""


def _as_certain(error: BaseException) -> BaseException:
    """Return the error of a part. Even if its outcome is unknown, it certainly does not count."""
    if not isinstance(error, AppendUnknown):
        return error
    return Unavailable(f"nothing was appended: a part of the transaction failed: {error}")
