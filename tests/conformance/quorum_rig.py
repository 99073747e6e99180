"""Members of a quorum round log on real disks and sockets, all in this process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from loomlog.core.quorum.member import Configuration, Leader, MemberId
from loomlog.metadata.rounds.quorum_member import QuorumMember
from loomlog.metadata.rounds.quorum_round_log import Connect, QuorumRoundLog
from loomlog.net.endpoints import connect
from loomlog.storage.disk import RealFiles, ThreadWorker
from loomlog.testing.ports import free_address
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Handler, Route, Server, Service

CODEC = Codec("vmr")


async def connect_member(address: str, handler: Handler) -> Connection:
    return await connect(address, CODEC, handler)


class QuorumRig:
    """Each opening restarts all members and lets the next one lead."""

    def __init__(self, directory: Path, members: int = 3, file_bytes: int = 1024) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._epoch = 0
        self._running: dict[MemberId, AsyncExitStack] = {}
        self._logs: list[QuorumRoundLog] = []
        self.ids: list[MemberId] = list(range(1, members + 1))
        self.members: dict[MemberId, QuorumMember] = {}
        self.addresses: dict[MemberId, str] = {}
        self.told: dict[MemberId, list[Frame]] = {}  # beats of a leader

    async def open(self) -> QuorumRoundLog:
        await self.close()
        for member_id in self.ids:
            await self.start(member_id)
        return await self.lead(self.ids[self._epoch % len(self.ids)])

    async def lead(
        self,
        member_id: MemberId,
        configuration: Configuration | None = None,
        connect: Connect = connect_member,
    ) -> QuorumRoundLog:
        """Lead in the next epoch."""
        self._epoch += 1
        log = await QuorumRoundLog.open(
            Leader(self._epoch, member_id, self.addresses[member_id]),
            configuration or Configuration(frozenset(self.ids)),
            self.addresses,
            self.members[member_id],
            connect,
            file_bytes=self._file_bytes,
        )
        self._logs.append(log)
        return log

    async def start(self, member_id: MemberId) -> None:
        """Start a member, at its former address if it had one."""
        running = self._running[member_id] = AsyncExitStack()
        worker = ThreadWorker(asyncio.get_running_loop())
        member = QuorumMember.open(
            member_id,
            RealFiles(),
            str(self.directory(member_id)),
            worker,
            create=member_id not in self.addresses,
            file_bytes=self._file_bytes,
        )
        running.callback(member.close)
        running.callback(worker.close)
        told = self.told[member_id] = []
        beats: dict[str, Route] = {"leader_beat": lambda _, frame, __: told.append(frame)}
        service = Service(CODEC, beats | member.routes(CODEC))
        server = Server(CODEC, service)
        await server.start(self.addresses.get(member_id) or free_address())
        running.push_async_callback(server.stop)
        running.push_async_callback(service.stop)
        self.members[member_id] = member
        self.addresses[member_id] = server.address

    def directory(self, member_id: MemberId) -> Path:
        return self._directory / str(member_id)

    async def stop(self, member_id: MemberId) -> None:
        await self._running.pop(member_id).aclose()

    async def close(self) -> None:
        while self._logs:
            self._logs.pop().close()
        for member_id in list(self._running):
            await self.stop(member_id)
