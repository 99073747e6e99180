"""Checkpoints: named reader positions, stored in the metadata repository.

A checkpoint is the last position that a reader has processed; the reader resumes after it. It is a
register (registers.py) that names its log by id, so that checkpoints of a deleted log of the same
name are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple

from loomlog.client.arguments import is_int, is_name
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.kv.registers import Register, Registers, Versioned
from loomlog.client.loglets.registry import Loglets
from loomlog.core.permissions import Verb
from loomlog.errors import Conflict, Corrupt, InvalidArgument, SwapUnknown, VersionMismatch, shown
from loomlog.limits import POSITION_MAX
from loomlog.types import Glsn, LogId, moment_of

VERSION: Final = 1
_NAME_CHARS_MAX: Final = 100  # the register's name also contains the log's name


class CheckpointInfo(NamedTuple):
    """The last position that a reader has processed, and when it was set."""

    position: Glsn
    changed_us: int  # since 1970

    @property
    def changed(self) -> datetime:
        """When the checkpoint was last set, in UTC."""
        return moment_of(self.changed_us)


class Checkpoint:
    """A named reader position in one log, as returned by `Log.checkpoint`. It exists once it is
    set."""

    def __init__(
        self,
        name: str,
        log: CachedLog,
        loglets: Loglets,
        register: Register,
        now_us: Callable[[], int],
    ) -> None:
        self.name = name
        self._log = log
        self._loglets = loglets
        self._register = register
        self._now_us = now_us
        self._written: Versioned | None = None  # what this object wrote last

    def __repr__(self) -> str:
        return f"<Checkpoint {self.name!r} of {self._log.name!r}>"

    async def get(self) -> Glsn | None:
        """Return the last position that the reader has processed, or None if it was never set."""
        log_id = (await self._log.fetch(Verb.CHECKPOINT)).log_id
        found = await self._register.get()
        info = None if found is None else decode(found.value, log_id)
        return None if info is None else info.position

    async def set(self, position: Glsn, *, back: bool = False) -> Glsn:
        """Advance the checkpoint to `position`, and return the position where it is afterwards.

        A lower position changes nothing unless `back` is set, so that a stale process cannot undo
        the progress of its successor. Raise InvalidArgument if `position` is beyond the tail."""
        if not is_int(position) or not 0 <= position <= POSITION_MAX:
            raise InvalidArgument(
                f"a checkpoint is a position up to {POSITION_MAX}, 0 before the first, "
                f"not {shown(position)}"
            )
        log_id = await self._check_written(position)
        current = self._written or await self._register.get()
        while True:
            info = None if current is None else decode(current.value, log_id)
            if info is not None and not back and info.position >= position:
                return info.position
            value = encode(CheckpointInfo(position, self._now_us()), log_id)
            try:
                version = await self._register.swap(value, current.version if current else 0)
            except (Conflict, SwapUnknown):
                current = await self._register.get()  # changed, possibly by this very swap
                continue
            self._written = Versioned(value, version)
            return position

    async def _check_written(self, position: Glsn) -> LogId:
        """Return the id of the log; raise InvalidArgument if it ends before `position`."""
        cached = self._log
        log = cached.last_known or await cached.fetch(Verb.CHECKPOINT)
        if position > max(log.tail, cached.reached):
            log = await self._loglets.fetch_with_tail()
            if position > log.tail:
                raise InvalidArgument(
                    f"{cached.name} ends at {log.tail}: set a position up to there"
                )
        return log.log_id

    async def delete(self) -> None:
        """Delete the checkpoint, if it exists."""
        self._written = None
        while (current := await self._register.get()) is not None:
            try:
                await self._register.swap(None, current.version)
            except (Conflict, SwapUnknown):
                continue
            return


class Checkpoints(Registers):
    """The checkpoints of one log."""

    def __init__(self, log: CachedLog, loglets: Loglets, client: Client) -> None:
        self._log = log
        self._loglets = loglets
        self._metadata = client.metadata
        self._rng = client.rng
        self._now_us = client.producer.now_us
        self._prefix = f"checkpoint/{log.name}/"

    def checkpoint(self, name: str) -> Checkpoint:
        if not is_name(name, _NAME_CHARS_MAX):
            raise InvalidArgument(
                f"a checkpoint's name has 1 to {_NAME_CHARS_MAX} printable characters, "
                f"not {shown(name)}"
            )
        register = self.register(self._prefix + name)
        return Checkpoint(name, self._log, self._loglets, register, self._now_us)

    async def all(self) -> dict[str, CheckpointInfo]:
        """Return all checkpoints of the log, by name."""
        log_id = (await self._log.fetch(Verb.CHECKPOINT)).log_id
        found = await self.registers(self._prefix)
        infos = {name: decode(one.value, log_id) for name, one in found.items()}
        return {n.removeprefix(self._prefix): info for n, info in infos.items() if info is not None}

    async def forget(self, log_id: LogId) -> None:
        """Delete the checkpoints of a deleted log."""
        await self._forget(self._prefix, lambda value: decode(value, log_id) is not None)


def encode(info: CheckpointInfo, log_id: LogId) -> bytes:
    return json.dumps({"version": VERSION, "log": log_id, **info._asdict()}).encode()


def decode(value: bytes, log_id: LogId) -> CheckpointInfo | None:
    """Return the checkpoint, or None if it belongs to another log."""
    try:
        fields = json.loads(value)
        version = fields["version"]
        if version == VERSION:
            info = CheckpointInfo(int(fields["position"]), int(fields["changed_us"]))
            return info if fields["log"] == log_id else None
    except (ValueError, KeyError, TypeError):
        raise Corrupt(
            "the register does not hold a checkpoint: did another program write it?"
        ) from None
    raise VersionMismatch(
        f"the checkpoint is of version {version}, this program knows {VERSION}: update it"
    )
