"""The codec of connections: frames (loomlog.proto describes the layout), greetings and errors.

The reader owns its receive buffer and hands out payloads as views into it, without a copy. A
buffer with a payload that was handed out is never overwritten; it lives as long as its views.
Frames and payloads start at multiples of 64 bytes in memory, which keeps copies fast.

The checksum of a prefix begins with the number of the frame in its direction of the connection. So
a frame that got lost, doubled or swapped on the way is found like a damaged one, at no cost.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence

from crc32c import crc32c
from google.protobuf.message import DecodeError

from loomlog import errors, limits
from loomlog.errors import Corrupt
from loomlog.net.credentials import Credentials
from loomlog.types import Buffer
from loomlog.wire import loomlog_pb2 as pb

MAGIC = 0x32464D4C  # "LMF2"
_PREFIX = struct.Struct("<IIIII")
_SIZES = struct.Struct("<III")
_CHECKSUMS = struct.Struct("<II")
_PADDING = bytes(limits.ALIGNMENT)
_NO_PAYLOAD = memoryview(b"")
_BUFFER_BYTES_MIN = 64 * limits.KIB
_BUFFER_BYTES_MAX = 512 * limits.KIB
_CLAIMED_BYTES_MAX = limits.MIB  # the buffer of a larger frame grows as its bytes arrive
_NUMBER_MASK = 0xFFFFFFFF


def _padding(size: int) -> int:
    return -size % limits.ALIGNMENT


class FrameWriter:
    """Encodes the frames of one direction of a connection."""

    def __init__(self) -> None:
        self._number = 0  # number of the next frame

    def encode(self, frame: pb.Frame, payload: Sequence[Buffer] = ()) -> list[Buffer]:
        """Return the buffers of a frame, in order."""
        header = frame.SerializeToString()
        size = sum(map(len, payload)) if payload else 0
        sizes = _SIZES.pack(MAGIC, len(header), size)
        number = self._number
        self._number = (number + 1) & _NUMBER_MASK
        checksum = crc32c(sizes, number)
        checksums = _CHECKSUMS.pack(checksum, crc32c(header, checksum))
        padding = _PADDING[: -(_PREFIX.size + len(header)) % limits.ALIGNMENT]
        head = b"".join((sizes, checksums, header, padding))
        if not size % limits.ALIGNMENT:
            return [head, *payload]
        return [head, *payload, _PADDING[: -size % limits.ALIGNMENT]]


class FrameReader:
    """Collects received bytes and yields complete frames.

    Until `accept_all` it accepts only a frame of the size of a greeting and uses little memory.
    """

    def __init__(self) -> None:
        self._number = 0  # number of the next frame
        self._header_bytes_max = limits.GREETING_BYTES_MAX
        self._payload_bytes_max = 0
        self._begin = 0  # of the first byte not yet consumed, from the aligned start
        self._end = 0  # of what has arrived
        self._needed = 0  # known size of the incomplete frame
        self._shared = False  # a payload in this buffer was handed out
        self._space = _aligned(2 * limits.GREETING_BYTES_MAX)

    def accept_all(self) -> None:
        """Accept frames of any allowed size: the peer has greeted. The buffer grows once it is
        full: that of an idle peer stays small."""
        self._header_bytes_max = limits.FRAME_HEADER_BYTES_MAX
        self._payload_bytes_max = limits.FRAME_PAYLOAD_BYTES_MAX

    def writable(self) -> memoryview:
        """Return the space for the next bytes; never empty."""
        return self._space[self._end :]

    def received(self, count: int) -> Iterator[tuple[pb.Frame, memoryview]]:
        """Yield the frames that are complete now that `count` bytes were put into `writable()`.

        Raises Corrupt for bytes that are no frame; the connection must then be closed. The caller
        may stop early and continue later with `received(0)`, before it asks for room again.
        """
        self._end += count
        while (frame := self._next()) is not None:
            yield frame
        self._make_room(self._needed)

    def _next(self) -> tuple[pb.Frame, memoryview] | None:
        """Return a complete frame, if any; otherwise note how many bytes it needs."""
        begin, space = self._begin, self._space
        available = self._end - begin
        if available < _PREFIX.size:
            self._needed = limits.ALIGNMENT
            return None
        magic, header_size, payload_size, sizes_crc, crc = _PREFIX.unpack_from(space, begin)
        if sizes_crc != crc32c(space[begin : begin + _SIZES.size], self._number):
            raise _no_frame(magic)
        if header_size > self._header_bytes_max or payload_size > self._payload_bytes_max:
            raise _too_large(header_size, payload_size)
        header_at = begin + _PREFIX.size
        header_end = header_at + header_size
        payload_at = header_end + -(header_end - begin) % limits.ALIGNMENT
        payload_end = payload_at + payload_size
        size = payload_end + -payload_size % limits.ALIGNMENT - begin
        if available < size:
            self._needed = size
            return None
        header = space[header_at:header_end]
        if crc != crc32c(header, sizes_crc):
            raise Corrupt("a frame's header does not match its checksum: connection closed")
        self._begin += size
        self._number = (self._number + 1) & _NUMBER_MASK
        if not payload_size:
            return _parse(header), _NO_PAYLOAD
        self._shared = True
        return _parse(header), space[payload_at:payload_end]

    def _make_room(self, needed: int) -> None:
        """Make room for the rest of a frame of `needed` bytes, and for more if much arrives."""
        left = self._end - self._begin
        space = len(self._space)
        if not left and not self._shared and (self._end < space or space >= _BUFFER_BYTES_MIN):
            self._begin = self._end = 0
            return
        if self._begin + needed <= space:
            if self._end < space - space // 4 or needed > space // 2:
                return
        elif needed > space >= _CLAIMED_BYTES_MAX and not self._begin and self._end < space:
            return  # it is large and grows when the space is full
        needed = min(needed, max(_CLAIMED_BYTES_MAX, 4 * left))
        grown = min(2 * space, _BUFFER_BYTES_MAX) if self._shared else space
        self._move(max(needed, grown, _BUFFER_BYTES_MIN))

    def _move(self, size: int) -> None:
        """Continue in a new buffer."""
        left = self._end - self._begin
        fresh = _aligned(max(size, left + limits.ALIGNMENT))
        fresh[:left] = self._space[self._begin : self._end]
        self._space, self._begin, self._end, self._shared = fresh, 0, left, False


def _aligned(size: int) -> memoryview:
    """Return a writable buffer that starts at a multiple of 64 bytes."""
    room = bytearray(size + limits.ALIGNMENT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    begin = _padding(address)
    return memoryview(room)[begin : begin + size]


def _no_frame(magic: int) -> Corrupt:
    if magic & 0xFFFFFF in (0x010316, 0x030316):  # a TLS handshake
        return Corrupt("it speaks TLS, and this side does not: start it with --tls")
    if magic & 0xFFFF == 0x0315:  # a TLS alert
        return Corrupt("it speaks TLS, and this side does not: use --tls")
    if magic != MAGIC:
        return Corrupt("not a loomlog frame: connection closed")
    return Corrupt("a frame is damaged, missing or out of order: connection closed")


def _too_large(header_size: int, payload_size: int) -> Corrupt:
    return Corrupt(
        f"a frame of {header_size} + {payload_size} bytes is over the limit: connection closed"
    )


def _parse(header: memoryview) -> pb.Frame:
    try:
        return pb.Frame.FromString(header)  # type: ignore[arg-type]
    except DecodeError as error:
        raise Corrupt("a frame's header is no protobuf message: connection closed") from error


PROTOCOL_VERSION = 2

_READS = frozenset(
    {
        *("read", "fetch_batches", "list_commits"),
        *("get_status", "list_logs", "get_register", "list_registers", "list_leases"),
        "round_read",
    }
)
_CHAIN_READS = frozenset(
    {pb.ChainRequest.READ, pb.ChainRequest.BEFORE, pb.ChainRequest.LIST, pb.ChainRequest.FETCH}
)
_COPYSET_READS = frozenset({pb.CopysetRequest.READ, pb.CopysetRequest.DIGEST})


class Codec:
    """The codec of one process, which greets as a role ("client", "vsn" or "vmr")."""

    def __init__(
        self,
        role: str,
        software: str = "loomlog",
        cluster_id: str = "",
        credentials: Credentials | None = None,
        token: str = "",
    ) -> None:
        """`token` is a secret that a client presents."""
        self.credentials = credentials  # None: without TLS
        self._hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            role=role,
            software=software,
            cluster_id=cluster_id,
            token=token,
        )

    def reader(self) -> FrameReader:
        return FrameReader()

    def writer(self) -> FrameWriter:
        return FrameWriter()

    def kind(self, frame: pb.Frame) -> str:
        """Return the name of the message inside; empty for one of a newer version."""
        return frame.WhichOneof("body") or ""

    def greeting(self) -> pb.Frame:
        return pb.Frame(hello=self._hello)

    def token_in(self, greeting: pb.Frame) -> str:
        return str(greeting.hello.token)

    def check_greeting(self, frame: pb.Frame) -> str:
        """Return the peer's role; raise if it cannot be talked to."""
        if self.kind(frame) == "error":
            raise _error_in(frame)
        if self.kind(frame) != "hello":
            raise errors.Corrupt("the peer did not say hello: connection closed")
        theirs = frame.hello.protocol_version
        if theirs != PROTOCOL_VERSION:
            raise errors.VersionMismatch(
                f"the peer ({frame.hello.software}) speaks protocol version {theirs}, "
                f"this side {PROTOCOL_VERSION}: use the same release on both"
            )
        if "vmr" == frame.hello.role == self._hello.role:
            self._check_same_cluster(frame.hello.cluster_id)
        return str(frame.hello.role)

    def _check_same_cluster(self, theirs: str) -> None:
        """Keep metadata repositories of different clusters apart."""
        ours = self._hello.cluster_id
        if theirs != ours:
            raise errors.Unauthorized(
                f"the peer serves cluster {theirs!r}, this side {ours!r}: correct its address"
            )

    def ping(self) -> pb.Frame:
        return pb.Frame(ping=pb.Ping())

    def pong_to(self, frame: pb.Frame) -> pb.Frame:
        return pb.Frame(id=frame.id, reply=True, done=pb.Done())

    def asks_for_content(self, kind: str, frame: pb.Frame) -> bool:
        """Return whether the answer may be large and does not wait for new entries."""
        if kind == "chain_request":
            chained = frame.chain_request
            return chained.kind in _CHAIN_READS and not chained.wait_ms
        if kind == "copyset_request":
            copyset = frame.copyset_request
            return copyset.kind in _COPYSET_READS and not copyset.wait_ms
        return kind in _READS

    def failure(self, frame: pb.Frame) -> errors.LoomError | None:
        """Return the error inside the frame, if any."""
        return _error_in(frame) if frame.HasField("error") else None

    def failure_frame(self, error: errors.LoomError) -> pb.Frame:
        leader = error.leader if isinstance(error, errors.NotLeader) else ""
        inside = pb.Error(code=error.code, message=str(error), leader=leader)  # type: ignore[arg-type]
        if isinstance(error, errors.Corrupt):
            inside.first, inside.last = error.first, error.last
        if isinstance(error, errors.Unavailable):
            inside.lasting = error.lasting
        return pb.Frame(error=inside)


def _error_in(frame: pb.Frame) -> errors.LoomError:
    error = frame.error
    numbers = error.first, error.last
    return errors.from_code(error.code, error.message, error.leader, numbers, lasting=error.lasting)
