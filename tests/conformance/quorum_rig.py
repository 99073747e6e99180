"""Members of a quorum round log on real disks and sockets, all in this process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from loomlog.core.quorum.majority import Configuration, MemberId
from loomlog.core.quorum.member import Leader
from loomlog.metadata.quorum_member import QuorumMember
from loomlog.metadata.quorum_round_log import QuorumRoundLog
from loomlog.net.connection import Connection, Handler
from loomlog.net.endpoints import Server, connect
from loomlog.net.service import Service
from loomlog.storage.disk import RealFiles, ThreadWorker
from loomlog.wire.codec import Codec

CODEC = Codec("vmr")


async def connect_member(address: str, handler: Handler) -> Connection:
    return await connect(address, CODEC, handler)


class QuorumRig:
    """Each opening restarts all members and lets the next one lead."""

    def __init__(self, directory: Path, members: int = 3, file_bytes: int = 1024) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._ids: list[MemberId] = list(range(1, members + 1))
        self._epoch = 0
        self._running = AsyncExitStack()
        self.members: dict[MemberId, QuorumMember] = {}
        self.addresses: dict[MemberId, str] = {}

    async def open(self) -> QuorumRoundLog:
        await self.close()
        for member_id in self._ids:
            await self.start(member_id)
        return await self.lead(self._ids[self._epoch % len(self._ids)])

    async def lead(self, member_id: MemberId) -> QuorumRoundLog:
        self._epoch += 1
        log = await QuorumRoundLog.open(
            Leader(self._epoch, member_id, self.addresses[member_id]),
            Configuration(frozenset(self._ids)),
            self.addresses,
            self.members[member_id],
            connect_member,
            file_bytes=self._file_bytes,
        )
        self._running.callback(log.close)
        return log

    async def start(self, member_id: MemberId) -> None:
        worker = ThreadWorker(asyncio.get_running_loop())
        directory = self._directory / str(member_id)
        member = QuorumMember.open(
            member_id,
            RealFiles(),
            str(directory),
            worker,
            create=not self._epoch,
            file_bytes=self._file_bytes,
        )
        self._running.callback(member.close)
        self._running.callback(worker.close)
        service = Service(CODEC, member.routes(CODEC))
        server = Server(CODEC, service)
        await server.start("127.0.0.1:0")
        self._running.push_async_callback(server.stop)
        self._running.push_async_callback(service.stop)
        self.members[member_id] = member
        self.addresses[member_id] = server.address

    async def close(self) -> None:
        await self._running.aclose()
