"""The public class Group: one program's share of a log, and what operators do with groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from loomlog import limits
from loomlog.client.arguments import (
    check_member,
    check_number,
    check_seconds,
    is_int,
    timestamp_us,
)
from loomlog.client.groups.fetcher import PieceFetcher
from loomlog.client.groups.handout import Handout
from loomlog.client.groups.membership import MemberLeases, Membership
from loomlog.client.groups.store import StateStore
from loomlog.core.groups.consumption import Consumption
from loomlog.core.groups.state import GroupState
from loomlog.core.permissions import Verb
from loomlog.errors import (
    Conflict,
    Corrupt,
    DataLoss,
    InvalidArgument,
    NotFound,
    Retryable,
    SwapUnknown,
    Trimmed,
)
from loomlog.types import Entry, Glsn

if TYPE_CHECKING:
    from loomlog.client.groups.shard_rows import ShardRows
    from loomlog.client.log_parts import LogParts

_ROWS_MAX: Final = 4096  # looked through for entries that the consumer gets at once
_TURN_S: Final = 0.002  # of a consumer that awaits nothing, until others run
_PASSED_S: Final = 5.0  # between commits of positions where only others had entries
EARLIEST: Final = "earliest"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How a member joins; `shards` and `start` are for a new group."""

    shards: int | None = None
    start: Glsn | str | datetime = EARLIEST
    session_timeout_s: float = limits.GROUP_SESSION_S
    commit_every_s: float | None = None
    member: str | None = None

    def __post_init__(self) -> None:
        if self.shards is not None and not (
            is_int(self.shards) and 1 <= self.shards <= limits.GROUP_SHARDS_MAX
        ):
            raise InvalidArgument(
                f"shards must be a number from 1 to {limits.GROUP_SHARDS_MAX}, "
                f"not {self.shards!r:.100}"
            )
        check_seconds("session_timeout_s", self.session_timeout_s, 0.5)
        check_member(self.member)
        if self.commit_every_s is not None:
            check_seconds("commit_every_s", self.commit_every_s, 0.01)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard of a group."""

    number: int
    owner: str  # a member; "" if nobody owns it
    position: Glsn  # the last one that was committed
    behind: int | None  # positions up to the tail; None if that is not known
    moving: bool  # its owner has to commit and release it


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group."""

    id: str
    name: str
    shards: tuple[int, ...]
    left_s: float  # until its lease expires, if it is not renewed


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group at a moment."""

    name: str
    tail: Glsn | None  # of the log; None if it is not known
    shards: tuple[ShardInfo, ...]
    members: tuple[MemberInfo, ...]

    @property
    def position(self) -> Glsn:
        """The position up to which all shards were committed."""
        return min(shard.position for shard in self.shards)

    @property
    def behind(self) -> int | None:
        """The distance of the slowest shard to the tail; None if that is not known."""
        return None if self.tail is None else max(0, self.tail - self.position)


class Group:
    """A consumer group of one log. As an async context manager it joins the group; then it is an
    async iterator over the entries of the shards that this member owns, in order."""

    def __init__(
        self,
        name: str,
        parts: LogParts,
        store: StateStore[GroupState],
        leases: MemberLeases,
        options: GroupOptions,
    ) -> None:
        self.name = name
        self._parts = parts
        self._store = store
        self._leases = leases
        self._options = options
        self._membership: Membership[GroupState] | None = None
        self._lock = asyncio.Lock()  # a commit and a change of shards exclude each other
        self._wake = asyncio.Event()
        self._idle = True  # the consumer has processed all that it got
        self._stale = False  # there is something to do before the next entry
        self._reader = PieceFetcher(lambda start: parts.pieces.rows(start, None), self._wake)
        self._rows: ShardRows | None = None
        self._handout: Handout | None = None  # what the consumer iterates over
        self._last: Glsn = -1  # the last entry that the consumer got to hand out ...
        self._end: Glsn = 0  # ... and how far the log was looked through for it
        self._committed_at: Glsn = 0
        self._committed_s = 0.0
        self._turn_s = 0.0

    def __repr__(self) -> str:
        return f"<Group {self.name!r} of {self._parts.name!r}>"

    # ---- membership

    async def __aenter__(self) -> Self:
        if self._membership is not None:
            raise InvalidArgument(f"group {self.name!r} was joined already: call log.group again")
        # Imported before joining: it takes long, and the lease could expire meanwhile.
        from loomlog.client.groups.shard_rows import ShardRows

        self._with_shards = ShardRows
        log_id = (await self._parts.cached.fetch(Verb.CHECKPOINT)).log_id
        initial = await self._initial(log_id)
        self._loop = asyncio.get_running_loop()
        options = self._options
        membership = Membership(
            log_id, self._store, self._leases, options.session_timeout_s, self._changed
        )
        await membership.join(options.member, initial)
        self._membership = membership
        self._consumption = Consumption(membership.member)
        self._count = len(membership.state.shards)
        self._stale = True
        self._committed_s = self._turn_s = self._loop.time()
        if options.shards not in (None, self._count):
            await membership.leave()
            raise InvalidArgument(
                f"group {self.name!r} has {self._count} shards, which cannot be changed: leave out "
                f"shards={options.shards}, or use another name"
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._membership is not None
        try:
            if self._options.commit_every_s is not None:
                self._note_reached()
                self._handout = None
                if error is not None and not self._idle:
                    self._consumption.reading -= 1  # the consumer failed at this entry
                await self.commit()
        finally:
            self._close_reader()
            await self._membership.leave()

    @property
    def member(self) -> str:
        """The id of this member, once it has joined."""
        return self._joined().member

    @property
    def shards(self) -> frozenset[int]:
        """The shards that this member owns now."""
        membership = self._joined()
        return frozenset(membership.state.owned_by(membership.member))

    # ---- entries

    async def __aiter__(self) -> AsyncGenerator[Entry, None]:
        while True:
            self._handout = handout = Handout(await self._next_entries())
            for chunk in handout.chunks():
                for entry in chunk:
                    yield entry
                if self._loop.time() >= self._turn_s:
                    await self._give_way()

    async def _give_way(self) -> None:
        """Let others run, among them what renews the lease, if the consumer awaits nothing."""
        await asyncio.sleep(0)
        self._turn_s = self._loop.time() + _TURN_S

    async def commit(self) -> None:
        """Record that all entries handed out so far are processed, the current one included.

        Raise Fenced if this member was replaced: then others get what it has not committed."""
        async with self._lock:
            await self._commit()

    async def _commit(self) -> None:
        membership, consumption = self._joined(), self._consumption
        self._advance()
        reading = consumption.reading
        await membership.change(consumption.commit)
        consumption.committed(reading)
        self._committed_at, self._committed_s = reading, self._loop.time()
        self._adopt()

    async def _next_entries(self) -> Iterable[Entry]:
        """Return entries to hand out, at least one. Those that were handed out before count as
        processed."""
        membership = self._joined()
        self._idle = True
        while True:
            self._wake.clear()
            if membership.failure is not None:
                raise membership.failure
            if self._stale:
                async with self._lock:
                    await self._follow()
                continue
            self._advance()
            if not membership.certain:
                await self._wake.wait()
            elif self._has_rows() or self._find_rows():
                if (entries := self._take()) is not None:
                    self._idle = False
                    return entries
                await self._give_way()
            else:
                await self._wait()

    async def _follow(self) -> None:
        """Adopt the newest state, and commit if it is time."""
        self._adopt()
        self._stale = False
        if self._is_commit_due() or (self._consumption.stopped and not self._consumption.dirty):
            try:
                await self._commit()
            except (Retryable, SwapUnknown):
                pass  # it is due again soon

    def _is_commit_due(self) -> bool:
        """Return whether to commit without being asked: periodically if that is wanted; now and
        then if only rows of others were passed over, so that the group does not look late."""
        every_s = self._options.commit_every_s if self._consumption.dirty else _PASSED_S
        if every_s is None or not self._consumption.positions():
            return False
        if self._consumption.dirty and self._consumption.stopped:
            return True
        is_new = self._consumption.dirty or self._consumption.reading > self._committed_at
        return is_new and self._loop.time() >= self._committed_s + every_s

    def _adopt(self) -> None:
        self._advance()
        consumption, reading = self._consumption, self._consumption.reading
        if consumption.adopt(self._joined().state):
            self._interrupt()  # what the consumer would get next may not be its any more
        if consumption.reading < reading or not consumption.floors:
            self._close_reader()

    def _advance(self) -> None:
        """Pass over rows of others behind the last entry that was handed out."""
        self._note_reached()
        if self._consumption.reading == self._last:
            self._consumption.pass_over(max(self._last, self._end))
            self._last = -1
            self._handout = None

    def _note_reached(self) -> None:
        """Let `reading` be the entry that the consumer got last."""
        if self._handout is not None and (reached := self._handout.note()) is not None:
            self._consumption.reading = reached

    def _interrupt(self) -> None:
        """Hand out nothing more before the state of the group was looked at."""
        self._stale = True
        if self._handout is not None:
            self._handout.stop()
            self._handout = None

    def _has_rows(self) -> bool:
        """Return whether rows are left that were not looked through."""
        return self._rows is not None and self._rows.end > self._consumption.reading

    def _find_rows(self) -> bool:
        """Return whether rows have arrived."""
        if not self._consumption.floors:
            return False
        try:
            rows = self._reader.ready()
        except Trimmed as error:
            self._close_reader()
            raise Trimmed(
                f"group {self.name!r} is behind the first entry kept: {error}; or skip what is "
                f"gone with `loom group reset {self._parts.name} {self.name} --to earliest`"
            ) from None
        except (DataLoss, Corrupt):  # of an archive, maybe, whose files may come back
            self._close_reader()
            raise
        self._rows = None if rows is None else self._with_shards(rows, self._count)
        return self._has_rows()

    def _take(self) -> Iterable[Entry] | None:
        """Return what is to be handed out of the next rows; None if that is nothing."""
        assert self._rows is not None
        taken = self._rows.take(self._consumption, _ROWS_MAX)
        if not taken.last:
            self._consumption.pass_over(taken.end)
            return None
        self._last, self._end = taken.last, taken.end
        return taken.entries

    async def _wait(self) -> None:
        """Wait for another piece, or for a change of the group."""
        if self._consumption.floors:
            self._reader.begin(self._consumption.reading + 1)
        await self._wake.wait()

    def _close_reader(self) -> None:
        self._reader.close()
        self._rows = None
        self._last = -1

    def _changed(self) -> None:
        """Called by the membership, when there may be something to do."""
        membership = self._membership
        if membership is None:
            return
        self._note_reached()
        if (
            membership.failure is not None
            or not membership.certain  # others may have got what the consumer would get next
            or self._has_news(membership)
            or self._is_commit_due()
        ):
            self._interrupt()
        self._wake.set()

    def _has_news(self, membership: Membership[GroupState]) -> bool:
        consumption, state = self._consumption, membership.state
        moving = state.moving_from(membership.member)
        return (
            moving != consumption.stopped.keys()
            or state.owned_by(membership.member) - moving != consumption.floors.keys()
            or (bool(moving) and not consumption.dirty)
        )

    def _joined(self) -> Membership[GroupState]:
        if self._membership is None:
            raise InvalidArgument(
                f"join group {self.name!r} first: `async with log.group(…) as group`"
            )
        return self._membership

    def _consumption_joined(self) -> Consumption:
        self._joined()
        return self._consumption

    # ---- for operators

    async def describe(self) -> GroupInfo:
        """Return members, owners and committed positions; raise NotFound if there is no group."""
        log = await self._parts.cached.fetch(Verb.CHECKPOINT)
        state = await self._store.get(log.log_id)
        if state is None:
            raise self._missing()
        return describe(self.name, state, await self._leases.live(), await self._parts.known_tail())

    async def reset(self, start: Glsn | str | datetime) -> GroupInfo:
        """Let all shards continue at `start`: a position, a time, "earliest" or "latest". Raise
        Conflict while the group has members."""
        log_id = (await self._parts.cached.fetch(Verb.CHECKPOINT)).log_id
        position = await self._position(start)
        expired = await self._check_idle("reset")

        def step(state: GroupState) -> GroupState:
            if state.members.keys() - expired:
                raise Conflict(f"group {self.name!r} got a member just now: stop it, then reset it")
            return state.reset(position)

        await self._store.change(log_id, step)
        return await self.describe()

    async def delete(self) -> None:
        """Delete the group with its positions; raise Conflict while it has members."""
        await self._check_idle("delete")
        await self._store.delete()

    async def _check_idle(self, what: str) -> set[str]:
        """Return the ids of expired members; raise Conflict if there are others."""
        info = await self.describe()
        live = [member.name for member in info.members if member.left_s]
        if live:
            raise Conflict(
                f"group {self.name!r} has members ({', '.join(live)}): stop them, then {what} it"
            )
        return {member.id for member in info.members}

    def _missing(self) -> NotFound:
        return NotFound(
            f"log {self._parts.name!r} has no group {self.name!r}: `loom group list` shows them"
        )

    async def _initial(self, log_id: int) -> GroupState:
        """Return the state that the group has if this is its first member."""
        existing = await self._store.get(log_id)
        if existing is not None:
            return existing
        position = await self._position(self._options.start)
        return GroupState.create(log_id, self._options.shards or limits.GROUP_SHARDS, position)

    async def _position(self, start: Glsn | str | datetime) -> Glsn:
        """Return the position before `start`."""
        if start == EARLIEST:
            return await self._parts.archived.earliest() - 1
        if start == "latest":
            return await self._parts.tail()
        if isinstance(start, datetime):
            return await self._parts.find_time(timestamp_us(start)) - 1
        check_number("start", start, EARLIEST, "latest")
        assert isinstance(start, int)
        if start > (tail := await self._parts.tail()) + 1:
            raise InvalidArgument(
                f"start is {start}, but the last position of log {self._parts.name!r} is {tail}: "
                f"begin at {tail + 1} or before"
            )
        return start - 1


def describe(name: str, state: GroupState, live: dict[str, float], tail: Glsn | None) -> GroupInfo:
    moving = {shard for member in state.members for shard in state.moving_from(member)}
    shards = tuple(
        ShardInfo(
            number,
            shard.owner,
            shard.position,
            None if tail is None else max(0, tail - shard.position),
            number in moving,
        )
        for number, shard in enumerate(state.shards)
    )
    members = tuple(
        MemberInfo(member, called, tuple(sorted(state.owned_by(member))), live.get(member, 0.0))
        for member, called in sorted(state.members.items())
    )
    return GroupInfo(name, tail, shards, members)
