"""The simulated network keeps what TCP promises, and nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from loomlog.testing.sim import Process, Simulation

PORT = 7000


class Recorder(asyncio.Protocol):
    """Keeps everything that happens to it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.sizes: list[int] = []
        self.events: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.sizes.append(len(data))

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(exc if exc is None else type(exc))

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class BufferedRecorder(asyncio.BufferedProtocol):
    """Reads into a small buffer of its own."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.sizes: list[int] = []
        self.events: list[Any] = []
        self._room = bytearray(100)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._room)

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._room[:nbytes]
        self.sizes.append(nbytes)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(exc if exc is None else type(exc))


AnyRecorder = Recorder | BufferedRecorder


class Pair:
    """A server host `s` and a client host `c`, connected."""

    def __init__(self, sim: Simulation, protocol: Callable[[], AnyRecorder] = Recorder) -> None:
        self.sim = sim
        self.accepted: list[AnyRecorder] = []
        self._protocol = protocol
        sim.host("s").start(self.serve)
        sim.run(0.1)
        sim.host("c").start(self._connect)
        sim.run(0.2)
        self.server = self.accepted[0]

    async def serve(self, process: Process) -> None:
        await process.loop.create_server(self._accept, "s", PORT)
        await asyncio.Event().wait()

    def _accept(self) -> AnyRecorder:
        self.accepted.append(self._protocol())
        return self.accepted[-1]

    async def _connect(self, process: Process) -> None:
        _, self.client = await process.loop.create_connection(Recorder, "s", PORT)
        await asyncio.Event().wait()

    def pass_time(self, seconds: float = 1.0) -> None:
        self.sim.run(self.sim.world.now + seconds)


async def connect_only(process: Process) -> str:
    try:
        async with asyncio.timeout(300):
            await process.loop.create_connection(Recorder, "s", PORT)
    except OSError as error:
        return type(error).__name__
    return "connected"


@pytest.mark.parametrize("protocol", [Recorder, BufferedRecorder])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_split_and_joined(
    seed: int, protocol: Callable[[], AnyRecorder]
) -> None:
    with Simulation(seed) as sim:
        pair = Pair(sim, protocol)
        sent = b"".join(b"%d," % i for i in range(2000))
        for start in range(0, len(sent), 50):
            pair.client.transport.writelines(
                [sent[start : start + 20], sent[start + 20 : start + 50]]
            )
            if start % 500 == 0:
                pair.pass_time(0.0003)
        pair.pass_time()
        assert bytes(pair.server.data) == sent
        assert len(pair.server.sizes) > 1
        assert set(pair.server.sizes) != {20, 30}
        assert pair.server.events == ["made"]


def test_bytes_are_copied_when_they_are_written() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        buffer = bytearray(b"before")
        pair.client.transport.write(memoryview(buffer))
        buffer[:] = b"after!"
        pair.pass_time()
        assert pair.server.data == b"before"


def test_addresses_are_host_names() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        client, server = pair.client.transport, pair.server.transport
        assert client.get_extra_info("peername") == ("s", PORT)
        assert server.get_extra_info("peername") == client.get_extra_info("sockname")
        assert client.get_extra_info("socket") is None


def test_close_sends_what_was_written_and_then_the_end() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        pair.client.transport.write(b"x" * 3_000_000)
        pair.client.transport.close()
        pair.client.transport.write(b"too late")
        assert pair.client.transport.is_closing()
        pair.pass_time()
        assert len(pair.server.data) == 3_000_000
        assert pair.server.events == ["made", "eof", None]
        assert pair.client.events[-1] is None


def test_write_eof_leaves_the_other_direction_open() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)

        def stay_open() -> bool:
            pair.server.events.append("eof")
            return True

        pair.server.eof_received = stay_open  # type: ignore[method-assign]
        pair.client.transport.write(b"question")
        pair.client.transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            pair.client.transport.write(b"more")
        pair.pass_time()
        assert pair.server.events == ["made", "eof"]
        pair.server.transport.write(b"answer")
        pair.pass_time()
        assert pair.client.data == b"answer"
        pair.client.transport.close()
        pair.pass_time()
        assert pair.server.events == ["made", "eof"]  # one end only


def test_abort_resets_the_peer() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        pair.client.transport.abort()
        pair.pass_time()
        assert pair.client.events == ["made", None]
        assert pair.server.events == ["made", ConnectionResetError]


def test_writing_to_a_peer_that_has_closed_is_answered_with_a_reset() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        pair.server.eof_received = lambda: True  # type: ignore[method-assign]
        pair.client.transport.close()
        pair.pass_time()
        pair.server.transport.write(b"anybody there?")
        pair.pass_time()
        assert pair.server.events == ["made", ConnectionResetError]


def test_back_pressure_pauses_and_resumes_the_writer() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        pair.server.transport.pause_reading()
        pair.client.transport.set_write_buffer_limits(high=1000)
        pair.client.transport.write(b"x" * 2_000_000)
        assert pair.client.events == ["made", "pause"]
        assert pair.client.transport.get_write_buffer_size() > 0
        pair.pass_time()
        assert not pair.server.data
        assert not pair.server.transport.is_reading()
        pair.server.transport.resume_reading()
        pair.pass_time()
        assert len(pair.server.data) == 2_000_000
        assert pair.client.events == ["made", "pause", "resume"]
        assert pair.client.transport.get_write_buffer_size() == 0


def test_connections_overtake_each_other() -> None:
    """Order holds within a connection only."""

    def first(seed: int) -> int:
        arrived: list[int] = []

        class Numbered(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                arrived.append(data[0])

        async def serve(process: Process) -> None:
            await process.loop.create_server(Numbered, "s", PORT)
            await asyncio.Event().wait()

        async def send(process: Process) -> None:
            await asyncio.sleep(0.1)
            made = [await process.loop.create_connection(Recorder, "s", PORT) for _ in range(2)]
            for number, (transport, _) in enumerate(made):
                transport.write(bytes([number]))
            await asyncio.Event().wait()

        with Simulation(seed) as sim:
            sim.host("s").start(serve)
            sim.host("c").start(send)
            sim.run(1.0)
        return arrived[0]

    assert {first(seed) for seed in range(20)} == {0, 1}


def test_a_connect_is_refused_where_nobody_listens_and_hangs_where_the_host_is_down() -> None:
    with Simulation(1) as sim:
        sim.host("s")
        refused = sim.host("c").start(connect_only)
        sim.run(lambda: refused.finished)
        assert refused.result == "ConnectionRefusedError"
        assert sim.world.now < 0.1
        sim.host("s").crash()
        hanging = sim.host("c").start(connect_only)
        sim.run(lambda: hanging.finished)
        assert hanging.result == "TimeoutError"
        assert sim.world.now > 30


def test_a_connect_gets_through_when_the_partition_heals() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        sim.network.partition("s", "d")
        process = sim.host("d").start(connect_only)
        sim.world.after(5.0, sim.network.heal, "s", "d")
        sim.run(lambda: process.finished)
        assert process.result == "connected"
        assert sim.world.now > 5.0
        assert len(pair.accepted) == 2


def test_a_connect_that_was_given_up_leaves_no_connection() -> None:
    async def impatient(process: Process) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.00025):
                await process.loop.create_connection(Recorder, "s", PORT)

    for seed in range(30):
        with Simulation(seed) as sim:
            sim.network.settings.delay_s = 0.0002
            pair = Pair(sim)
            sim.host("d").start(impatient)
            pair.pass_time()
            for late in pair.accepted[1:]:
                assert late.events[0] == "made"
                assert len(late.events) > 1


def test_bytes_are_held_during_a_partition_or_the_connection_times_out() -> None:
    endings = set()
    for seed in range(12):
        with Simulation(seed) as sim:
            pair = Pair(sim)
            sim.network.partition("c", "s")
            pair.client.transport.write(b"hello")
            pair.pass_time(20.0)
            assert not pair.server.data
            sim.network.heal()
            pair.pass_time()
            endings.add((bytes(pair.server.data), pair.client.events[-1]))
    assert endings == {(b"hello", "made"), (b"", TimeoutError)}


def test_a_one_way_partition_lets_the_other_way_through() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        sim.network.partition("c", "s", one_way=True)
        pair.client.transport.write(b"lost in the void")
        pair.server.transport.write(b"hello")
        pair.pass_time(0.2)
        assert pair.client.data == b"hello"
        assert not pair.server.data


def test_a_peer_that_crashes_is_heard_of() -> None:
    for seed in range(10):
        with Simulation(seed) as sim:
            pair = Pair(sim)
            sim.host("s").crash()
            pair.pass_time(10.0)
            assert pair.client.events == ["made", ConnectionResetError]
            assert pair.server.events == ["made"]  # the dead hear nothing


def test_a_peer_that_is_killed_looks_closed_or_reset() -> None:
    endings = set()
    for seed in range(20):
        with Simulation(seed) as sim:
            pair = Pair(sim)
            sim.host("s").kill()
            pair.pass_time()
            endings.add(pair.client.events[-1])
    assert endings == {None, ConnectionResetError}


def test_a_peer_that_crashes_behind_a_partition_is_silent_until_one_writes() -> None:
    silent = 0
    for seed in range(20):
        with Simulation(seed) as sim:
            pair = Pair(sim)
            sim.network.settings.reset_probability = 0.0
            sim.network.partition("s", "c")
            sim.host("s").crash()
            pair.pass_time(0.3)
            assert pair.client.events == ["made"]
            sim.network.heal()
            pair.pass_time(0.1)
            silent += pair.client.events == ["made"]
            sim.host("s").start(pair.serve)
            pair.client.transport.write(b"still there?")
            pair.pass_time(10.0)
            assert pair.client.events[-1] is ConnectionResetError
    assert silent


def test_a_reset_by_the_network_breaks_both_ends() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        sim.network.reset_one()
        pair.pass_time()
        assert pair.client.events == pair.server.events == ["made", ConnectionResetError]
        sim.network.reset_one()  # there is none left


def test_a_slow_link_is_slow() -> None:
    with Simulation(1) as sim:
        pair = Pair(sim)
        sim.network.slow("c", "s", 10_000)
        pair.client.transport.write(b"hello")
        pair.pass_time(0.5)
        assert not pair.server.data
        pair.pass_time(10.0)
        assert pair.server.data == b"hello"


def test_streams_and_servers_of_asyncio_work_on_it() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    async def main(process: Process) -> list[bytes]:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                await asyncio.start_server(echo, None, port)
            with pytest.raises(OSError, match="not an address"):
                await asyncio.start_server(echo, "elsewhere", port)
            reader, writer = await asyncio.open_connection("localhost", port)
            writer.write(b"a\nb\n")
            writer.write_eof()
            answers = (await reader.read()).splitlines()
            writer.close()
            await writer.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("localhost", port)
        return answers

    with Simulation(1) as sim:
        process = sim.host("a").start(main)
        sim.run(lambda: process.finished)
        assert process.result == [b"A", b"B"]
