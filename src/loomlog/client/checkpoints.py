"""Checkpoints: named positions of readers, which the metadata repository keeps.

A checkpoint is the last position that a reader is done with; it goes on one behind. Each is a
register (registers.py). One that a log of the same name left behind counts as absent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from loomlog.client.metadata import CachedLog, Metadata
from loomlog.client.registers import Register, Registers, Versioned
from loomlog.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    Retryable,
    SwapUnknown,
    VersionMismatch,
)
from loomlog.types import Glsn, LogId

VERSION: Final = 1
_NAME_CHARS_MAX: Final = 100  # with the log's name it is the name of a register
_POSITION_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CheckpointInfo(NamedTuple):
    """Where a reader is, and since when."""

    position: Glsn
    changed_us: int

    @property
    def changed(self) -> datetime:
        """When it was set last, in UTC."""
        return _EPOCH + timedelta(microseconds=self.changed_us)


class Checkpoint:
    """One reader's position in one log; it exists once it was set."""

    def __init__(
        self, name: str, log: CachedLog, register: Register, now_us: Callable[[], int]
    ) -> None:
        self.name = name
        self._log = log
        self._register = register
        self._now_us = now_us
        self._known: Versioned | None = None  # what we wrote last

    def __repr__(self) -> str:
        return f"<Checkpoint {self.name!r} of {self._log.name!r}>"

    async def get(self) -> Glsn | None:
        """The last position that the reader is done with; None if it was never set."""
        log_id = (await self._log.look()).log_id
        found = await self._register.get()
        info = None if found is None else decode(found.value, log_id)
        return None if info is None else info.position

    async def set(self, position: Glsn, *, back: bool = False) -> Glsn:
        """Move it on to `position`; where it is then. It moves back only with `back`: without,
        a reader that was overtaken by another life of its own changes nothing."""
        if not isinstance(position, int) or not 0 <= position <= _POSITION_MAX:
            raise InvalidArgument(f"a checkpoint is a position, 0 before the first, not {position}")
        log_id = (await self._log.get()).log_id
        found = self._known or await self._register.get()
        while True:
            info = None if found is None else decode(found.value, log_id)
            if info is not None and not back and info.position >= position:
                return info.position
            value = encode(CheckpointInfo(position, self._now_us()), log_id)
            try:
                version = await self._register.swap(value, found.version if found else 0)
            except (Conflict, SwapUnknown):
                found = await self._register.get()  # another was faster, or we were
                continue
            self._known = Versioned(value, version)
            return position

    async def delete(self) -> None:
        """Fine if there is none."""
        self._known = None
        while (found := await self._register.get()) is not None:
            try:
                await self._register.swap(None, found.version)
            except (Conflict, SwapUnknown):
                continue
            return


class Checkpoints(Registers):
    """Those of one log."""

    def __init__(
        self, log: CachedLog, metadata: Metadata, rng: random.Random, now_us: Callable[[], int]
    ) -> None:
        self._log = log
        self._metadata = metadata
        self._rng = rng
        self._now_us = now_us
        self._prefix = f"checkpoint/{log.name}/"

    def checkpoint(self, name: str) -> Checkpoint:
        if not isinstance(name, str) or not 1 <= len(name) <= _NAME_CHARS_MAX:
            raise InvalidArgument(
                f"a checkpoint's name has 1 to {_NAME_CHARS_MAX} characters, not {name!r}"
            )
        return Checkpoint(name, self._log, self.register(self._prefix + name), self._now_us)

    async def all(self) -> dict[str, CheckpointInfo]:
        """By name."""
        log_id = (await self._log.look()).log_id
        found = await self.registers(self._prefix)
        infos = {name: decode(one.value, log_id) for name, one in found.items()}
        return {n.removeprefix(self._prefix): info for n, info in infos.items() if info is not None}

    async def forget(self, log_id: LogId) -> None:
        """After the log was deleted. What is left over, if anything fails, counts for nobody."""
        try:
            left = await self.registers(self._prefix)
            for name, found in left.items():
                if decode(found.value, log_id) is not None:
                    await self.register(name).swap(None, found.version)
        except (Conflict, Retryable, SwapUnknown):
            pass


def encode(info: CheckpointInfo, log_id: LogId) -> bytes:
    return json.dumps({"version": VERSION, "log": log_id, **info._asdict()}).encode()


def decode(value: bytes, log_id: LogId) -> CheckpointInfo | None:
    """None if it is of another log."""
    try:
        fields = json.loads(value)
        version = fields["version"]
        if version == VERSION:
            info = CheckpointInfo(int(fields["position"]), int(fields["changed_us"]))
            return info if fields["log"] == log_id else None
    except (ValueError, KeyError, TypeError):
        raise Corrupt("the register does not hold a checkpoint: who wrote it?") from None
    raise VersionMismatch(
        f"the checkpoint is of version {version}, this program knows {VERSION}: update it"
    )
