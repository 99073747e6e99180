"""The simulated disk: synced data survives, and other data may be lost in every legal way."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable
from random import Random

import pytest

from loomlog.storage.files import File, Files, Worker
from loomlog.testing.sim import Process, SimDisk, SimFiles, Simulation, World
from loomlog.testing.sim.blocks import FileBlocks

SEEDS = range(60)


def disk(seed: int = 1) -> SimDisk:
    return SimDisk(World(seed), "a")


def after_crash(seed: int, prepare: Callable[[SimFiles], object]) -> SimFiles:
    made = disk(seed)
    files = made.mount()
    files.make_directory("/d")
    files.make_directory("/e")
    files.sync_directory("/")
    prepare(files)
    made.crash()
    return made.mount()


def test_it_is_what_the_storage_engine_expects() -> None:
    files: Files = disk().mount()
    file: File = files.open("/f", create=True)
    file.close()

    async def main(process: Process) -> None:
        worker: Worker = process.worker()
        worker.close()

    with Simulation(1) as sim:
        process = sim.host("a").start(main)
        sim.run(lambda: process.finished)


def test_files_and_directories() -> None:
    files = disk().mount()
    files.make_directory("/a/b")
    files.make_directory("/a/b")
    files.open("/a/b/two", create=True).write([b"2"], 0)
    files.open("/a/b/one", create=True).write([b"1"], 0)
    assert files.list("/a") == ["b"]
    assert files.list("/a/b/") == ["one", "two"]
    files.rename("/a/b/two", "/a/b/one")
    assert files.list("/a/b") == ["one"]
    assert files.open("/a/b/one").read(10, 0) == b"2"
    files.rename("/a/b", "/c")
    assert files.exists("/c/one")
    files.remove("/c/one")
    assert not files.exists("/c/one")
    files.remove_tree("/c")
    assert files.list("/") == ["a"]


def test_what_is_not_there_cannot_be_used() -> None:
    files = disk().mount()
    files.make_directory("/d")
    missing: list[Callable[[], object]] = [
        lambda: files.open("/nothing"),
        lambda: files.open("/no/where", create=True),
        lambda: files.list("/nothing"),
        lambda: files.rename("/nothing", "/d/x"),
        lambda: files.remove("/nothing"),
        lambda: files.remove_tree("/nothing"),
        lambda: files.sync_directory("/nothing"),
    ]
    for use in missing:
        with pytest.raises(FileNotFoundError):
            use()
    with pytest.raises(IsADirectoryError):
        files.open("/d")
    with pytest.raises(IsADirectoryError):
        files.remove("/d")


def test_reads_and_sizes() -> None:
    file = disk().mount().open("/f", create=True)
    file.write([b"abc", memoryview(b"def"), bytearray(b"ghi")], 4094)
    assert file.size() == 4103
    assert file.read(100, 4090) == b"\0\0\0\0abcdefghi"
    assert file.read(3, 4095) == b"bcd"
    assert file.read(10, 5000) == b""
    file.truncate(4096)
    file.allocate(4100)
    assert file.read(100, 4094) == b"ab\0\0\0\0"
    file.allocate(10)
    assert file.size() == 4100
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.read(1, 0)


def test_a_large_allocation_costs_nothing() -> None:
    blocks = FileBlocks()
    blocks.resize(64 * 1024 * 1024)
    blocks.write(b"x", 63 * 1024 * 1024)
    assert len(blocks._pages) == 1
    assert sum(map(sys.getsizeof, blocks._pages.values())) < 10_000
    assert blocks.read(2, 63 * 1024 * 1024) == b"x\0"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sparse_file_behaves_like_a_plain_one(seed: int) -> None:
    random = Random(seed)
    blocks, plain = FileBlocks(), bytearray()
    for _ in range(60):
        offset, data = random.randrange(20_000), random.randbytes(random.randrange(9000))
        if random.random() < 0.2:
            plain = plain[:offset] + bytes(max(0, offset - len(plain)))
            blocks.resize(offset)
        elif data:
            plain += bytes(max(0, offset + len(data) - len(plain)))
            plain[offset : offset + len(data)] = data
            blocks.write(data, offset)
        if random.random() < 0.1:
            blocks.sync()
        assert blocks.size == len(plain)
        assert blocks.read(30_000, 0) == plain
    blocks.sync()
    blocks.crash(random)
    assert blocks.read(30_000, 0) == plain


@pytest.mark.parametrize("seed", SEEDS)
def test_synced_writes_survive_whatever_follows(seed: int) -> None:
    def prepare(files: SimFiles) -> None:
        file = files.open("/d/f", create=True)
        files.sync_directory("/d")
        file.write([b"s" * 3000], 0)
        file.sync()
        file.write([b"u" * 3000], 3000)
        file.allocate(100_000)

    file = after_crash(seed, prepare).open("/d/f")
    assert file.read(3000, 0) == b"s" * 3000
    assert set(file.read(100_000, 3000)) <= set(b"u\0")


def test_unsynced_writes_are_kept_lost_or_torn_independently() -> None:
    def prepare(files: SimFiles) -> None:
        file = files.open("/d/f", create=True)
        files.sync_directory("/d")
        file.allocate(4096)
        file.sync()
        file.write([b"a" * 2048], 0)
        file.write([b"b" * 2048], 2048)

    fates = set()
    torn_bytes = set()
    for seed in range(200):
        content = after_crash(seed, prepare).open("/d/f").read(4096, 0)
        fates.add(tuple(_fate(content[i : i + 2048]) for i in (0, 2048)))
        torn_bytes.add(content.count(b"a") % 512)
    assert len(fates) == 9  # every pair of kept, lost, torn
    assert len(torn_bytes) > 5  # not only in sectors


def _fate(part: bytearray) -> str:
    written = len(part) - part.count(0)
    return "lost" if not written else "kept" if written == len(part) else "torn"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_truncation_that_was_not_synced_may_come_undone(seed: int) -> None:
    def prepare(files: SimFiles) -> None:
        file = files.open("/d/f", create=True)
        files.sync_directory("/d")
        file.write([b"x" * 9000], 0)
        file.sync()
        file.truncate(10)

    content = after_crash(seed, prepare).open("/d/f").read(9000, 0)
    assert content in (b"x" * 9000, b"x" * 10)


def test_a_file_in_a_directory_that_was_not_synced_may_vanish() -> None:
    def prepare(files: SimFiles) -> None:
        files.open("/d/f", create=True).sync()

    assert {after_crash(seed, prepare).exists("/d/f") for seed in SEEDS} == {True, False}


def test_a_directory_whose_parent_was_not_synced_may_vanish_with_all_in_it() -> None:
    def prepare(files: SimFiles) -> None:
        files.make_directory("/d/new")
        files.open("/d/new/f", create=True).sync()
        files.sync_directory("/d/new")

    found = [after_crash(seed, prepare) for seed in SEEDS]
    assert {(files.exists("/d/new"), files.exists("/d/new/f")) for files in found} == {
        (True, True),
        (False, False),
    }


def test_replacing_a_file_by_rename_leaves_the_old_or_the_new_one() -> None:
    def prepare(files: SimFiles) -> None:
        for name, content in (("/d/meta", b"old"), ("/d/tmp", b"new")):
            file = files.open(name, create=True)
            file.write([content], 0)
            file.sync()
            if name == "/d/meta":
                files.sync_directory("/d")
        files.rename("/d/tmp", "/d/meta")

    def prepare_synced(files: SimFiles) -> None:
        prepare(files)
        files.sync_directory("/d")

    def contents(how: Callable[[SimFiles], None]) -> set[bytes]:
        return {bytes(after_crash(seed, how).open("/d/meta").read(9, 0)) for seed in SEEDS}

    assert contents(prepare) == {b"old", b"new"}
    assert contents(prepare_synced) == {b"new"}


def test_a_rename_between_directories_is_atomic() -> None:
    def prepare(files: SimFiles) -> None:
        files.open("/d/f", create=True).sync()
        files.sync_directory("/d")
        files.rename("/d/f", "/e/g")

    found = [after_crash(seed, prepare) for seed in SEEDS]
    assert {(files.exists("/d/f"), files.exists("/e/g")) for files in found} == {
        (True, False),
        (False, True),
    }


def test_changes_of_a_directory_survive_in_order() -> None:
    def prepare(files: SimFiles) -> None:
        for number in range(4):
            files.open(f"/d/{number}", create=True)

    found = {tuple(after_crash(seed, prepare).list("/d")) for seed in range(200)}
    assert found == {tuple("0123"[:count]) for count in range(5)}


def test_a_removed_tree_that_is_made_again_has_nothing_of_the_old_one() -> None:
    def prepare(files: SimFiles) -> None:
        files.open("/d/old", create=True).sync()
        files.sync_directory("/d")
        files.remove_tree("/d")
        files.make_directory("/d")
        files.sync_directory("/")

    for seed in SEEDS:
        assert after_crash(seed, prepare).list("/d") == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_synced_in_a_directory_made_again_survives(seed: int) -> None:
    def make_twice(files: SimFiles) -> None:
        files.make_directory("/d/made/inner")
        files.remove_tree("/d/made")
        files.make_directory("/d/made/inner")
        file = files.open("/d/made/inner/file", create=True)
        file.sync()
        for directory in ("/d/made/inner", "/d/made", "/d"):  # the inner ones first
            files.sync_directory(directory)

    assert after_crash(seed, make_twice).exists("/d/made/inner/file")


def test_the_page_cache_survives_a_kill_and_the_old_mount_is_stale() -> None:
    made = disk()
    files = made.mount()
    file = files.open("/f", create=True)
    file.write([b"not synced"], 0)
    made.unmount()
    uses: list[Callable[[], None]] = [
        lambda: file.write([b"ghost"], 0),
        lambda: files.remove("/f"),
        file.sync,
    ]
    for use in uses:
        with pytest.raises(OSError, match="Input/output"):
            use()
    assert made.mount().open("/f").read(10, 0) == b"not synced"


def test_a_full_disk_says_so_until_there_is_room() -> None:
    made = disk()
    files = made.mount()
    file = files.open("/f", create=True)
    made.settings.error = errno.ENOSPC
    uses: list[Callable[[], None]] = [
        lambda: file.write([b"x"], 0),
        lambda: file.allocate(10),
        file.sync,
    ]
    for use in uses:
        with pytest.raises(OSError, match="No space left"):
            use()
    made.settings.error = None
    file.write([b"x"], 0)
    assert file.read(1, 0) == b"x"


def test_cached_reads_sometimes_miss() -> None:
    file = disk().mount().open("/f", create=True)
    file.write([b"x"], 0)
    answers = [file.read_cached(1, 0) for _ in range(200)]
    assert None in answers
    assert bytearray(b"x") in answers


def test_a_worker_runs_jobs_in_order_and_tells_the_loop() -> None:
    story: list[object] = []

    def fail() -> None:
        raise OSError(errno.EIO, "broken")

    async def main(process: Process) -> None:
        worker = process.worker()
        done = asyncio.Event()
        worker.run([lambda: story.append(1), lambda: story.append(2)], story.append)
        worker.run([fail, lambda: story.append("never")], lambda error: story.append(type(error)))
        worker.run([], lambda error: done.set())
        await done.wait()
        worker.run([lambda: story.append(3), lambda: story.append(4)], story.append)
        worker.close()
        assert story[-1] == 4  # close waits for the work; the loop is told later
        await asyncio.sleep(0.1)
        with pytest.raises(RuntimeError, match="closed"):
            worker.run([], print)

    with Simulation(1) as sim:
        process = sim.host("a").start(main)
        sim.run(lambda: process.finished)
    assert story == [1, 2, None, OSError, 3, 4, None]


def test_a_crash_can_fall_between_a_write_and_its_sync() -> None:
    async def main(process: Process) -> None:
        file = process.files.open("/f", create=True)
        process.files.sync_directory("/")
        file.allocate(8)
        file.sync()
        process.worker().run(
            [lambda: file.write([b"12345678"], 0), file.sync, lambda: acked.append(True)],
            lambda error: None,
        )
        await asyncio.Event().wait()

    outcomes = set()
    for seed in range(100):
        acked: list[bool] = []
        with Simulation(seed) as sim:
            host = sim.host("a")
            host.start(main)
            sim.run(sim.world.random.uniform(0.0001, 0.0005))
            host.crash()
            files = host.disk.mount()
            content = bytes(files.open("/f").read(8, 0)) if files.exists("/f") else b""
            outcomes.add((bool(acked), content == b"12345678"))
    assert outcomes == {(False, False), (False, True), (True, True)}
