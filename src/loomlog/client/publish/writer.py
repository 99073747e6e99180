"""Publishes staged rows atomically and exactly once, even if processes crash in between.

A writer is a name; its state is in a register of the metadata repository, not in a process. To
publish, it writes an intent (rows, sequence number, destination) to the register, appends one
reference to the log, and records that in the register. Any process that finds an intent completes
it; the loglet detects a reference that was already appended. docs/design/publications.md explains
why that is enough.

Invariants: an intent is never abandoned; a sequence number is decided once; a reference is sent
only to the destination in its intent (`Fixed`, see loglets/contract.py), which changes only when
it is certain that the reference is not there and never will be.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeAlias

from loomlog import limits, references
from loomlog.client.arguments import check_kind, is_int
from loomlog.client.context import Retries
from loomlog.client.kv.leases import Lease
from loomlog.client.kv.registers import Register, Versioned
from loomlog.client.log_parts import LogParts
from loomlog.client.loglets.contract import Fixed
from loomlog.client.publish import writer_state
from loomlog.client.publish.stager import Staged
from loomlog.client.publish.writer_state import Intent, WriterState
from loomlog.client.subscribe.pieces import Referred
from loomlog.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    Sealed,
    SwapUnknown,
    Trimmed,
    Unavailable,
    shown,
)
from loomlog.references import Reference
from loomlog.staging_logs import staging_name
from loomlog.types import Glsn, Llsn, StreamId
from loomlog.wire.info import LogInfo, StreamInfo

_BODY_BYTES_MAX: Final = limits.REGISTER_BYTES_MAX * 7 // 10  # base64 is a third larger
_RENEW_US: Final = 3600 * 1_000_000  # `open` renews a register that is older than this

Known: TypeAlias = tuple[WriterState, int]
"""A writer's state and the version of its register."""


class Published(NamedTuple):
    """First and last position of a publication; both are 0 if it had no rows, or if later ones
    were made since."""

    first: Glsn
    last: Glsn


class Registry(Protocol):
    """The services of a client that publishing uses."""

    def parts_of(self, log: str) -> LogParts: ...

    def register(self, name: str) -> Register: ...

    async def registers(self, prefix: str = "") -> dict[str, Versioned]: ...

    async def published(self, log: LogParts) -> None:
        """Called after each publication, to apply the log's retention."""


def writers_prefix(log: str) -> str:
    return f"writer/{log}/"


