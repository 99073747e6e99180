"""The smallest log that keeps the promise, as an example of a workload and a test of the simulator.

One server with one file; clients send `append` lines and retry until they are answered; the
server recognises a value that it already has. A record on disk is checked by a CRC that
continues that of the record before, so that what an older life left behind a torn record
never counts. `toy(…, sync=False)` is the same with a bug: it acknowledges before the sync.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterable

from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan, Nemesis
from loomlog.testing.sim.host import Main, Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Position

SERVER = "server"
PORT = 7000
CLIENTS = 3
APPENDS_PER_CLIENT = 15
VALUES_PER_APPEND_MAX = 3
RETRY_AFTER_S = 0.05
ANSWER_TIMEOUT_S = 1.0

_RECORD = struct.Struct("<II")  # size, CRC


def toy(sim: Simulation, plan: FaultPlan, *, sync: bool = True) -> History:
    """Run several clients that append to one server, a reader, and a final read."""
    history = History()

    async def server(process: Process) -> None:
        await _Server(process, sync=sync).serve()

    nemesis = Nemesis(sim, plan, {SERVER: server})
    sim.host(SERVER).start(server)
    clients = [
        sim.host(name).start(_appends(name, history))
        for name in (f"client-{i}" for i in range(CLIENTS))
    ]
    sim.host("reader").start(_follow(history))
    nemesis.start()
    sim.run(lambda: all(client.finished for client in clients), timeout_s=300)
    nemesis.stop()
    final = sim.host("final").start(_read_all(history))
    sim.run(lambda: final.finished, timeout_s=60)
    return history


class _Server:
    def __init__(self, process: Process, *, sync: bool) -> None:
        self._process = process
        self._worker = process.worker()
        self._sync = sync
        self._values: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._durable = 0  # how many values may be shown
        self._end = 0
        self._crc = 0
        self._turn = asyncio.Lock()

    async def serve(self) -> None:
        self._open()
        server = await asyncio.start_server(self._talk, self._process.host.name, PORT)
        await server.serve_forever()

    def _open(self) -> None:
        files = self._process.files
        files.make_directory("/toy")
        files.sync_directory("/")
        self._file = files.open("/toy/log", create=True)
        files.sync_directory("/toy")
        while (value := self._record_at(self._end)) is not None:
            self._take(value)
        self._file.sync()  # what was found may never have been synced, and will be shown
        self._durable = len(self._values)

    def _record_at(self, offset: int) -> bytes | None:
        header = self._file.read(_RECORD.size, offset)
        if len(header) < _RECORD.size:
            return None
        size, crc = _RECORD.unpack(header)
        value = bytes(self._file.read(size, offset + _RECORD.size)) if size < 1000 else b""
        return value if value and zlib.crc32(value, self._crc) == crc else None

    def _take(self, value: bytes) -> bytes:
        self._crc = zlib.crc32(value, self._crc)
        self._end += _RECORD.size + len(value)
        self._values.append(value)
        self._places[value] = len(self._values)
        return _RECORD.pack(len(value), self._crc) + value

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                if not line.endswith(b"\n"):
                    break
                command, *words = line.split()
                if command == b"append":
                    positions = await self._append(words)
                    writer.write(b" ".join(b"%d" % position for position in positions) + b"\n")
                else:
                    writer.write(b" ".join(self._values[int(words[0]) - 1 : self._durable]) + b"\n")
                await writer.drain()
        except OSError:
            pass  # the client will come again
        finally:
            writer.close()

    async def _append(self, values: list[bytes]) -> list[int]:
        async with self._turn:
            if values[0] not in self._places:
                offset = self._end
                await self._store(b"".join(map(self._take, values)), offset)
                self._durable = len(self._values)
            return [self._places[value] for value in values]

    async def _store(self, data: bytes, offset: int) -> None:
        stored = self._process.loop.create_future()
        steps = [lambda: self._file.write([data], offset)]
        if self._sync:
            steps.append(self._file.sync)
        self._worker.run(steps, stored.set_result)
        error = await stored
        if error is not None:
            raise error


class _Caller:
    """A connection that is made again when it breaks."""

    def __init__(self) -> None:
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, *words: bytes) -> list[bytes]:
        while True:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await self._ask(words)
            except OSError:  # TimeoutError is one
                self.hang_up()
                await asyncio.sleep(RETRY_AFTER_S)

    async def _ask(self, words: Iterable[bytes]) -> list[bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(SERVER, PORT)
        reader, writer = self._streams
        writer.write(b" ".join(words) + b"\n")
        await writer.drain()
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the server hung up")
        return line.split()

    def hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _appends(name: str, history: History) -> Main:
    async def main(process: Process) -> None:
        caller = _Caller()
        random = process.loop.world.random
        for number in range(APPENDS_PER_CLIENT):
            count = random.randint(1, VALUES_PER_APPEND_MAX)
            values = [f"{name}-{number}-{i}".encode() for i in range(count)]
            op = f"{name}-{number}"
            history.invoke(name, op, values)
            answer = await caller.ask(b"append", *values)
            history.ack(op, [Position(int(word), 1, int(word)) for word in answer])
            await asyncio.sleep(random.random() * 0.1)
        caller.hang_up()

    return main


def _follow(history: History) -> Main:
    async def main(process: Process) -> None:
        caller = _Caller()
        history.reader("follower")
        following = 1
        while True:
            for value in await caller.ask(b"read", b"%d" % following):
                history.see("follower", following, 1, following, value)
                following += 1
            await asyncio.sleep(0.05)

    return main


def _read_all(history: History) -> Main:
    async def main(process: Process) -> None:
        caller = _Caller()
        history.reader("final")
        for i, value in enumerate(await caller.ask(b"read", b"1")):
            history.see("final", i + 1, 1, i + 1, value)
        history.final("final")
        caller.hang_up()

    return main
