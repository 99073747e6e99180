"""The simulated network: listening addresses, partitions and delays.

Hosts are names; a name is also its address (`vsn-1:7401`). Loopback names mean the host itself.
Faults: `partition` (held bytes, connections that time out, connects that hang), `slow`,
`reset_one`, and the settings' random resets. A process that ends takes its connections along.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from loomlog.testing.sim.transport import Address, Ending, SimConnection, SimTransport, reset_error
from loomlog.testing.sim.world import World

if TYPE_CHECKING:
    from loomlog.testing.sim.loop import SimLoop

SELF_NAMES = frozenset(
    {"", "0.0.0.0", "127.0.0.1", "::", "::1", "localhost"}  # noqa: S104 - nothing binds to it
)
FIRST_FREE_PORT = 40_000
SYN_RETRY_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # as Linux does; then ETIMEDOUT

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.BaseProtocol)


@dataclass(slots=True)
class NetworkSettings:
    """The behaviour of a healthy network, which may change during a run."""

    delay_s: float = 0.0001  # one way between hosts: this to five times this ...
    tail_delay_s: float = 0.02  # ... and sometimes up to this much more
    tail_probability: float = 0.005
    split_probability: float = 0.2  # a delivery brings only a part of what is under way
    chunk_bytes_max: int = 256 * 1024  # the most that one receive brings
    windows_bytes: tuple[int, ...] = (
        4096,
        64 * 1024,
        1024 * 1024,
    )  # in the kernels, per connection
    reset_probability: float = 0.0  # per delivery


class Network:
    """All hosts' connections."""

    def __init__(self, world: World, settings: NetworkSettings | None = None) -> None:
        self.world = world
        self.settings = settings or NetworkSettings()
        self._hosts_up: dict[str, bool] = {}
        self._servers: dict[Address, SimServer] = {}
        self._connections: dict[int, SimConnection] = {}
        self._connection_sequence = 0
        self._blocked: dict[tuple[str, str], bool] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._next_port: dict[str, int] = {}
        self.certificate_of: Callable[[str], Mapping[str, Any] | None] = lambda host: None

    # -- hosts

    def set_up(self, host: str, up: bool) -> None:
        """Note whether a host is up. If it is down it does not answer; otherwise it refuses
        connections to ports without a listener."""
        self._hosts_up[host] = up

    @property
    def hosts(self) -> list[str]:
        return list(self._hosts_up)

    def end_process(self, loop: SimLoop, *, power_loss: bool) -> None:
        """End a process: its peers get a FIN or a reset, after a power loss perhaps late."""
        for address, server in list(self._servers.items()):
            if server.get_loop() is loop:
                del self._servers[address]
        for connection in list(self._connections.values()):
            for end in connection.ends:
                if end.loop is loop:
                    end.die(*self._last_words(power_loss))
        self._forget_over()

    def _last_words(self, power_loss: bool) -> tuple[Ending, float]:
        random = self.world.random
        if power_loss:
            return Ending.RESET, random.choice((0.0, 0.01, 0.5, 5.0)) * random.random()
        return random.choice((Ending.FIN, Ending.RESET)), 0.0

    # -- faults

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Deliver nothing between `a` and `b` until `heal`. Open connections keep their bytes;
        about half of them time out if it lasts."""
        self.world.note("net", "partition", a, b, "one way" if one_way else "")
        self._blocked[a, b] = True
        if not one_way:
            self._blocked[b, a] = True
        for connection in self._connections.values():
            if connection.joins(a, b) and self.world.chance(0.5):
                self.world.after(self.world.random.uniform(0.5, 10.0), self._time_out, connection)

    def isolate(self, host: str) -> None:
        for other in self.hosts:
            if other != host:
                self.partition(host, other)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """End the partition between two hosts, those of one host, or all."""
        self.world.note("net", "heal", a or "", b or "")
        for pair in list(self._blocked):
            if {name for name in (a, b) if name is not None} <= set(pair):
                del self._blocked[pair]
        for connection in list(self._connections.values()):
            for pipe in connection.pipes:
                if pipe.ending is Ending.RESET and pipe.source.lost and self.world.chance(0.5):
                    pipe.ending = None  # that packet was lost, and resets are not sent again
                pipe.move()

    def blocked(self, source: str, target: str) -> bool:
        return bool(self._blocked) and (source, target) in self._blocked

    def slow(self, a: str, b: str, factor: float = 1.0) -> None:
        """Multiply the delay between two hosts; 1 is normal."""
        self.world.note("net", "slow", a, b, factor)
        self._slow[a, b] = self._slow[b, a] = factor

    def reset_one(self) -> None:
        """Break one of the open connections, if there is any."""
        if self._connections:
            number = self.world.random.choice(list(self._connections))
            self.world.note("net", "reset", number)
            self._connections[number].break_off(reset_error)

    def reset(self, a: str, b: str) -> None:
        """Break all connections between two hosts."""
        for connection in list(self._connections.values()):
            if connection.joins(a, b):
                connection.break_off(reset_error)

    def _time_out(self, connection: SimConnection) -> None:
        client, server = (end.loop.host for end in connection.ends)
        if self.blocked(client, server) or self.blocked(server, client):
            connection.break_off(lambda: _os_error(errno.ETIMEDOUT, "Connection timed out"))

    def delay_s(self, source: str, target: str) -> float:
        chance = self.world.random.random()
        delay = self.settings.delay_s * (1.0 + 4.0 * chance)
        if source == target:
            delay *= 0.1
        if self.settings.tail_probability and self.world.chance(self.settings.tail_probability):
            delay += chance * self.settings.tail_delay_s
        return delay * self._slow.get((source, target), 1.0) if self._slow else delay

    # -- listening

    def listen(
        self, loop: SimLoop, factory: ProtocolFactory, host: str | None, port: int
    ) -> SimServer:
        if host is not None and host not in SELF_NAMES and host != loop.host:
            raise _os_error(errno.EADDRNOTAVAIL, f"{host} is not an address of {loop.host}")
        if loop.killed:  # by what it was just doing: its last turn continues to its end
            raise _os_error(errno.ENETDOWN, f"{loop.host} is down")
        address = (loop.host, port or self._free_port(loop.host))
        if address in self._servers:
            raise _os_error(errno.EADDRINUSE, f"{address[0]}:{address[1]} is in use")
        server = self._servers[address] = SimServer(self, loop, factory, address)
        self.world.note("net", "listen", *address)
        return server

    def stop_listening(self, server: SimServer) -> None:
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    def _free_port(self, host: str) -> int:
        port = self._next_port.get(host, FIRST_FREE_PORT)
        while (host, port) in self._servers:
            port += 1
        self._next_port[host] = port + 1
        return port

    # -- connecting

    async def connect(
        self, loop: SimLoop, factory: Callable[[], AnyProtocol], host: str, port: int
    ) -> tuple[SimTransport, AnyProtocol]:
        attempt = _Attempt(loop, loop.host if host in SELF_NAMES else host, port)
        self._send_syn(attempt, 0)
        try:
            transport = await attempt.waiter
        except asyncio.CancelledError:
            attempt.give_up()
            raise
        protocol = factory()
        transport.start(protocol)
        return transport, protocol

    def _send_syn(self, attempt: _Attempt, tries: int) -> None:
        if not attempt.wanted:
            return
        here, there = attempt.loop.host, attempt.target[0]
        reachable = not self.blocked(here, there) and not self.blocked(there, here)
        if reachable and self._hosts_up.get(there, False):
            self.world.after(self.delay_s(here, there), self._meet, attempt)
        elif tries < len(SYN_RETRY_S):
            self.world.after(SYN_RETRY_S[tries], self._send_syn, attempt, tries + 1)
        else:
            attempt.fail(_os_error(errno.ETIMEDOUT, "Connection timed out"))

    def _meet(self, attempt: _Attempt) -> None:
        server = self._servers.get(attempt.target)
        if server is None:
            self._refuse(attempt)
        else:
            server.get_loop().call_soon(self._accept, attempt, server)

    def _refuse(self, attempt: _Attempt) -> None:
        host, port = attempt.target
        error = _os_error(errno.ECONNREFUSED, f"Connect call failed ({host}:{port})")
        self.world.after(self.delay_s(host, attempt.loop.host), attempt.fail, error)

    def _accept(self, attempt: _Attempt, server: SimServer) -> None:
        if not server.is_serving():
            self._refuse(attempt)
            return
        client = (attempt.loop, (attempt.loop.host, self._free_port(attempt.loop.host)))
        self._connection_sequence += 1
        connection = SimConnection(
            self, self._connection_sequence, client, (server.get_loop(), attempt.target)
        )
        self._forget_over()
        self._connections[connection.number] = connection
        self.world.note("net", "connect", connection.number, client[1][0], *attempt.target)
        server.attach(connection.server)
        delay = self.delay_s(attempt.target[0], attempt.loop.host)
        self.world.after(delay, attempt.succeed, connection.client)
        if attempt.loop.killed:
            connection.client.die(Ending.RESET, 0.0)

    def _forget_over(self) -> None:
        for number, connection in list(self._connections.items()):
            if connection.over:
                del self._connections[number]


class _Attempt:
    """A connection attempt in progress."""

    def __init__(self, loop: SimLoop, host: str, port: int) -> None:
        self.loop = loop
        self.target: Address = (host, port)
        self.waiter: asyncio.Future[SimTransport] = loop.create_future()

    @property
    def wanted(self) -> bool:
        return not self.loop.killed and not self.waiter.done()

    def fail(self, error: OSError) -> None:
        self.loop.call_soon(self._set, None, error)

    def succeed(self, transport: SimTransport) -> None:
        self.loop.call_soon(self._set, transport, None)

    def _set(self, transport: SimTransport | None, error: OSError | None) -> None:
        if self.waiter.done():
            if transport is not None:
                transport.abort()
        elif transport is not None:
            self.waiter.set_result(transport)
        else:
            assert error is not None
            self.waiter.set_exception(error)

    def give_up(self) -> None:
        """Called when the caller was cancelled, perhaps in the turn in which it was connected."""
        if self.waiter.done() and not self.waiter.cancelled() and not self.waiter.exception():
            self.waiter.result().abort()


class SimServer(asyncio.AbstractServer):
    """A listening address. `wait_closed` waits for its connections too, as Python 3.12 does."""

    def __init__(
        self, network: Network, loop: SimLoop, factory: ProtocolFactory, address: Address
    ) -> None:
        self.address = address
        self.sockets = (_ListeningSocket(address),)
        self._network = network
        self._loop = loop
        self._factory = factory
        self._serving = True
        self._attached: dict[int, SimTransport] = {}
        self._all_gone = asyncio.Event()

    def attach(self, transport: SimTransport) -> None:
        number = transport.connection.number
        self._attached[number] = transport
        transport.on_lost = lambda: self._detach(number)
        transport.start(self._factory())

    def _detach(self, number: int) -> None:
        del self._attached[number]
        self._check_gone()

    def _check_gone(self) -> None:
        if not self._serving and not self._attached:
            self._all_gone.set()

    def close(self) -> None:
        self._serving = False
        self._network.stop_listening(self)
        self._check_gone()

    def close_clients(self) -> None:
        for transport in list(self._attached.values()):
            transport.close()

    def abort_clients(self) -> None:
        for transport in list(self._attached.values()):
            transport.abort()

    async def wait_closed(self) -> None:
        await self._all_gone.wait()

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        try:
            await self._loop.create_future()
        finally:
            self.close()

    def is_serving(self) -> bool:
        return self._serving

    def get_loop(self) -> SimLoop:
        return self._loop

    async def __aenter__(self) -> SimServer:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self.close()
        await self.wait_closed()


@dataclass(frozen=True, slots=True)
class _ListeningSocket:
    """Enough of a socket to ask which port was picked."""

    address: Address

    def getsockname(self) -> Address:
        return self.address


def _os_error(number: int, message: str) -> OSError:
    return OSError(number, message)  # OSError picks the subclass that fits
