"""Publishing staged rows: all of them at once, and once, whoever dies in between.

A writer is a name, and what it did is in a register of the metadata repository, not in a process.
To publish is to decide (the register holds the intent: these rows, this number, this stream), to
append one reference, and to note that it is done. Who finds an intent carries it out, whoever left
it: it is decided, and the stream recognises a reference that it has. docs/adr/0007 says why that is
enough.

Invariants: an intent is never given up; a sequence number is decided once; a reference of a writer
and number is only ever sent to where its intent says, which changes only when it is certain that it
is not there and never will be: a stream, until its segment has ended without it; in a stream where
the place is chosen first (protocol `chained`), that place, until it was overtaken; in one of
protocol `copyset` an epoch, until that is over and recovered without it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from loomlog import limits, references
from loomlog.client import backoff, writer_state
from loomlog.client.chained.chains import PROTOCOL as CHAINED
from loomlog.client.chained.reserving import ReservedAppends
from loomlog.client.copyset.reserving import EpochAppends
from loomlog.client.copyset.segments import PROTOCOL as COPYSET
from loomlog.client.info import LogInfo, StreamInfo
from loomlog.client.leases import Lease
from loomlog.client.pieces import Referred
from loomlog.client.pinned import PinnedAppends, SegmentEndedError
from loomlog.client.registers import Register, Versioned
from loomlog.client.staging import Staged
from loomlog.client.writer_state import Intent, WriterState
from loomlog.core.chained.messages import Ticket
from loomlog.core.copyset.lsn import OFFSET_MAX, Epoch, make
from loomlog.errors import (
    AppendUnknown,
    Conflict,
    InvalidArgument,
    NotFound,
    Sealed,
    SwapUnknown,
    Trimmed,
)
from loomlog.references import Reference
from loomlog.staging_logs import staging_name
from loomlog.types import Glsn, Llsn, StreamId

if TYPE_CHECKING:
    from loomlog.client.log import Log

_BODY_BYTES_MAX: Final = limits.REGISTER_BYTES_MAX * 7 // 10  # as text it is a third larger
_RENEW_US: Final = 3600 * 1_000_000  # a writer that is used again says so after an hour's silence

Known: TypeAlias = tuple[WriterState, int]
"""A writer's state and the version of its register."""


class Published(NamedTuple):
    """The positions of a publication; 0 and 0 for one of no rows, and for one before the last."""

    first: Glsn
    last: Glsn


class _Place(NamedTuple):
    """Where a reference is to go."""

    stream: StreamId
    tail: Glsn  # it cannot stand at or below
    ticket: Ticket | None = None
    epoch: Epoch = 0


class Ways(NamedTuple):
    """To append what several processes may carry out, by protocol."""

    pinned: PinnedAppends  # ordered
    reserved: ReservedAppends  # chained
    in_epochs: EpochAppends  # copyset


class Registry(Protocol):
    """The part of a Cluster that publishing needs."""

    def log(self, name: str) -> Log: ...

    def register(self, name: str) -> Register: ...

    async def registers(self, prefix: str = "") -> dict[str, Versioned]: ...


def writers_prefix(log: str) -> str:
    return f"writer/{log}/"


