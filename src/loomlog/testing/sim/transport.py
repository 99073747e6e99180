"""Both ends of a simulated TCP connection, and the two pipes between them.

A pipe carries bytes in one direction: in order, after random delays, split and joined at
random. It may end (FIN or RST) behind its last byte. Bytes that reach an end that is closed or
dead are answered with a reset, as TCP does: that is how a survivor learns of a peer that died
silently.

Invariants: bytes are copied when written; protocol methods run on the owner's loop only, none
after `connection_lost`; the two directions, and all connections, are independent.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loomlog.testing.sim.loop import SimLoop
    from loomlog.testing.sim.net import Network
    from loomlog.types import Buffer

Address = tuple[str, int]

HIGH_WATER_BYTES = 64 * 1024  # asyncio's default
_IO_CONTEXT = Context()  # network callbacks run outside of any caller's context


class Ending(Enum):
    """The end of a pipe."""

    FIN = "fin"
    RESET = "reset"


def reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class SimConnection:
    """Two transports and the pipes between them."""

    def __init__(
        self,
        network: Network,
        number: int,
        client: tuple[SimLoop, Address],
        server: tuple[SimLoop, Address],
    ) -> None:
        self.number = number
        window = network.world.random.choice(network.settings.windows_bytes)
        forth, back = Pipe(network, window), Pipe(network, window)
        shown = network.certificate_of
        self.client = SimTransport(
            self, client, server[1], outgoing=forth, incoming=back, shown=shown(server[1][0])
        )
        self.server = SimTransport(
            self, server, client[1], outgoing=back, incoming=forth, shown=shown(client[1][0])
        )
        forth.connect(self.client, self.server)
        back.connect(self.server, self.client)

    @property
    def ends(self) -> tuple[SimTransport, SimTransport]:
        return self.client, self.server

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        return self.client.outgoing, self.server.outgoing

    @property
    def over(self) -> bool:
        return self.client.lost and self.server.lost

    def joins(self, a: str, b: str) -> bool:
        return {end.loop.host for end in self.ends} == {a, b}

    def break_off(self, make_error: Callable[[], OSError]) -> None:
        """Break the connection; each end notices separately."""
        for end in self.ends:
            end.loop.call_soon(end.lose, make_error(), context=_IO_CONTEXT)


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, window_bytes: int) -> None:
        self.window_bytes = window_bytes  # buffered in the kernels
        self.buffer = bytearray()  # written, not yet received
        self.ending: Ending | None = None
        self.hold_until = 0.0
        self.finished = False  # the FIN has been received
        self._network = network
        self._world = network.world
        self._moving = False  # an arrival is scheduled

    def connect(self, source: SimTransport, target: SimTransport) -> None:
        self.source = source
        self.target = target

    @property
    def backlog_bytes(self) -> int:
        return max(0, len(self.buffer) - self.window_bytes)

    def end(self, ending: Ending, *, tear: bool = False) -> None:
        """End the pipe; with `tear`, lose some of the written bytes."""
        if tear:
            del self.buffer[self._world.random.randint(0, len(self.buffer)) :]
        if self.ending is not Ending.RESET and not (ending is Ending.FIN and self.finished):
            self.ending = ending
        self.move()

    def move(self) -> None:
        """Make sure that the written bytes arrive eventually."""
        if self._moving or not (self.buffer or self.ending):
            return
        if self._blocked() or not self.target.wants_data:
            return  # a heal, or the reader, calls again
        self._moving = True
        delay = self._network.delay_s(self.source.loop.host, self.target.loop.host)
        self._world.at(max(self._world.now + delay, self.hold_until), self._arrive)

    def abandoned(self) -> None:
        """Called when the reader is dead, so that a scheduled arrival will not happen."""
        self._moving = False
        self.move()

    def _blocked(self) -> bool:
        return self._network.blocked(self.source.loop.host, self.target.loop.host)

    def _arrive(self) -> None:
        if not self._moving:
            return  # abandoned, and bounced by now
        if self._blocked():
            self._moving = False
        elif self.target.lost:
            self._moving = False
            self._bounce()
        elif self._world.chance(self._network.settings.reset_probability):
            self._moving = False
            self._world.note("net", "reset", self.target.connection.number)
            self.target.connection.break_off(reset_error)
        else:
            self.target.loop.call_soon(self._receive, context=_IO_CONTEXT)

    def _receive(self) -> None:
        self._moving = False
        target = self.target
        if target.lost:
            self._bounce()
        elif target.wants_data:
            if self.buffer:
                self._feed()
            elif self.ending is Ending.FIN:
                self.ending = None
                self.finished = True
                target.receive_eof()
            elif self.ending is Ending.RESET:
                target.lose(reset_error())
            self.move()

    def _feed(self) -> None:
        size = self._chunk_bytes()
        taken = self.target.receive(memoryview(self.buffer)[:size].toreadonly())
        # the reader may have aborted the connection meanwhile, and the pipe with it
        del self.buffer[:taken]
        self._world.note("net", "received", self.target.connection.number, taken)
        if self.source.waits_for_room:
            self.source.loop.call_soon(self.source.drained, context=_IO_CONTEXT)

    def _chunk_bytes(self) -> int:
        size = min(len(self.buffer), self._network.settings.chunk_bytes_max)
        if size > 1 and self._world.chance(self._network.settings.split_probability):
            return self._world.random.randint(1, size)
        return size

    def _bounce(self) -> None:
        """Answer bytes for an end that is gone: reset the sender, if it can be reached."""
        had_bytes = bool(self.buffer)
        self.buffer.clear()
        self.ending = None
        back = self.target.outgoing
        if had_bytes and not self.source.lost and not back._blocked():
            back.end(Ending.RESET, tear=True)


class SimTransport(asyncio.Transport):
    """One end of a connection, as a protocol sees it."""

    def __init__(
        self,
        connection: SimConnection,
        own: tuple[SimLoop, Address],
        peer: Address,
        *,
        outgoing: Pipe,
        incoming: Pipe,
        shown: Mapping[str, Any] | None,
    ) -> None:
        """`shown` is the certificate of the peer."""
        super().__init__({"peername": peer, "sockname": own[1], "socket": None, "peercert": shown})
        self.connection = connection
        self.loop = own[0]
        self.outgoing = outgoing
        self.incoming = incoming
        self.lost = False  # connection_lost is called or on its way, or the process is dead
        self.on_lost: Callable[[], None] | None = None
        self._protocol: asyncio.BaseProtocol | None = None  # none until the connect is through
        self._early_loss: Exception | None = None
        self._closing = False
        self._reading = True
        self._eof_written = False
        self._writing_paused = False
        self._high_bytes = HIGH_WATER_BYTES
        self._low_bytes = HIGH_WATER_BYTES // 4

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        if self.lost:
            self.loop.call_soon(protocol.connection_lost, self._early_loss)
        self.incoming.move()

    # -- reading

    @property
    def wants_data(self) -> bool:
        """True if the incoming pipe may deliver. A lost end accepts data, and resets the sender."""
        if self.lost:
            return True
        return self._protocol is not None and self._reading and not self._closing

    def receive(self, data: memoryview) -> int:
        """Pass data to the protocol; return the number of bytes that it accepted."""
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            room = memoryview(protocol.get_buffer(-1))
            if not len(room):
                raise RuntimeError("get_buffer() returned an empty buffer")
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data.release()
            protocol.buffer_updated(size)
            return size
        assert isinstance(protocol, asyncio.Protocol)
        chunk = bytes(data)
        data.release()
        protocol.data_received(chunk)
        return len(chunk)

    def receive_eof(self) -> None:
        assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not self._protocol.eof_received():
            self.close()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.incoming.move()

    # -- writing

    def write(self, data: Buffer) -> None:
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        self.outgoing.buffer += data
        self.outgoing.move()
        self._pause_writing_if_full()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self._eof_written:
            self._eof_written = True
            self.outgoing.end(Ending.FIN)

    def get_write_buffer_size(self) -> int:
        return self.outgoing.backlog_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low
        self._pause_writing_if_full()

    def _pause_writing_if_full(self) -> None:
        if self.outgoing.backlog_bytes > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    @property
    def waits_for_room(self) -> bool:
        return not self.lost and (self._writing_paused or self._closing)

    def drained(self) -> None:
        """Called when some of the written bytes were received."""
        if self.lost:
            return
        if self._writing_paused and self.outgoing.backlog_bytes <= self._low_bytes:
            self._writing_paused = False
            assert self._protocol is not None
            self._protocol.resume_writing()
        if self._closing:
            self._finish_closing()

    # -- ends

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Stop reading; bytes that were written are still delivered."""
        if not self._closing:
            self._closing = True
            self._finish_closing()

    def _finish_closing(self) -> None:
        if not self.lost and not self.outgoing.backlog_bytes:
            self.outgoing.end(Ending.FIN)
            self._leave(None)

    def abort(self) -> None:
        if not self.lost:
            self.outgoing.end(Ending.RESET, tear=True)
            self._leave(None)

    def lose(self, error: Exception) -> None:
        """Called when the network or the peer has broken the connection."""
        if not self.lost:
            self.outgoing.buffer.clear()
            self._leave(error)

    def die(self, ending: Ending, heard_after_s: float) -> None:
        """Called when the process is gone: no callbacks run, and the peer may never notice."""
        was_lost = self.lost
        self.lost = self._closing = True
        if not was_lost:
            self.outgoing.hold_until = self.outgoing._world.now + heard_after_s
            self.outgoing.end(ending, tear=True)
            self.incoming.abandoned()

    def _leave(self, error: Exception | None) -> None:
        self.lost = self._closing = True
        if self._protocol is None:
            self._early_loss = error
        else:
            self.loop.call_soon(self._tell_lost, error, context=_IO_CONTEXT)
        self.incoming.move()

    def _tell_lost(self, error: Exception | None) -> None:
        assert self._protocol is not None
        self._protocol.connection_lost(error)
        if self.on_lost is not None:
            self.on_lost()

    def __repr__(self) -> str:
        return f"<SimTransport {self._extra_text('sockname')} to {self._extra_text('peername')}>"

    def _extra_text(self, name: str) -> Any:
        host, port = self.get_extra_info(name)
        return f"{host}:{port}"
