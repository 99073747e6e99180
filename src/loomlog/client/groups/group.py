"""The public class Group: a member's share of a log, and the operators' view of a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from loomlog import limits
from loomlog.client.arguments import (
    check_count,
    check_member,
    check_number,
    check_seconds,
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

_ROWS_MAX: Final = 4096  # searched at once for entries of this member
_TURN_S: Final = 0.002  # after this, a consumer that never awaits lets other tasks run
_PASSED_S: Final = 5.0  # between commits of positions where only other members had entries
EARLIEST: Final = "earliest"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The arguments of `Log.group`; `shards` and `start` are for a new group."""

    shards: int | None = None
    start: Glsn | str | datetime = EARLIEST
    session_timeout_s: float = limits.GROUP_SESSION_S
    commit_every_s: float | None = None
    member: str | None = None

    def __post_init__(self) -> None:
        if self.shards is not None:
            check_count("shards", self.shards, limits.GROUP_SHARDS_MAX)
        check_seconds("session_timeout_s", self.session_timeout_s, 0.5)
        check_member(self.member)
        if self.commit_every_s is not None:
            check_seconds("commit_every_s", self.commit_every_s, 0.01)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The state of one shard of a group."""

    number: int
    owner: str  # the id of a member; "" if no member owns it
    position: Glsn  # the last committed position
    behind: int | None  # positions from there to the tail; None if the tail is not known
    moving: bool  # whether its owner has to commit and release it


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """The state of one member of a group."""

    id: str
    name: str
    shards: tuple[int, ...]
    left_s: float  # until its lease expires unless it is renewed


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The state of a group."""

    name: str
    tail: Glsn | None  # of the log; None if it is not known
    shards: tuple[ShardInfo, ...]
    members: tuple[MemberInfo, ...]

    @property
    def position(self) -> Glsn:
        """The position up to which all shards are committed."""
        return min(shard.position for shard in self.shards)

    @property
    def behind(self) -> int | None:
        """The number of positions from the slowest shard to the tail; None if that is not known."""
        return None if self.tail is None else max(0, self.tail - self.position)


