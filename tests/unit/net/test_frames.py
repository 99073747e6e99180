"""Frames: whatever the chunks in which bytes arrive, the same frames come out, or Corrupt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomlog import limits
from loomlog.errors import Corrupt
from loomlog.wire import frames
from loomlog.wire import loomlog_pb2 as pb


def encoded(number: int, payload: bytes) -> bytes:
    frame = pb.Frame(id=number, append=pb.Append(log_stream_id=number))
    return b"".join(frames.encode(frame, [payload] if payload else []))


def feed(reader: frames.FrameReader, data: bytes, step: int) -> list[tuple[int, bytes]]:
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
    data = b"".join(encoded(i, content) for i, content in enumerate(contents))
    found = feed(frames.FrameReader(), data, step)
    assert found == list(enumerate(contents))


def test_payloads_that_are_kept_are_never_overwritten() -> None:
    reader = frames.FrameReader()
    kept: list[tuple[bytes, memoryview]] = []
    for number in range(300):
        content = number.to_bytes(2, "little") * 3000
        data = encoded(number, content)
        while data:
            room = reader.writable()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            kept += [(content, payload) for _, payload in reader.received(count)]
    assert len(kept) == 300
    assert all(bytes(view) == content for content, view in kept)


def test_everything_on_the_wire_is_aligned() -> None:
    for size in (0, 1, 63, 64, 65, 1000):
        assert len(encoded(1, bytes(size))) % limits.ALIGNMENT == 0


def test_every_flipped_bit_of_the_head_is_found() -> None:
    good = encoded(5, b"")
    for bit in range(
        8 * (16 + len(pb.Frame(id=5, append=pb.Append(log_stream_id=5)).SerializeToString()))
    ):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            found = feed(frames.FrameReader(), bytes(bad), len(bad))
        except Corrupt:
            continue
        assert found == []  # it waits for more bytes than will ever come


def test_an_oversize_frame_is_refused_before_it_is_read() -> None:
    head = frames._PREFIX.pack(frames.MAGIC, 10, limits.FRAME_PAYLOAD_BYTES_MAX + 1, 0)
    with pytest.raises(Corrupt, match="over the limit"):
        feed(frames.FrameReader(), head, 16)


@given(st.binary(min_size=16, max_size=200))
def test_garbage_is_corrupt(data: bytes) -> None:
    if int.from_bytes(data[:4], "little") == frames.MAGIC:
        return
    with pytest.raises(Corrupt):
        feed(frames.FrameReader(), data, len(data))
