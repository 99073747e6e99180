"""Senseless frames: random fields, random payloads, flipped bits."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from loomlog import columns
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec, FrameWriter

NUMBERS = (0, 1, 2, 3, 7, 255, 1 << 16, (1 << 31) - 1)
LARGE = ((1 << 31), (1 << 32) - 1, 1 << 32, (1 << 62), (1 << 63) - 1)
HUGE = ((1 << 63), (1 << 64) - 1)
TEXTS = ("", "x", "no:address", "127.0.0.1:1", "host:99999999", "\x00", "ä" * 50, "a" * 5000)
KINDS = tuple(field.name for field in pb.Frame.DESCRIPTOR.oneofs_by_name["body"].fields)

# What an operator may do, and who stores copies: these do what they say, so their names and ids are
# none that exist. (Who may send them is another matter.)
_DESTRUCTIVE = frozenset(
    {
        *("delete_log", "trim_log", "set_retention", "switch_log", "swap_register", "create_log"),
        *("change_stream", "change_node", "change_metadata", "change_lease", "register"),
        *("copyset_append", "round_install", "round_append"),
    }
)


class RandomFrames:
    """Creates random frames from one seed. `ids` are the existing streams and loglets."""

    def __init__(self, seed: int, ids: Iterable[int]) -> None:
        self._random = random.Random(seed)
        self._ids = tuple(ids)
        self._batch = bytes(columns.encode([b"fuzz"] * 3, timestamps_us=1))

    def frame(self) -> pb.Frame:
        """Return one of any kind."""
        choice = self._random
        frame = pb.Frame(id=choice.choice((0, 1, 1, 1, 5, HUGE[1])), reply=choice.random() < 0.05)
        kind = choice.choice(KINDS)
        body = getattr(frame, kind)
        body.SetInParent()
        self._fill(body, depth=0)
        self._make_harmless(kind, body)
        return frame

    def about(self, kind: str, number: int, name: str) -> pb.Frame:
        """Return a request of a kind, about the stream, loglet, log and node that these name."""
        frame = pb.Frame()
        body = getattr(frame, kind)
        body.SetInParent()
        self._fill(body, depth=0)
        known = {"log_stream_id": number, "loglet_id": number, "storage_node_id": number}
        for field, value in {**known, "name": name}.items():
            if field in body.DESCRIPTOR.fields_by_name:
                setattr(body, field, value)
        return frame

    def payload(self) -> bytes:
        choice = self._random
        match choice.randrange(6):
            case 0:
                return self._batch
            case 1:
                return self.damaged(self._batch)
            case 2:
                return self._batch[: choice.randrange(len(self._batch))]
            case 3:
                return choice.randbytes(choice.choice((1, 63, 64, 128, 5000)))
        return b""

    def damaged(self, data: bytes) -> bytes:
        """Flip, cut, double or swap some bytes."""
        choice, damaged = self._random, bytearray(data)
        at, size = choice.randrange(len(data)), choice.randrange(1, 80)
        match choice.randrange(4):
            case 0:
                damaged[at] ^= 1 << choice.randrange(8)
            case 1:
                del damaged[at : at + size]
            case 2:
                damaged[at:at] = damaged[at : at + size]
            case 3:
                damaged[at : at + 2 * size] = (
                    damaged[at + size : at + 2 * size] + damaged[at:][:size]
                )
        return bytes(damaged)

    def connection(self, count: int) -> bytes:
        """Return what a peer says on one connection: a greeting, then some frames."""
        encode = FrameWriter().encode
        role = self._random.choice(("client", "client", "vsn"))
        said = [b"".join(encode(Codec(role).greeting()))]
        said += [b"".join(encode(self.frame(), [self.payload()])) for _ in range(count)]
        data = b"".join(said)
        return self.damaged(data) if self._random.random() < 0.3 else data

    # ---- fields

    def _make_harmless(self, kind: str, body: Any) -> None:
        for field, value in body.ListFields():
            if kind in _DESTRUCTIVE and field.name in ("name", "cluster_id"):
                setattr(body, field.name, "does-not-exist")
            elif kind in _DESTRUCTIVE and field.name.endswith("_id") and isinstance(value, int):
                setattr(body, field.name, 999)
        if kind == "copyset_request" and body.kind not in (
            *(pb.CopysetRequest.READ, pb.CopysetRequest.DIGEST),
        ):
            body.loglet_id = 999
        if kind == "chain_request" and body.kind == pb.ChainRequest.WRITE:
            body.loglet_id = 999
        if kind == "sequencer_request":
            body.loglet_id = 999
        if kind in ("round_install", "round_append"):
            body.epoch = HUGE[1]

    def _fill(self, message: Message, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < 0.3:
                continue
            if field.is_repeated:
                for _ in range(self._random.randrange(3)):
                    self._add(getattr(message, field.name), field, depth)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                if depth < 4:
                    self._fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self._value(field))

    def _add(self, values: Any, field: Any, depth: int) -> None:
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            values.append(self._value(field))
        elif depth < 4:
            self._fill(values.add(), depth + 1)

    def _value(self, field: Any) -> Any:
        choice = self._random
        numbers = (*NUMBERS, *LARGE, *HUGE, *self._ids)
        match field.type:
            case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
                return choice.choice((*numbers, choice.getrandbits(64)))
            case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_FIXED32:
                return choice.choice(numbers) & 0xFFFFFFFF
            case FieldDescriptor.TYPE_SINT64 | FieldDescriptor.TYPE_INT64:
                return choice.choice((-1, -(1 << 63), *NUMBERS, *LARGE))
            case FieldDescriptor.TYPE_SINT32 | FieldDescriptor.TYPE_INT32:
                return choice.choice((-1, -(1 << 31), *NUMBERS))
            case FieldDescriptor.TYPE_ENUM:
                return choice.choice((*field.enum_type.values_by_number, 99))
            case FieldDescriptor.TYPE_BOOL:
                return choice.random() < 0.5
            case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
                return choice.choice((0.0, -1.0, 1e300, float("inf"), float("nan"), 0.5))
            case FieldDescriptor.TYPE_BYTES:
                return choice.randbytes(choice.randrange(100))
        return choice.choice(TEXTS)