class Writer:
    """A named, durable writer that publishes staged rows to one log exactly once."""

    def __init__(
        self,
        log: LogParts,
        name: str,
        registry: Registry,
        rng: random.Random,
        now_us: Callable[[], int],
        lease: Lease | None = None,
    ) -> None:
        self.name = name
        self._log = log
        self._registry = registry
        self._register = registry.register(writers_prefix(log.name) + name)
        self._loglets = log.loglets
        self._rng = rng
        self._now_us = now_us
        self._lease = lease

    def __repr__(self) -> str:
        return f"<Writer {self.name!r} of {self._log.name!r}>"

    async def open(self) -> None:
        """Register the writer, so that no trim deletes rows staged for it from now on."""
        while True:
            found = await self._register.get()
            now_us = self._now_us()
            if found is None:
                tail = await self._staging.tail()
                state, version = self._new_state(tail + 1), 0
            else:
                state, version = writer_state.decode(found.value), found.version
                if state.is_expired:
                    state = state.renewed(await self._staging.tail() + 1, now_us)
                elif now_us - state.changed_us < _RENEW_US:
                    return
                state = replace(state, changed_us=now_us)
            try:
                await self._swap(state, version)
                return
            except (Conflict, SwapUnknown):
                continue  # changed, possibly by this very swap

    def _new_state(self, staged_from: Glsn) -> WriterState:
        return WriterState(
            producer_id=self._new_producer(),
            sequence=0,
            published=(0, 0),
            stream=0,
            staged_from=staged_from,
            next_staged_from=staged_from,
            changed_us=self._now_us(),
        )

    def _new_producer(self) -> int:
        return self._rng.getrandbits(63) or 1

    async def sequence(self) -> int:
        """Return the sequence number of the last publication; 0 if there is none. A publication
        that was interrupted is completed first."""
        known = await self._load()
        while known[0].intent is not None:
            try:
                known = await self._carry_out(known, search=True)
            except (Conflict, SwapUnknown):
                known = await self._load()
        return known[0].sequence

    async def publish(self, sequence: int, staged: Staged) -> Published:
        """Publish staged rows atomically, at consecutive positions, and return these.

        Idempotent: if `sequence` was published before, by any process, these rows are ignored.
        Sequence numbers must grow but may have gaps. Rows must have been staged after the writer
        was opened and after the last publication but one; else Trimmed is raised."""
        self._check(sequence, staged)
        published = await self._publish(sequence, staged)
        await self._registry.published(self._log)
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
                known = None  # the register changed, or may have: load it again

    async def forget(self) -> None:
        """Delete the writer's state, after completing a publication that was interrupted."""
        while (found := await self._register.get()) is not None:
            if writer_state.decode(found.value).intent is not None:
                await self.sequence()  # complete it
                continue
            try:
                await self._register.swap(None, found.version, self._lease)
            except (Conflict, SwapUnknown):
                continue

    # ---- the register

    @property
    def _staging(self) -> LogParts:
        return self._registry.parts_of(staging_name(self._log.name))

    async def _load(self) -> Known:
        found = await self._register.get()
        while found is None:
            await self.open()
            found = await self._register.get()
        return writer_state.decode(found.value), found.version

    async def _swap(self, state: WriterState, version: int) -> Known:
        return state, await self._register.swap(state.encode(), version, self._lease)

    def _check(self, sequence: int, staged: Staged) -> None:
        if not is_int(sequence) or not 1 <= sequence < 1 << 63:
            raise InvalidArgument(f"a sequence is a number from 1 on, not {shown(sequence)}")
        check_kind("staged", staged, Staged)
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
        staged_tail = staging.reached
        if state.is_expired:
            state, version = await self._swap(
                state.renewed(staged_tail + 1, self._now_us()), version
            )
        state = replace(state, changed_us=self._now_us())
        if not staged.rows:
            return await self._swap(
                _done(state, sequence, (0, 0), state.stream, staged_tail), version
            )
        if staged.first_position < max(state.staged_from, staging.head):
            raise Trimmed(
                f"writer {self.name!r}: these rows were staged before it was opened, before the "
                "publication before the last one, or more than a day ago, and a trim may have "
                "taken them: stage them again"
            )
        ranges = staged.ranges()
        reference = Reference(self._staging.name, self.name, sequence, needed_from, ranges)
        if len(references.encode_body(reference)) > _BODY_BYTES_MAX:
            raise InvalidArgument(
                f"{len(ranges)} pieces of rows are too many for one publication: stage with fewer "
                "tasks, or publish less at a time"
            )
        fixed = await self._reserve(info, state.stream, staged.rows)
        intent = Intent(
            reference, fixed, staged_tail, staged.min_timestamp_us, staged.max_timestamp_us
        )
        return await self._swap(replace(state, intent=intent), version)

    async def _needed_from(self, own: WriterState) -> Glsn:
        """Return the first position of the staging log that may hold unpublished rows."""
        others = await held_back(self._registry, self._log.name, self._now_us(), but=self.name)
        return min((own.staged_from, *others))

    async def _reserve(self, info: LogInfo, last: StreamId, rows: int) -> Fixed:
        """Reserve a destination for a reference."""
        retries = Retries(self._rng, limits.REQUEST_TIMEOUT_S)
        while True:
            stream = self._choose(info, last)
            try:
                loglet = self._loglets.of(stream.protocol)
                return await loglet.reserve(stream.id, info.reached, rows)
            except Sealed:  # the log is being switched
                if not await retries.pause():
                    raise
            info = await self._log.describe()

    def _choose(self, info: LogInfo, last: StreamId) -> StreamInfo:
        """Return the writer's last stream if it runs, since that knows this producer."""
        active = info.active_streams
        running = [stream for stream in active if stream.state == "running"]
        for stream in running:
            if stream.id == last:
                return stream
        return self._rng.choice(running or active)

    # ---- carrying out

    async def _carry_out(self, known: Known, *, search: bool) -> Known:
        """Complete the intent: append its reference and record that. With `search`, first look for
        one that another process appended before, since a stream detects only recent repeats."""
        state, version = known
        intent = state.intent
        assert intent is not None
        first = await self._append(intent, known, search=search)
        if not first:
            return await self._move(intent, known)
        if first <= intent.fixed.above:
            # It was there before. The metadata was restored from a copy that does not know of that.
            state = replace(state, producer_id=self._new_producer())
            return await self._swap(state, version)
        positions = first, first + intent.reference.rows - 1
        sequence = intent.reference.sequence
        state = replace(state, changed_us=self._now_us())
        done = _done(state, sequence, positions, intent.fixed.stream, intent.staged_tail)
        return await self._swap(done, version)

    async def _append(self, intent: Intent, known: Known, *, search: bool) -> Glsn:
        """Return the reference's first position; 0 if it is not there and never will be."""
        state, version = known
        loglet = self._loglets.of(intent.fixed.protocol)

        async def confirm() -> None:
            found = await self._register.get()
            if found is None or found.version != version:
                raise Conflict(f"writer {self.name!r} was used by another process")

        if search and not loglet.finds_fixed and (first := await self._find(intent)):
            return first
        batch = intent.encode(state.producer_id)
        first = await loglet.append_fixed(intent.fixed, batch, confirm)
        if first or loglet.finds_fixed:
            return first
        return await self._find(intent)  # nothing can be appended there any more

    async def _move(self, intent: Intent, known: Known) -> Known:
        """Choose another destination, now that nothing can be appended to the old one."""
        state, version = known
        info = await self._log.describe()
        fixed = await self._reserve(info, intent.fixed.stream, intent.reference.rows)
        return await self._swap(replace(state, intent=replace(intent, fixed=fixed)), version)

    async def _find(self, intent: Intent) -> Glsn:
        """Return the first position of the reference; 0 if it is not in the log."""
        while True:
            try:
                return await self._search(intent)
            except Trimmed:
                continue  # trimmed meanwhile: search from the new head

    async def _search(self, intent: Intent) -> Glsn:
        info = await self._log.describe()
        begin, last = await self._bounds(intent.fixed, info)
        if begin > last:
            return 0
        wanted = _names(intent.reference)
        pieces = self._log.pieces.stored_stream(intent.fixed.stream, begin, last)
        try:
            while (piece := await pieces.next()) is not None:
                if isinstance(piece, Referred) and _names(piece.reference) == wanted:
                    return piece.header.first_position
        except NotFound as error:  # the stream was trimmed, or the log deleted: see on the retry
            raise Trimmed(str(error)) from error
        finally:
            pieces.close()
        return 0

    async def _bounds(self, fixed: Fixed, info: LogInfo) -> tuple[Llsn, Llsn]:
        """Return the first and last LLSN of its stream at which the reference may be."""
        stream = next((s for s in info.streams if s.id == fixed.stream), None)
        ends = [s.end for s in info.segments if stream is not None and s.id == stream.segment]
        if stream is None or not ends:
            return 1, 0  # trimmed
        first = max(fixed.above + 1, info.head)
        if self._loglets.of(fixed.protocol).counts_llsns:
            if stream.entries is None:
                raise Unavailable(f"it is not known now where stream {stream.id} ends: try again")
            places = await self._log.reader.locate(first)
            return places.get(fixed.stream, stream.last_llsn + 1), stream.last_llsn
        end = info.reached if ends[0] is None else ends[0]
        return first, end if fixed.last is None else min(end, fixed.last)


async def held_back(registry: Registry, log: str, now_us: int, *, but: str = "") -> list[Glsn]:
    """Return, for each writer of a log except `but`, the first staged position it may need.

    A writer that was silent for long is marked as expired in its register first, so that it cannot
    publish rows that were deleted, even if it is alive and a clock is wrong."""
    prefix = writers_prefix(log)
    needed: list[Glsn] = []
    for name, found in (await registry.registers(prefix)).items():
        state = writer_state.decode(found.value)
        if name == prefix + but or state.is_expired:
            continue
        if state.holds_back(now_us) or not await _expire(registry.register(name), found, state):
            needed.append(state.staged_from)
    return needed


async def _expire(register: Register, found: Versioned, state: WriterState) -> bool:
    """Mark a writer as expired; return False if its register has changed."""
    try:
        await register.swap(state.expired().encode(), found.version)
    except (Conflict, SwapUnknown):
        return False
    return True


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
