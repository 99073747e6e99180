"""One bit flipped in metadata.sqlite does no harm, or the file is refused."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loomlog.errors import Corrupt, LoomError, Retryable, VersionMismatch
from loomlog.metadata.store.contract import StoredItem
from loomlog.metadata.store.sqlite import SqliteStore
from loomlog.storage.disk import ThreadWorker

HEADER_BITS = 100 * 8  # of the database; the most dangerous ones
RANDOM_FLIPS = 500

Content = tuple[int, dict[str, StoredItem]]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    worker = ThreadWorker(asyncio.get_running_loop())
    try:
        store = await SqliteStore.open(str(path), worker)
        try:
            yield store
        finally:
            await store.close()
    finally:
        worker.close()


async def content(path: Path) -> Content:
    async with opened(path) as store:
        return await store.last_version(), await store.list("")


async def fill(store: SqliteStore) -> None:
    for number in range(40):
        value = b'{"retention_s":0,"trimmed":0}' * (1 + number % 7)
        await store.compare_and_swap(f"log/{number}", 0, value)
    for number in range(0, 40, 4):
        item = await store.get(f"log/{number}")
        assert item is not None
        await store.compare_and_swap(f"log/{number}", item.version, None)
    await store.compare_and_swap("register/large", 0, bytes(range(256)) * 60)


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


async def test_a_flipped_bit_is_harmless_or_detected(tmp_path: Path) -> None:
    intact, damaged = tmp_path / "intact.sqlite", tmp_path / "damaged.sqlite"
    async with opened(intact) as store:
        await fill(store)
    before = await content(intact)
    size_bits = intact.stat().st_size * 8
    chance = random.Random(12)
    flips = [*range(0, HEADER_BITS, 3), *(chance.randrange(size_bits) for _ in range(RANDOM_FLIPS))]
    results = []
    for bit in flips:
        for leftover in tmp_path.glob("damaged.sqlite*"):
            leftover.unlink()
        shutil.copy(intact, damaged)
        flip(damaged, bit)
        results.append(await outcome(damaged))
    wrong = [
        (bit, found) for bit, found in zip(flips, results, strict=True) if is_wrong(found, before)
    ]
    assert wrong == []
    assert sum(isinstance(found, LoomError) for found in results) > len(flips) / 4


async def outcome(path: Path) -> Content | LoomError:
    try:
        return await content(path)
    except LoomError as error:
        return error


def is_wrong(found: Content | LoomError, before: Content) -> bool:
    """Return whether a read neither returns the written value nor is refused with a reason."""
    if not isinstance(found, LoomError):
        return found != before
    text = str(found)
    return "\n" in text or (isinstance(found, Retryable) and "damaged" not in text)


@pytest.mark.parametrize("bit", [60 * 8 + 7, 63 * 8, 63 * 8 + 1, 63 * 8 + 2])
async def test_a_damaged_format_number_is_not_another_format(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "metadata.sqlite"
    async with opened(path) as store:
        await fill(store)
    flip(path, bit)
    with pytest.raises(Corrupt, match=r"its header says format .* restore the file from a copy"):
        await content(path)
    flip(path, bit)
    assert await content(path)


async def test_a_flipped_bit_in_the_log_of_a_killed_process_costs_at_most_its_last_swap(
    tmp_path: Path,
) -> None:
    """The last transaction looks torn by the crash; if it was not, nodes reveal it."""
    path = tmp_path / "metadata.sqlite"
    async with opened(path) as store:
        for number in range(12):
            await store.compare_and_swap(f"log/{number}", 0, b"x" * 100 * number)
        states = [(await store.last_version(), await store.list(""))]
        await store.compare_and_swap("log/last", 0, b"x")
        states.append((await store.last_version(), await store.list("")))
        killed = {
            name: path.with_name(name).read_bytes() for name in (path.name, f"{path.name}-wal")
        }
    wal = killed[f"{path.name}-wal"]
    chance = random.Random(12)
    flips = [*range(0, 56 * 8, 7), *(chance.randrange(len(wal) * 8) for _ in range(150))]
    results = []
    for bit in flips:
        for name, data in killed.items():
            (tmp_path / name).write_bytes(data)
        flip(tmp_path / f"{path.name}-wal", bit)
        results.append(await outcome(path))
    wrong = [
        (bit, found)
        for bit, found in zip(flips, results, strict=True)
        if not isinstance(found, Corrupt) and found not in states
    ]
    assert wrong == []
    assert sum(isinstance(found, Corrupt) for found in results) > len(flips) / 2


async def test_a_log_that_was_cut_is_read_up_to_its_last_whole_transaction(tmp_path: Path) -> None:
    """A crash leaves the same: what is missing at the end was not committed."""
    path = tmp_path / "metadata.sqlite"
    states = []
    async with opened(path) as store:
        for number in range(6):
            await store.compare_and_swap(f"log/{number}", 0, b"x")
            states.append((await store.last_version(), await store.list("")))
        killed = {
            name: path.with_name(name).read_bytes() for name in (path.name, f"{path.name}-wal")
        }
    wal = killed[f"{path.name}-wal"]
    for cut in range(len(wal) // 2, len(wal), 997):
        (tmp_path / path.name).write_bytes(killed[path.name])
        (tmp_path / f"{path.name}-wal").write_bytes(wal[:cut])
        assert await outcome(path) in states, cut


@pytest.mark.parametrize("text", [b'"retention_s":0', b'"trimmed":0'])
async def test_the_bit_that_trimmed_a_log_is_detected(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "metadata.sqlite"
    async with opened(path) as store:
        await store.compare_and_swap("log/events", 0, b"{%b}" % text)
    data = path.read_bytes()
    assert data.count(text) == 1
    path.write_bytes(data.replace(text, text[:-1] + b"8"))  # one bit
    with pytest.raises(Corrupt, match=r"'log/events'.*restore"):
        await content(path)


async def test_a_page_that_was_not_written_is_detected(tmp_path: Path) -> None:
    """The disk kept an old version of a page: all checksums of records are right."""
    path, page_bytes = tmp_path / "metadata.sqlite", 4096
    async with opened(path) as store:
        await fill(store)
    old = path.read_bytes()
    async with opened(path) as store:
        found = await store.get("log/5")
        assert found is not None
        await store.compare_and_swap("log/5", found.version, found.value.swapcase())
    new = path.read_bytes()
    detected = 0
    for at in range(0, len(new), page_bytes):
        end = at + page_bytes
        if new[at:end] != old[at:end] and b"log/5" in new[at:end]:
            path.write_bytes(new[:at] + old[at:end] + new[end:])
            with pytest.raises(Corrupt):
                await content(path)
            detected += 1
    assert detected


async def test_files_of_an_older_format_are_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "metadata.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE items (key TEXT PRIMARY KEY, value BLOB)")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(VersionMismatch, match="format 1"):
        await content(path)
