"""The codec of connections: frames (loomlog.proto describes the layout), greetings and errors.

The reader owns its receive buffer and hands out payloads as views into it, without a copy. A
buffer with a payload that was handed out is never overwritten; it lives as long as its views.
Frames and payloads start at multiples of 64 bytes in memory, which keeps copies fast.

The checksum of a prefix covers the number of the frame in its direction of the connection. So
frames that were lost, repeated or reordered are detected like damaged ones, at no cost.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from loomlog import errors, limits
from loomlog.errors import Corrupt
from loomlog.net.credentials import Credentials
from loomlog.types import Buffer
from loomlog.wire import loomlog_pb2 as pb

MAGIC = 0x32464D4C  # "LMF2"
_PREFIX: Final = struct.Struct("<IIIII")
_SIZES: Final = struct.Struct("<III")
_CHECKSUMS: Final = struct.Struct("<II")
_PREFIX_BYTES: Final = _PREFIX.size
_SIZES_BYTES: Final = _SIZES.size
_unpack_prefix, _pack_sizes, _pack_checksums = _PREFIX.unpack_from, _SIZES.pack, _CHECKSUMS.pack
_ALIGNMENT: Final = limits.ALIGNMENT
_ALIGNED: Final = _ALIGNMENT - 1  # the bits of a number that are 0 at multiples
_MULTIPLE: Final = ~_ALIGNED
_PADDINGS: Final = [bytes(size) for size in range(limits.ALIGNMENT)]
_NO_PAYLOAD = memoryview(b"")
_BUFFER_BYTES_MIN: Final = 64 * limits.KIB
_BUFFER_BYTES_MAX = limits.READ_CHUNK_BYTES + limits.KIB  # an answer of a subscription
_CLAIMED_BYTES_MAX = limits.MIB  # the buffer of a larger frame grows as its bytes arrive
_NUMBER_MASK: Final = 0xFFFFFFFF
_parse: Final[Callable[[memoryview], pb.Frame]] = pb.Frame.FromString  # type: ignore[assignment]


class FrameWriter:
    """Encodes the frames of one direction of a connection."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = 0  # number of the next frame

    def encode(self, frame: pb.Frame, payload: Sequence[Buffer] = ()) -> list[Buffer]:
        """Return the buffers of a frame, in order."""
        header = frame.SerializeToString()
        header_size = len(header)
        size = sum(map(len, payload)) if payload else 0
        sizes = _pack_sizes(MAGIC, header_size, size)
        number = self._number
        self._number = (number + 1) & _NUMBER_MASK
        checksum = crc32c(sizes, number)
        checksums = _pack_checksums(checksum, crc32c(header, checksum))
        head = b"".join(
            (sizes, checksums, header, _PADDINGS[-(_PREFIX_BYTES + header_size) & _ALIGNED])
        )
        if not size & _ALIGNED:
            return [head, *payload] if size else [head]
        return [head, *payload, _PADDINGS[-size & _ALIGNED]]


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
        self._shared = False  # a payload in this buffer was handed out
        self._last_bytes = 0  # size of the last frame
        self._space = _aligned(2 * limits.GREETING_BYTES_MAX)
        self._limit = len(self._space)  # the end of `writable`
        self._free: memoryview | None = None  # what is `writable`, if that is known

    def accept_all(self) -> None:
        """Accept frames of any allowed size: the peer has greeted. The buffer grows once it is
        full: that of an idle peer stays small."""
        self._header_bytes_max = limits.FRAME_HEADER_BYTES_MAX
        self._payload_bytes_max = limits.FRAME_PAYLOAD_BYTES_MAX

    @property
    def held_bytes(self) -> int:
        """The size of the buffer. Payloads that were handed out are not counted."""
        return len(self._space)

    def shrink(self) -> None:
        """Release the buffer if it is empty, because the peer has been silent for a while."""
        if self._begin == self._end and len(self._space) > 2 * limits.GREETING_BYTES_MAX:
            self.drop()

    def drop(self) -> None:
        """Release the buffer and discard its content."""
        self._space = _aligned(2 * limits.GREETING_BYTES_MAX)
        self._limit = len(self._space)
        self._free = None
        self._begin = self._end = self._last_bytes = 0
        self._shared = False

    def writable(self, sizehint: int = -1) -> memoryview:
        """Return the space for the next bytes, which is never empty."""
        return self._free or self._space[self._end : self._limit]

    def received(self, count: int) -> Iterator[tuple[pb.Frame, memoryview]]:
        """Yield the complete frames after `count` bytes were written into `writable()`.

        Raise Corrupt for bytes that are not a frame; the connection must then be closed. The caller
        may stop early and continue later with `received(0)`, before it calls `writable` again.
        """
        self._end = end = self._end + count
        self._free = None
        begin, space = self._begin, self._space
        needed = _ALIGNMENT
        while end - begin >= _PREFIX_BYTES:
            magic, header_size, payload_size, sizes_crc, crc = _unpack_prefix(space, begin)
            number = self._number
            if sizes_crc != crc32c(space[begin : begin + _SIZES_BYTES], number):
                raise _no_frame(magic)
            if header_size > self._header_bytes_max or payload_size > self._payload_bytes_max:
                raise _too_large(header_size, payload_size)
            header_at = begin + _PREFIX_BYTES
            header_end = header_at + header_size
            frame_end = payload_at = header_end + _ALIGNED & _MULTIPLE
            if payload_size:
                frame_end = payload_at + payload_size + _ALIGNED & _MULTIPLE
            if end < frame_end:
                needed = frame_end - begin
                break
            header = space[header_at:header_end]
            if crc != crc32c(header, sizes_crc):
                raise Corrupt("a frame's header does not match its checksum: connection closed")
            self._last_bytes = frame_end - begin
            self._begin = begin = frame_end
            self._number = number + 1 & _NUMBER_MASK
            payload = _NO_PAYLOAD
            if payload_size:
                self._shared = True
                payload = space[payload_at : payload_at + payload_size]
            try:
                frame = _parse(header)
            except DecodeError as error:
                raise Corrupt(
                    "a frame's header is no protobuf message: connection closed"
                ) from error
            yield frame, payload
        last, room = self._last_bytes, len(space)
        if begin == end and last < _BUFFER_BYTES_MIN:  # mostly; what follows would do the same
            if not self._shared and end < room:
                self._begin = self._end = 0
                self._limit = room
                self._free = space
                return
            if self._shared and end < room - room // 4 and last <= room // 4:
                self._limit = room
                return
        self._make_room(needed)
        # The beginning of a frame that does not fit into the buffer has to be moved. So stop after
        # a large frame, and expect the next one to be as large.
        expected = needed if self._end > self._begin else self._last_bytes
        self._limit = len(self._space)
        if expected >= _BUFFER_BYTES_MIN:
            self._limit = min(self._limit, self._begin + expected)

    def _make_room(self, needed: int) -> None:
        """Make room for the rest of a frame of `needed` bytes, and for more if much arrives."""
        left = self._end - self._begin
        space = len(self._space)
        if not left and not self._shared and (self._end < space or space >= _BUFFER_BYTES_MIN):
            self._begin = self._end = 0
            return
        if not left:
            needed = max(needed, min(self._last_bytes, _BUFFER_BYTES_MAX))  # as large as the last
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
        _leave(self._space)
        self._space, self._begin, self._end, self._shared = fresh, 0, left, False


