"""Frames: whatever the chunks in which bytes arrive, the same frames come out, or Corrupt."""

from __future__ import annotations

from collections import deque

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from loomlog import limits
from loomlog.errors import Corrupt
from loomlog.wire import codec
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import _CHECKSUMS, _PREFIX, _SIZES, MAGIC, FrameReader, FrameWriter


def frame_of(number: int) -> pb.Frame:
    return pb.Frame(id=number, append=pb.Append(log_stream_id=number))


def encoded(*contents: bytes) -> list[bytes]:
    """The frames of a connection, numbered from 0, each as bytes."""
    encode = FrameWriter().encode
    return [
        b"".join(encode(frame_of(number), [content] if content else []))
        for number, content in enumerate(contents)
    ]


def greeted() -> FrameReader:
    reader = FrameReader()
    reader.accept_all()
    return reader


def feed(reader: FrameReader, data: bytes, step: int) -> list[tuple[int, bytes]]:
    found = []
    while data:
        room = reader.writable()
        count = min(step, len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        found += [(frame.id, bytes(payload)) for frame, payload in reader.received(count)]
    return found


payloads = st.lists(
    st.one_of(st.binary(max_size=300), st.integers(0, 400_000).map(bytes)), max_size=6
)


@given(payloads, st.integers(1, 200_000))
def test_frames_survive_any_chunking(contents: list[bytes], step: int) -> None:
    step = max(step, sum(map(len, contents)) // 2000 + 1)
    found = feed(greeted(), b"".join(encoded(*contents)), step)
    assert found == list(enumerate(contents))


def test_buffers_are_used_again_once_nobody_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: deque[bytearray] = deque()
    monkeypatch.setattr(codec, "_rooms", rooms)
    seen: list[int] = []
    kept: list[tuple[bytes, memoryview]] = []
    contents = [bytes([number]) * 300_000 for number in range(40)]
    reader = greeted()
    for content, data in zip(contents, encoded(*contents), strict=True):
        while data:
            room = reader.writable()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            for _, payload in reader.received(count):
                seen.append(id(payload.obj))
                if content[0] % 10 == 0:  # a consumer that keeps some, and looks at others once
                    kept.append((content, payload))
                assert payload == content
                del payload
    assert len(set(seen)) < len(seen) / 2
    assert len(rooms) <= codec._ROOMS_MAX
    assert all(view == content for content, view in kept)


def test_large_frames_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    move = FrameReader._move

    def noted(self: FrameReader, size: int) -> None:
        moved.append(self._end - self._begin)
        move(self, size)

    monkeypatch.setattr(FrameReader, "_move", noted)
    contents = [bytes(300_000)] * 20
    feed(greeted(), b"".join(encoded(*contents)), step=1 << 20)
    assert sum(moved) < 300_000  # until their size is known


def test_payloads_that_are_kept_are_never_overwritten() -> None:
    reader = greeted()
    kept: list[tuple[bytes, memoryview]] = []
    contents = [number.to_bytes(2, "little") * 3000 for number in range(300)]
    for content, data in zip(contents, encoded(*contents), strict=True):
        while data:
            room = reader.writable()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            kept += [(content, payload) for _, payload in reader.received(count)]
    assert len(kept) == 300
    assert all(bytes(view) == content for content, view in kept)


def test_everything_on_the_wire_is_aligned() -> None:
    for data in encoded(*(bytes(size) for size in (0, 1, 63, 64, 65, 1000))):
        assert len(data) % limits.ALIGNMENT == 0


def test_every_flipped_bit_of_the_head_is_found_at_once() -> None:
    """A size that is too large must not make the reader wait for bytes that never come."""
    (good,) = encoded(bytes(100))
    for bit in range(8 * (_PREFIX.size + len(frame_of(0).SerializeToString()))):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            feed(greeted(), bytes(bad), len(bad))


def test_the_prefix_is_checked_before_the_rest_arrives() -> None:
    (good,) = encoded(bytes(100_000))
    bad = bytearray(good[: _PREFIX.size])
    bad[9] ^= 1
    with pytest.raises(Corrupt):
        feed(greeted(), bytes(bad), len(bad))


def test_frames_that_are_lost_doubled_or_swapped_are_found() -> None:
    first, second, third = encoded(b"a", b"b", b"c")
    for damaged in (first + third, first + first, first + third + second, second):
        with pytest.raises(Corrupt, match="out of order"):
            feed(greeted(), damaged, len(damaged))


def test_an_oversize_frame_is_refused_before_it_is_read() -> None:
    sizes = _SIZES.pack(MAGIC, 10, limits.FRAME_PAYLOAD_BYTES_MAX + 1)
    head = sizes + _CHECKSUMS.pack(crc32c(sizes, 0), 0)
    with pytest.raises(Corrupt, match="over the limit"):
        feed(greeted(), head, len(head))


def test_before_the_greeting_only_a_small_frame_is_taken() -> None:
    (payload,) = encoded(b"x")
    with pytest.raises(Corrupt, match="over the limit"):
        feed(FrameReader(), payload, len(payload))
    large = b"".join(FrameWriter().encode(pb.Frame(hello=pb.Hello(software="x" * 3000))))
    with pytest.raises(Corrupt, match="over the limit"):
        feed(FrameReader(), large, 64)
    (hello,) = encoded(b"")
    assert feed(FrameReader(), hello, 7) == [(0, b"")]
    assert len(FrameReader().writable()) <= 4 * limits.KIB


def test_the_room_of_a_large_frame_grows_as_its_bytes_arrive() -> None:
    (data,) = encoded(bytes(20 * limits.MIB))
    reader = greeted()
    arrived = 0
    while arrived < len(data):
        assert len(reader._space) <= max(limits.MIB, 4 * arrived) + limits.ALIGNMENT
        room = reader.writable()
        count = min(len(room), len(data) - arrived, 256 * limits.KIB)
        room[:count] = data[arrived : arrived + count]
        arrived += count
        found = [bytes(payload) for _, payload in reader.received(count)]
    assert found == [bytes(20 * limits.MIB)]


def test_reading_may_stop_early_and_go_on() -> None:
    data = b"".join(encoded(*[b"x" * 50] * 10))
    reader = greeted()
    reader.writable()[: len(data)] = data
    found = [next(reader.received(len(data)))[0].id]
    found += [next(reader.received(0))[0].id for _ in range(3)]
    found += [frame.id for frame, _ in reader.received(0)]
    assert found == list(range(10))


@given(st.binary(min_size=20, max_size=200))
def test_garbage_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        feed(greeted(), data, len(data))


def test_the_buffer_of_an_idle_peer_stays_small_and_grows_when_it_is_full() -> None:
    small, large = encoded(*[b""] * 1010), encoded(*[b"x" * 1000] * 1110)[1010:]
    reader = FrameReader()
    feed(reader, small[0], 1000)
    reader.accept_all()
    for frame in small[1:10]:
        feed(reader, frame, 1000)
    assert len(reader._space) == 2 * limits.GREETING_BYTES_MAX
    assert len(feed(reader, b"".join(small[10:]), limits.MIB)) == 1000
    assert len(reader._space) == 64 * limits.KIB
    assert len(feed(reader, b"".join(large), limits.MIB)) == 100
    assert len(reader._space) > 64 * limits.KIB