class Group:
    """A consumer group of one log, as returned by `Log.group`.

    `async with` joins the group. Then `async for` iterates over the entries of the shards that this
    member owns, in order; it raises Fenced if this member was replaced, and Trimmed if entries were
    trimmed before the group has read them."""

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
        self._idle = True  # whether the consumer has processed all entries that it got
        self._stale = False  # whether to look at the group's state before the next entry
        self._reader = PieceFetcher(lambda start: parts.pieces.rows(start, None), self._wake)
        self._rows: ShardRows | None = None
        self._handout: Handout | None = None  # the entries that the consumer iterates over
        self._last: Glsn = -1  # the last entry in the current handout, or -1 ...
        self._end: Glsn = 0  # ... and how far the log was searched for it
        self._committed_at: Glsn = 0
        self._committed_s = 0.0
        self._turn_s = 0.0

    def __repr__(self) -> str:
        return f"<Group {self.name!r} of {self._parts.name!r}>"

    # ---- membership

    async def __aenter__(self) -> Self:
        if self._membership is not None:
            raise InvalidArgument(f"group {self.name!r} was joined already: call log.group again")
        # Import this before joining: it takes long, and the lease could expire meanwhile.
        from loomlog.client.groups.shard_rows import ready_shard_rows

        self._ready_rows = ready_shard_rows
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
        """The id of this member; raise InvalidArgument before it has joined."""
        return self._joined().member

    @property
    def shards(self) -> frozenset[int]:
        """The shards that this member currently owns."""
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
        """Let other tasks run, including the one that renews the lease."""
        await asyncio.sleep(0)
        self._turn_s = self._loop.time() + _TURN_S

    async def commit(self) -> None:
        """Record that all entries delivered so far are processed, including the current one.

        Raise Fenced if this member was replaced; other members then get what it has not committed.
        """
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
        """Return the next entries, at least one. All entries returned before count as processed."""
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
        """Adopt the newest state of the group, and commit if that is due."""
        self._adopt()
        self._stale = False
        if self._is_commit_due() or (self._consumption.stopped and not self._consumption.dirty):
            try:
                await self._commit()
            except (Retryable, SwapUnknown):
                pass  # it remains due

    def _is_commit_due(self) -> bool:
        """Return whether an automatic commit is due: after `commit_every_s` if that is set, and now
        and then if only rows of other members were passed over, so that the group does not seem to
        lag."""
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
            self._interrupt()  # the next entries may belong to other members now
        if consumption.reading < reading or not consumption.floors:
            self._close_reader()

    def _advance(self) -> None:
        """Pass over the rows of other members after the last entry that was handed out."""
        self._note_reached()
        if self._consumption.reading == self._last:
            self._consumption.pass_over(max(self._last, self._end))
            self._last = -1
            self._handout = None

    def _note_reached(self) -> None:
        """Set `reading` to the entry that the consumer got last."""
        if self._handout is not None and (reached := self._handout.note()) is not None:
            self._consumption.reading = reached

    def _interrupt(self) -> None:
        """Deliver no more entries before the state of the group is looked at."""
        self._stale = True
        if self._handout is not None:
            self._handout.stop()
            self._handout = None

    def _has_rows(self) -> bool:
        """Return whether there are rows that were not searched yet."""
        return self._rows is not None and self._rows.end > self._consumption.reading

    def _find_rows(self) -> bool:
        """Take over the rows that have arrived; return whether there are any."""
        if not self._consumption.floors:
            return False
        try:
            self._rows = self._ready_rows(self._reader, self._count)
        except Trimmed as error:
            self._close_reader()
            raise Trimmed(
                f"group {self.name!r} is behind the first entry kept: {error}; or skip what is "
                f"gone with `loom group reset {self._parts.name} {self.name} --to earliest`"
            ) from None
        except (DataLoss, Corrupt):  # if files of an archive are missing, they may come back
            self._close_reader()
            raise
        return self._has_rows()

    def _take(self) -> Iterable[Entry] | None:
        """Return the entries of this member among the next rows, or None if there are none."""
        assert self._rows is not None
        taken = self._rows.take(self._consumption, _ROWS_MAX)
        if not taken.last:
            self._consumption.pass_over(taken.end)
            return None
        self._last, self._end = taken.last, taken.end
        return taken.entries

    async def _wait(self) -> None:
        """Wait for the next piece, or for a change of the group."""
        if self._consumption.floors:
            self._reader.begin(self._consumption.reading + 1)
        await self._wake.wait()

    def _close_reader(self) -> None:
        self._reader.close()
        self._rows = None
        self._last = -1

    def _changed(self) -> None:
        """Called by the membership when something may have changed."""
        membership = self._membership
        if membership is None:
            return
        self._note_reached()
        if (
            membership.failure is not None
            or not membership.certain  # other members may have got the next entries
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
        """Return the members, owners and committed positions of the group. Raise NotFound if the
        group does not exist."""
        log = await self._parts.cached.fetch(Verb.CHECKPOINT)
        state = await self._store.get(log.log_id)
        if state is None:
            raise self._missing()
        return describe(self.name, state, await self._leases.live(), await self._parts.known_tail())

    async def reset(self, start: Glsn | str | datetime) -> GroupInfo:
        """Make all shards continue at `start`: a position, a datetime, "earliest" or "latest".
        Return the new state. Raise Conflict while the group has members."""
        log_id = (await self._parts.cached.fetch(Verb.CHECKPOINT)).log_id
        position = await self._position(start)
        expired = await self._check_idle("reset")

        def step(state: GroupState) -> GroupState:
            if state.members.keys() - expired:
                raise Conflict(
                    f"a member has just joined group {self.name!r}: stop it, then reset the group"
                )
            return state.reset(position)

        await self._store.change(log_id, step)
        return await self.describe()

    async def delete(self) -> None:
        """Delete the group and its positions. Raise Conflict while it has members."""
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
        """Return the state of the group, or its initial state if it does not exist yet."""
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
        MemberInfo(member, label, tuple(sorted(state.owned_by(member))), live.get(member, 0.0))
        for member, label in sorted(state.members.items())
    )
    return GroupInfo(name, tail, shards, members)