def _aligned(size: int) -> memoryview:
    """Return a writable buffer that starts at a multiple of 64 bytes; its content is arbitrary."""
    room = _room(size + limits.ALIGNMENT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    begin = -address & _ALIGNED
    return memoryview(room)[begin : begin + size]


# The kernel clears new memory page by page, which takes longer than receiving into it. So a few
# buffers are reused, once there are no views of them.
_rooms: deque[bytearray] = deque()
_ROOM_BYTES = _BUFFER_BYTES_MAX + limits.ALIGNMENT
_ROOMS_MAX = 16  # 8 MiB in a process
_LOOKS = 2  # at rooms that may still be in use


def _room(size: int) -> bytearray:
    if size == _ROOM_BYTES:
        for _ in range(min(_LOOKS, len(_rooms))):
            room = _rooms.popleft()
            if sys.getrefcount(room) == 2:  # by this name, and as the argument: there is no view
                return room
            _rooms.append(room)
    return bytearray(size)


def _leave(space: memoryview) -> None:
    """Keep the memory of a buffer for reuse, unless enough is kept already."""
    if space.nbytes == _BUFFER_BYTES_MAX and len(_rooms) < _ROOMS_MAX:
        _rooms.append(space.obj)  # type: ignore[arg-type]  # it is that of `_aligned`


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


PROTOCOL_VERSION = 2  # the version of this release
OLDEST_VERSION = 2  # the oldest supported one, so that servers can be upgraded one by one

_READS = frozenset(
    {
        *("read", "fetch_batches", "list_commits"),
        *("get_status", "list_logs", "get_register", "list_registers", "list_leases"),
        *("list_events", "round_read"),
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
        cluster_id: str = "",
        credentials: Credentials | None = None,
        token: str = "",
    ) -> None:
        """`token` is a secret that a client presents."""
        self.credentials = credentials  # None: without TLS
        self._hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            oldest_version=OLDEST_VERSION,
            role=role,
            software="loomlog",
            cluster_id=cluster_id,
            token=token,
        )

    def reader(self) -> FrameReader:
        return FrameReader()

    def writer(self) -> FrameWriter:
        return FrameWriter()

    # For each frame, so they are not looked up in the message, which takes longer than the call.
    which: Callable[[pb.Frame, str], str | None] = staticmethod(pb.Frame.WhichOneof)
    has: Callable[[pb.Frame, str], bool] = staticmethod(pb.Frame.HasField)
    content: Final = _READS | {"chain_request", "copyset_request"}

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
            raise self.failure(frame)
        if self.kind(frame) != "hello":
            raise errors.Corrupt("the peer did not say hello: connection closed")
        _check_version(frame.hello)
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

    def asks_for_content(self, kind: str, message: Any) -> bool:
        """Return whether the answer may be large and does not wait for new entries."""
        if kind == "chain_request":
            return message.kind in _CHAIN_READS and not message.wait_ms
        if kind == "copyset_request":
            return message.kind in _COPYSET_READS and not message.wait_ms
        return kind in _READS

    def failure(self, frame: pb.Frame) -> errors.LoomError:
        """Return the error inside the frame."""
        error = frame.error
        numbers = error.first, error.last
        lasting = error.lasting
        return errors.from_code(error.code, error.message, error.leader, numbers, lasting=lasting)

    def failure_frame(self, error: errors.LoomError) -> pb.Frame:
        leader = error.leader if isinstance(error, errors.NotLeader) else ""
        inside = pb.Error(code=error.code, message=str(error), leader=leader)  # type: ignore[arg-type]
        if isinstance(error, errors.Corrupt):
            inside.first, inside.last = error.first, error.last
        if isinstance(error, errors.Unavailable):
            inside.lasting = error.lasting
        return pb.Frame(error=inside)


def _check_version(hello: pb.Hello) -> None:
    """Raise VersionMismatch unless both sides support a common version."""
    newest = hello.protocol_version
    oldest = hello.oldest_version or newest
    if newest < OLDEST_VERSION or oldest > PROTOCOL_VERSION:
        older = "the peer" if newest < OLDEST_VERSION else "this side"
        raise errors.VersionMismatch(
            f"the peer ({hello.software}) speaks protocol {_versions(oldest, newest)}, this side "
            f"{_versions(OLDEST_VERSION, PROTOCOL_VERSION)}: upgrade {older}, or use the same "
            "release on both"
        )


def _versions(oldest: int, newest: int) -> str:
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
