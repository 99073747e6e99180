"""Compression as a setting of a log: clients that do not choose themselves follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loomlog import connect, errors
from loomlog.testing import LocalCluster

WORD = b"a word that is easy to find"


def stored_words(directory: Path) -> int:
    """Return how often the word is in the files of all servers as it is."""
    files = (file for file in directory.rglob("*") if file.is_file())
    return sum(file.read_bytes().count(WORD) for file in files)


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_clients_compress_as_the_log_says(tmp_path: Path, protocol: str) -> None:
    async with LocalCluster(1, directory=tmp_path) as cluster:
        log = await cluster.create_log("events", protocol, replicas=1, compression="zstd")
        await log.append_many([WORD * 20] * 50)
        assert stored_words(tmp_path) < 50  # a part of a block may be literal

        await cluster.switch_log("events", compression="none")
        await log.append(WORD)
        before = stored_words(tmp_path)
        await log.append(WORD * 100)
        assert stored_words(tmp_path) >= before + 100

        segments = (await log.describe()).segments
        assert [segment.compression for segment in segments] == ["zstd", "none"]
        assert [entry.value async for entry in log.subscribe(1, stop=await log.tail())] == (
            [WORD * 20] * 50 + [WORD, WORD * 100]
        )


async def test_a_client_may_choose_for_itself(tmp_path: Path) -> None:
    servers = LocalCluster(1, directory=tmp_path)
    async with servers as cluster:
        await cluster.create_log("plain", replicas=1)
        await cluster.create_log("packed", replicas=1, compression="lz4")
        async with await connect(servers.address, compression="zstd") as packs:
            await packs.log("plain").append(WORD * 100)
        assert stored_words(tmp_path) < 100
        async with await connect(servers.address, compression="none") as does_not:
            await does_not.log("packed").append(WORD * 100)
        assert stored_words(tmp_path) >= 100


async def test_other_switches_keep_the_compression() -> None:
    async with LocalCluster(1) as cluster:
        log = await cluster.create_log("events", replicas=1, compression="lz4")
        await cluster.switch_log("events", streams=2)
        assert (await log.describe()).segments[-1].compression == "lz4"


async def test_a_compression_that_does_not_exist_is_refused() -> None:
    async with LocalCluster(1) as cluster:
        with pytest.raises(errors.InvalidArgument, match="no compression 'gzip': use one of none"):
            await cluster.create_log("events", replicas=1, compression="gzip")
        await cluster.create_log("events", replicas=1)
        with pytest.raises(errors.InvalidArgument, match="no compression 'gzip'"):
            await cluster.switch_log("events", compression="gzip")