class Writer:
    """A durable identity that publishes to one log, in the order of its sequence numbers."""

    def __init__(
        self,
        log: Log,
        name: str,
        registry: Registry,
        ways: Ways,
        rng: random.Random,
        now_us: Callable[[], int],
        lease: Lease | None = None,
    ) -> None:
        self.name = name
        self._log = log
        self._registry = registry
        self._register = registry.register(writers_prefix(log.name) + name)
        self._ways = ways
        self._rng = rng
        self._now_us = now_us
        self._lease = lease

    def __repr__(self) -> str:
        return f"<Writer {self.name!r} of {self._log.name!r}>"

    async def open(self) -> None:
        """Be known, so that no trim takes what is staged from now on."""
        while True:
            found = await self._register.get()
            now_us = self._now_us()
            if found is None:
                tail = await self._staging.tail()
                state, version = self._new_state(tail + 1), 0
            else:
                state, version = writer_state.decode(found.value), found.version
                if now_us - state.changed_us < _RENEW_US:
                    return
                state = replace(state, changed_us=now_us)
            try:
                await self._swap(state, version)
                return
            except (Conflict, SwapUnknown):
                continue  # somebody else did, or we ourselves

    def _new_state(self, staged_from: Glsn) -> WriterState:
        return WriterState(
            producer_id=self._rng.getrandbits(63) or 1,
            sequence=0,
            published=(0, 0),
            stream=0,
            staged_from=staged_from,
            next_staged_from=staged_from,
            changed_us=self._now_us(),
        )

    async def sequence(self) -> int:
        """The number of its last publication, 0 if there is none; one that was decided is carried
        out first."""
        known = await self._load()
        while known[0].intent is not None:
            try:
                known = await self._carry_out(known, search=True)
            except (Conflict, SwapUnknown):
                known = await self._load()
        return known[0].sequence

    async def publish(self, sequence: int, staged: Staged) -> Published:
        """Give staged rows their positions: all at once, neighbours, in the log's order.

        Idempotent: for a number that was published, or decided, before, that one counts and these
        rows are dropped, also if another process did it. Numbers grow; they may leave gaps. Rows
        must have been staged since the publication before the last one, or since `open`."""
        self._check(sequence, staged)
        published = await self._publish(sequence, staged)
        await self._log.published()
        return published

    async def _publish(self, sequence: int, staged: Staged) -> Published:
        decided = 0
        known: Known | None = None
        while True:
            known = known or await self._load()
            state = known[0]
            try:
                if state.intent is not None:
                    own = state.intent.reference.sequence == decided
                    known = await self._carry_out(known, search=not own)
                elif sequence <= state.sequence:
                    return Published(*state.published if sequence == state.sequence else (0, 0))
                else:
                    known = await self._decide(known, sequence, staged)
                    decided = sequence
            except (Conflict, SwapUnknown):
                known = None  # another process was faster, or it is not known: look

    async def forget(self) -> None:
        """Drop its register: for a writer that never comes again."""
        while (found := await self._register.get()) is not None:
            if writer_state.decode(found.value).intent is not None:
                await self.sequence()  # it is decided
                continue
            try:
                await self._register.swap(None, found.version, self._lease)
            except (Conflict, SwapUnknown):
                continue  # look again

    # ---- the register

    @property
    def _staging(self) -> Log:
        return self._registry.log(staging_name(self._log.name))

    async def _load(self) -> Known:
        found = await self._register.get()
        while found is None:
            await self.open()
            found = await self._register.get()
        return writer_state.decode(found.value), found.version

    async def _swap(self, state: WriterState, version: int) -> Known:
        return state, await self._register.swap(state.encode(), version, self._lease)

    def _check(self, sequence: int, staged: Staged) -> None:
        if not isinstance(sequence, int) or not 1 <= sequence < 1 << 63:
            raise InvalidArgument(f"a sequence is a number from 1 on, not {sequence!r}")
        if staged.log != self._log.name:
            raise InvalidArgument(
                f"these rows were staged for log {staged.log!r}, not for {self._log.name!r}"
            )

    # ---- deciding

    async def _decide(self, known: Known, sequence: int, staged: Staged) -> Known:
        state, version = known
        info, staging, needed_from = await asyncio.gather(
            self._log.describe(), self._staging.describe(), self._needed_from(state)
        )
        staged_tail = staging.tail
        state = replace(state, changed_us=self._now_us())
        if not staged.rows:
            return await self._swap(
                _done(state, sequence, (0, 0), state.stream, staged_tail), version
            )
        if staged.first_position < max(state.staged_from, staging.head):
            raise Trimmed(
                f"writer {self.name!r}: these rows were staged before it was opened, or before the "
                "publication before the last one, and a trim may have taken them: stage them again"
            )
        ranges = staged.ranges()
        reference = Reference(self._staging.name, self.name, sequence, needed_from, ranges)
        if len(references.encode_body(reference)) > _BODY_BYTES_MAX:
            raise InvalidArgument(
                f"{len(ranges)} pieces of rows are too many for one publication: stage with fewer "
                "tasks, or publish less at a time"
            )
        place = await self._place(info, state.stream, staged.rows)
        intent = Intent(
            reference,
            place.stream,
            place.tail,
            staged_tail,
            staged.min_timestamp_us,
            staged.max_timestamp_us,
            place.ticket,
            place.epoch,
        )
        return await self._swap(replace(state, intent=intent), version)

    async def _needed_from(self, own: WriterState) -> Glsn:
        """The first position of the staging log that anything unpublished may stand at."""
        found = await self._registry.registers(writers_prefix(self._log.name))
        return min((own.staged_from, *held_back(found, self._now_us())))

    async def _place(self, info: LogInfo, last: StreamId, rows: int) -> _Place:
        """Where a reference goes; in some streams its place is chosen now."""
        attempts = 0
        while True:
            stream = self._choose(info, last)
            try:
                return await self._place_in(stream, info.tail, rows)
            except Sealed:  # the log is just being switched
                if attempts > limits.REQUEST_TIMEOUT_S / backoff.LONGEST_S:
                    raise
            await asyncio.sleep(backoff.delay_s(attempts, self._rng))
            attempts += 1
            info = await self._log.describe()

    async def _place_in(self, stream: StreamInfo, tail: Glsn, rows: int) -> _Place:
        if stream.protocol == CHAINED:
            ticket = await self._ways.reserved.reserve(stream.id, rows)
            return _Place(stream.id, ticket.first - 1, ticket=ticket)
        if stream.protocol == COPYSET:
            epoch = await self._ways.in_epochs.reserve(stream.id)
            return _Place(stream.id, max(tail, make(epoch, 0)), epoch=epoch)
        return _Place(stream.id, tail)

    def _choose(self, info: LogInfo, last: StreamId) -> StreamInfo:
        """The same stream as long as it runs: it knows this writer."""
        active = info.active_streams
        running = [stream for stream in active if stream.state == "running"]
        for stream in running:
            if stream.id == last:
                return stream
        return self._rng.choice(running or active)

    # ---- carrying out

    async def _carry_out(self, known: Known, *, search: bool) -> Known:
        """Append what is decided and note that. `search`: somebody may have appended it so long
        ago that its stream has forgotten."""
        state, version = known
        intent = state.intent
        assert intent is not None
        first = await self._append(intent, known, search=search)
        if not first:
            return await self._move(intent, known)
        positions = first, first + intent.reference.rows - 1
        sequence = intent.reference.sequence
        state = replace(state, changed_us=self._now_us())
        done = _done(state, sequence, positions, intent.stream, intent.staged_tail)
        return await self._swap(done, version)

    async def _append(self, intent: Intent, known: Known, *, search: bool) -> Glsn:
        """Its first position, 0 if it is not there, and never will be."""
        state, version = known
        encoded = _encode(intent, state)
        if intent.ticket is not None:
            return await self._ways.reserved.append(intent.stream, intent.ticket, encoded)

        async def confirm() -> None:
            found = await self._register.get()
            if found is None or found.version != version:
                raise Conflict(f"writer {self.name!r} went on without us")

        first = await self._find(intent) if search else 0
        if not first and intent.epoch:
            ways = self._ways.in_epochs
            first = await ways.append(intent.stream, intent.epoch, encoded, confirm)
        elif not first:
            first = await self._append_to_stream(intent, encoded, confirm)
        return first or await self._find(intent)  # what is there is final

    async def _append_to_stream(
        self, intent: Intent, encoded: bytearray, confirm: Callable[[], Awaitable[None]]
    ) -> Glsn:
        """That recognises it; 0 if it takes nothing any more."""
        try:
            return (await self._ways.pinned.append(intent.stream, encoded, confirm)).position
        except SegmentEndedError:
            return 0
        except AppendUnknown:
            await confirm()
            raise

    async def _move(self, intent: Intent, known: Known) -> Known:
        """Decide for another place: nobody can append it to that of the intent any more."""
        state, version = known
        info = await self._log.describe()
        place = await self._place(info, intent.stream, intent.reference.rows)
        moved = replace(
            intent,
            stream=place.stream,
            tail=place.tail,
            ticket=place.ticket,
            epoch=place.epoch,
        )
        return await self._swap(replace(state, intent=moved), version)

    async def _find(self, intent: Intent) -> Glsn:
        """The first position of the reference, 0 if it is not in the log."""
        while True:
            try:
                return await self._search(intent)
            except Trimmed:
                continue  # while it was searched: now a later place is the first one kept

    async def _search(self, intent: Intent) -> Glsn:
        info = await self._log.describe()
        bounds = self._bounds_in_epoch if intent.epoch else self._bounds
        begin, last = await bounds(intent, info)
        if begin > last:
            return 0
        wanted = _names(intent.reference)
        pieces = self._log.open_stored_stream(intent.stream, begin, last)
        try:
            while (piece := await pieces.next()) is not None:
                if isinstance(piece, Referred) and _names(piece.reference) == wanted:
                    return piece.header.first_position
        except NotFound as error:  # the stream: its segment is trimmed; or the log: told next time
            raise Trimmed(str(error)) from error
        finally:
            pieces.close()
        return 0

    async def _bounds(self, intent: Intent, info: LogInfo) -> tuple[Llsn, Llsn]:
        last: Llsn = sum(s.entries for s in info.streams if s.id == intent.stream)
        places = await self._log.locate(max(intent.tail + 1, info.head))
        return places.get(intent.stream, last + 1), last

    async def _bounds_in_epoch(self, intent: Intent, info: LogInfo) -> tuple[Llsn, Llsn]:
        """There LLSNs are positions."""
        segment = next((s.segment for s in info.streams if s.id == intent.stream), None)
        ends = [found.end for found in info.segments if found.id == segment]
        if not ends:
            return 1, 0  # nothing is left of it
        end = info.tail if ends[0] is None else ends[0]
        return max(intent.tail + 1, info.head), min(end, make(intent.epoch, OFFSET_MAX))


def held_back(registers: dict[str, Versioned], now_us: int) -> list[Glsn]:
    """From where on each writer may still need what is staged."""
    states = [writer_state.decode(found.value) for found in registers.values()]
    return [state.staged_from for state in states if state.holds_back(now_us)]


def _encode(intent: Intent, state: WriterState) -> bytearray:
    return references.encode(
        intent.reference,
        producer_id=state.producer_id,
        min_timestamp_us=intent.min_timestamp_us,
        max_timestamp_us=intent.max_timestamp_us,
    )


def _names(reference: Reference) -> tuple[str, int]:
    return reference.writer, reference.sequence


def _done(
    state: WriterState,
    sequence: int,
    positions: tuple[Glsn, Glsn],
    stream: StreamId,
    staged_tail: Glsn,
) -> WriterState:
    return replace(
        state,
        sequence=sequence,
        published=positions,
        stream=stream,
        staged_from=state.next_staged_from,
        next_staged_from=max(staged_tail + 1, state.next_staged_from),
        intent=None,
    )
