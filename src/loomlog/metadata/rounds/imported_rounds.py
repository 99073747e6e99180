"""The initial rounds of a new quorum of metadata repositories, stored in the MetaStore meanwhile.

Metadata that is moved to a quorum, or rebuilt for one, comes with rounds, which cannot be written
into the round logs of other machines. So they are stored in the MetaStore; the first leader makes
them durable in its round log, then removes them. If it dies in between, some are there twice, which
is harmless because known rounds are skipped.

    metadata/seed             how many parts, and the CRC of all; written last, removed first
    metadata/seed/00000001    a part
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from functools import partial
from typing import Final

from crc32c import crc32c

from loomlog.errors import Corrupt, LoomError
from loomlog.limits import KIB
from loomlog.metadata.rounds import RoundLog
from loomlog.metadata.store.contract import MetaStore

PART_BYTES: Final = 512 * KIB  # etcd accepts at most 1.5 MiB
_HEAD: Final = "metadata/seed"
_SIZE: Final = struct.Struct("<I")


def items(records: Sequence[bytes]) -> dict[str, bytes]:
    """Return the items of a MetaStore, in writing order, for the next leader."""
    blob = b"".join(_SIZE.pack(len(record)) + record for record in records)
    parts = [blob[at : at + PART_BYTES] for at in range(0, len(blob), PART_BYTES)]
    head = json.dumps({"parts": len(parts), "crc": int(crc32c(blob))}).encode()
    return {_part_key(number): part for number, part in enumerate(parts, 1)} | {_HEAD: head}


async def write(store: MetaStore, records: Sequence[bytes]) -> None:
    """Let the next leader begin with these rounds, replacing any that wait."""
    await _remove(store)
    for key, value in items(records).items():
        await store.compare_and_swap(key, 0, value)


async def import_rounds(store: MetaStore, round_log: RoundLog) -> RoundLog:
    """Return the round log of a new leader, including the imported rounds."""
    records = await read(store)
    if records is None:
        return round_log
    imported = _ImportedRounds(round_log, [*records, *round_log.read()])
    round_log.begin(imported.read)
    await asyncio.gather(*(_append(round_log, record) for record in records))
    await _remove(store)
    return imported


class _ImportedRounds:
    """A round log preceded by imported rounds."""

    def __init__(self, round_log: RoundLog, records: list[bytes]) -> None:
        self._records = records
        self._round_log = round_log
        self.epoch = round_log.epoch
        self.is_doubtful = round_log.is_doubtful
        self.trust = round_log.trust
        self.begin = round_log.begin
        self.append = round_log.append
        self.close = round_log.close

    @property
    def record_format(self) -> int:
        return self._round_log.record_format

    def read(self) -> list[bytes]:
        return self._records


async def _append(round_log: RoundLog, record: bytes) -> None:
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    round_log.append(round_log.epoch, record, partial(_settle, stored))
    await stored


def _settle(stored: asyncio.Future[None], error: BaseException | None) -> None:
    if stored.done():
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error if isinstance(error, LoomError) else LoomError(str(error)))


async def read(store: MetaStore) -> list[bytes] | None:
    """Return the imported rounds, or None."""
    head = await store.get(_HEAD)
    if head is None:
        return None
    said = json.loads(head.value)
    parts = [await store.get(_part_key(number)) for number in range(1, said["parts"] + 1)]
    blob = b"".join(part.value for part in parts if part is not None)
    if int(crc32c(blob)) != said["crc"]:
        raise Corrupt("the rounds to begin with are damaged: import or rebuild the metadata again")
    records, at = [], 0
    while at < len(blob):
        (size,) = _SIZE.unpack_from(blob, at)
        at += _SIZE.size + size
        records.append(blob[at - size : at])
    return records


async def _remove(store: MetaStore) -> None:
    for key in (_HEAD, *await store.list(f"{_HEAD}/")):
        found = await store.get(key)
        if found is not None:
            await store.compare_and_swap(key, found.version, None)


def _part_key(number: int) -> str:
    return f"{_HEAD}/{number:08d}"
