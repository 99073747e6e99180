"""Authorities are exchanged while clients append to logs of all protocols: no append fails, also
when the connections end that began with the old ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loomlog import limits
from loomlog.client.log import Log
from loomlog.net import credentials
from loomlog.net.certificates import (
    list_certificates,
    renew_certificate,
    retire_authorities,
    rotate_authority,
)
from loomlog.net.connection import Connection
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing import LocalCluster

LOOK_S = 0.05
PING_S = 0.5
PATIENCE_S = 60.0
PROTOCOLS = (ORDERED, CHAINED, COPYSET)


async def test_no_append_fails_while_authorities_are_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PING_S", PING_S)
    monkeypatch.setattr(credentials, "LOOK_S", LOOK_S)
    certs, appended = tmp_path / "certs", dict.fromkeys(PROTOCOLS, 0)
    made: list[Connection[Any]] = []
    original = Connection.connection_made

    def connection_made(self: Connection[Any], transport: asyncio.BaseTransport) -> None:
        made.append(self)
        original(self, transport)

    monkeypatch.setattr(Connection, "connection_made", connection_made)

    async def write(log: Log, protocol: str) -> None:
        while True:
            await log.append(b"value")
            appended[protocol] += 1

    local = LocalCluster(nodes=3, secure=True, directory=tmp_path)
    async with local as cluster, asyncio.timeout(PATIENCE_S):
        logs = {each: await cluster.create_log(each, protocol=each) for each in PROTOCOLS}
        async with asyncio.TaskGroup() as group:  # which ends if an append fails
            writers = [group.create_task(write(logs[each], each)) for each in PROTOCOLS]

            async def all_append(count: int) -> None:
                goals = {each: done + count for each, done in appended.items()}
                while any(appended[each] < goal for each, goal in goals.items()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            await all_append(1)
            old = list(made)
            rotate_authority(certs)
            await all_append(1)
            for found in list_certificates(certs):
                renew_certificate(certs, found)
                await all_append(1)
            retire_authorities(certs)
            while not all(connection.closed for connection in old):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await all_append(5)
            for writer in writers:
                writer.cancel()
        for each, log in logs.items():
            read = 0
            async for _ in log.subscribe(1, await log.tail()):
                read += 1
            assert read >= appended[each] > 0  # one more may have been on its way
