"""Everything that reads bytes which somebody else wrote: peers, disks, files that users give."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from typing import Any, Final

from crc32c import crc32c
from fuzzing import Target, WrongRecordError, same, with_crc
from google.protobuf.message import DecodeError
from http_targets import http_targets
from memory_files import MemoryFiles
from metadata_targets import metadata_targets
from random_frames import RandomFrames
from storage_rig import StorageRig

from loomlog import batch, columns, references
from loomlog.core.chained.replica import Standing
from loomlog.core.copyset.late_losses import forgotten
from loomlog.core.copyset.messages import EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.core.copyset.settlement import UNMARKED_MAX
from loomlog.core.copyset.storage import EpochLng, LogStanding
from loomlog.core.history import Run, Seen
from loomlog.core.ordered.columns import read_reports
from loomlog.core.packed import unpack_reports
from loomlog.core.permissions import AccessRules, Grant
from loomlog.errors import Corrupt, InvalidArgument, LoomError
from loomlog.node.access import KnownAccess
from loomlog.references import Range, Reference
from loomlog.storage import age_marks, identity, small_files
from loomlog.storage.chained import rocks_table
from loomlog.storage.logsdb import rows
from loomlog.storage.ordered import commit_log, data_index, replica_paths
from loomlog.types import CommitContext
from loomlog.wire import chained, copyset, info, translate
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.access import Access
from loomlog.wire.codec import Codec, FrameReader, FrameWriter
from loomlog.wire.conditions import condition_from_wire
from loomlog.wire.permissions import rule_of

_U32: Final = struct.Struct("<I")
PLACE: Final = "/v"


# ---- frames


@cache
def _frame_examples() -> tuple[bytes, ...]:
    return tuple(_frame_streams())


def _frame_streams() -> Iterable[bytes]:
    frames = RandomFrames(1, [1, 2])
    for count in (1, 2, 3):
        encode = FrameWriter().encode
        said = [b"".join(encode(Codec("client").greeting()))]
        said += [b"".join(encode(frames.frame(), [frames.payload()])) for _ in range(count)]
        yield b"".join(said)


def _read_frames(data: bytes) -> list[tuple[bytes, bytes]]:
    reader, at = FrameReader(), 0
    found: list[tuple[bytes, bytes]] = []
    while at < len(data):
        room = reader.writable()
        part = data[at : at + min(len(room), 1000)]
        room[: len(part)] = part
        for frame, payload in reader.received(len(part)):
            if not found:
                reader.accept_all()
            found.append((frame.SerializeToString(deterministic=True), bytes(payload)))
        at += len(part)
        if len(reader._space) > max(1 << 20, 8 * at) + 4096:
            raise MemoryError(f"a buffer of {len(reader._space)} bytes for {at} that arrived")
    return found


def _seal_frames(data: bytes) -> bytes:
    sealed, at, number = bytearray(data), 0, 0
    while at + 20 <= len(sealed):
        _, header_size, payload_size = struct.unpack_from("<III", sealed, at)
        checksum = crc32c(sealed[at : at + 12], number)
        header = sealed[at + 20 : at + 20 + header_size]
        struct.pack_into("<II", sealed, at + 12, checksum, crc32c(header, checksum))
        at += batch.aligned(20 + header_size) + batch.aligned(payload_size)
        number += 1
    return bytes(sealed)


def _compare_frames(_: bytes, data: bytes) -> None:
    """Whatever arrives before damage is found was sent as the frame of its number. Pieces of other
    examples may hold whole frames, and a frame does not name its connection."""
    for numbered in enumerate(_sizes(_read_frames(data))):
        if numbered not in _frames_sent():
            raise WrongRecordError("frames that nobody sent")


@cache
def _frames_sent() -> set[tuple[int, tuple[bytes, int]]]:
    return {each for data in _frame_examples() for each in enumerate(_sizes(_read_frames(data)))}


def _sizes(frames: list[tuple[bytes, bytes]]) -> list[tuple[bytes, int]]:
    """Payloads are batches, which have checksums of their own."""
    return [(frame, len(payload)) for frame, payload in frames]


def _read_message(data: bytes) -> None:
    """Handle a frame as servers and clients do, until it is known what it asks for."""
    if len(data) < 2:
        return
    (size,) = struct.unpack_from("<H", data)
    try:
        frame = pb.Frame.FromString(data[2 : 2 + size])
    except DecodeError:
        raise Corrupt("no message") from None
    payload = memoryview(data)[2 + size :]
    kind = frame.WhichOneof("body") or ""
    rule_of(kind, frame)
    if kind:
        Codec("vsn").asks_for_content(kind, getattr(frame, kind))
    if Codec.has(frame, "error"):
        Codec("vsn").failure(frame)
    if kind in _TRANSLATIONS:
        _TRANSLATIONS[kind](getattr(frame, kind), payload)


def _copyset_request(message: pb.CopysetRequest, payload: memoryview) -> None:
    if reason := rows.nonsense(copyset.request_from_wire(message, payload)):
        raise InvalidArgument(reason)


def _report(message: pb.GetReportResponse, payload: memoryview) -> None:
    for each in message.uncommit_reports:
        translate.report_from_wire(each)
    list(unpack_reports(message.packed_reports))
    read_reports(message.packed_reports)
    for condition in message.conditions.conditions:
        condition_from_wire(condition)


# Offsets 1 to 5 and 8 of epoch 1 were found, and nothing between and behind them.
_RECOVERED: Final = LogState(
    epoch=3,
    sequencer=1,
    history=(EpochMetadata(1, (Member(1), Member(2)), 2),),
    last_clean=2,
    tail=make(1, 8),
    ends=(
        EpochEnd(1, 4, 8, 1, 1, found=((5, 5), (8, 8))),
        EpochEnd(2, 0, 0, 2, 1, exact=False),
    ),
)


_REPORTED: Final = ((1, 1, 9), (1, 6, 6), (1, 12, 1 << 20), (2, 1, 3), (2, 7, (1 << 32) - 1))


def _report_forgotten(message: pb.ReportForgotten, payload: memoryview) -> None:
    """Note what a writer reports. It must stay within bounds, and lose no entry."""
    reported = forgotten(_RECOVERED, [(each.first, each.last) for each in message.ranges])
    if forgotten(reported, [(each.first, each.last) for each in message.ranges]) != reported:
        raise WrongRecordError("a report that is repeated changes something again")
    for before, end in zip(_RECOVERED.ends, reported.ends, strict=True):
        if len(end.lost) > UNMARKED_MAX or any(last < first for first, last in end.lost):
            raise WrongRecordError(f"the losses {end.lost} are not within bounds")
        kept = [*range(1, before.lng + 1), *(first for first, _ in before.found)]
        if any(first <= each <= last for first, last in end.lost for each in kept):
            raise WrongRecordError(f"an entry is lost by the report: {end.lost}")


_TRANSLATIONS: Final[dict[str, Callable[[Any, memoryview], Any]]] = {
    "chain_request": lambda message, payload: chained.request_from_wire(message, 1, payload),
    "chain_answer": chained.answer_from_wire,
    "sequencer_request": lambda message, _: chained.sequencer_request_from_wire(message),
    "sequencer_answer": lambda message, _: chained.sequencer_answer_from_wire(message),
    "copyset_request": _copyset_request,
    "copyset_answer": copyset.answer_from_wire,
    "epoch_store_request": lambda message, _: copyset.store_request_from_wire(message, 1),
    "copyset_state": lambda message, _: copyset.state_from_wire(message),
    "report": _report,
    "report_forgotten": _report_forgotten,
    "commit": lambda message, _: list(translate.commits_from_wire(message)),
    "status": lambda message, _: info.cluster_status(message),
    "log": lambda message, _: info.log_info(message),
    "access": lambda message, _: Access.from_wire(message),
    "append": lambda _, payload: batch.split(payload),
}


def _message_examples() -> Iterable[bytes]:
    frames = RandomFrames(2, [1, 2])
    ranges = [pb.CopysetRange(first=make(e, a), last=make(e, b)) for e, a, b in _REPORTED]
    report = pb.Frame(report_forgotten=pb.ReportForgotten(loglet_id=1, ranges=ranges))
    yield struct.pack("<H", report.ByteSize()) + report.SerializeToString()
    for kind in _TRANSLATIONS:
        for _ in range(4):
            header = frames.about(kind, 1, "orders").SerializeToString()
            yield struct.pack("<H", len(header)) + header + frames.payload()


# ---- batches

REFERENCE: Final = Reference("a.staged", "w", 3, 7, (Range(7, 1000, 5), Range(2, 1, 1)))


def _batch_examples() -> Iterable[bytes]:
    headers = [columns.encode_headers({"trace": b"1"}), None, None]
    values, keys = [b"one", b"", b"three" * 40], [b"k", None, b""]
    for compression in ("none", "lz4", "zstd"):
        for more in ({}, {"keys": keys}, {"keys": keys, "headers": headers}):
            made = columns.encode(
                values,
                timestamps_us=[5, 6, 7],
                compression=compression,
                **more,  # type: ignore[arg-type]
            )
            batch.assign_place(made, 3, 1, 17)
            yield bytes(made)
    yield bytes(references.encode(REFERENCE, producer_id=9, min_timestamp_us=1, max_timestamp_us=2))


def _read_batch(data: bytes) -> object:
    """Read one batch as a client does."""
    header = batch.read_header(data)
    if header.flags == batch.FLAG_REFERENCE:
        return references.decode(data)[1]
    found = columns.decode(data)
    arrow = found.to_arrow()
    arrow.validate(full=True)
    return arrow


def _seal_batch(data: bytes) -> bytes:
    if len(data) < batch.HEADER_BYTES:
        return data
    sealed = bytearray(data)
    body_size = len(sealed) - batch.HEADER_BYTES
    struct.pack_into("<I", sealed, 8, len(sealed))
    if not 0 <= body_size - _U32.unpack_from(sealed, 16)[0] < 64:
        struct.pack_into("<II", sealed, 16, body_size, body_size)
    struct.pack_into("<I", sealed, 24, crc32c(memoryview(sealed)[batch.HEADER_BYTES :]))
    batch._renew_header_crc(sealed)
    return bytes(sealed)


# ---- files of replicas


def _read_index(data: bytes) -> object:
    return data_index.decode(bytearray(data))


def _index_example() -> bytes:
    from array import array

    numbers = array("Q", [1, 5, 9])
    return data_index.encode(
        data_index.DataIndex(1, 12, 900, 2, numbers, numbers, array("q", [1, 2, 3]), [(1, 2, 3, 4)])
    )


def _read_commit(data: bytes) -> object:
    found = commit_log.decode(data)
    if found is None:
        raise Corrupt("no sound record")
    return found


@cache
def _replica() -> dict[str, bytes]:
    """The files of a replica with some committed batches."""
    files = MemoryFiles()
    rig = StorageRig(f"{PLACE}/lsid=7", files=files)
    rig.fill(40)
    rig.append(200)
    rig.settle()
    rig.close()
    return {path: bytes(data) for path, data in files.contents.items()}


def _read_replica(data: bytes) -> dict[int, bytes]:
    """Open a replica one of whose files has this content, and read all that it has."""
    if not data:
        return {}
    contents = dict(_replica())
    contents[sorted(contents)[data[0] % len(contents)]] = data[1:]
    rig = StorageRig(f"{PLACE}/lsid=7", files=MemoryFiles(contents))
    found = {}
    for llsn in range(1, min(rig.store.last_llsn, 1000) + 1):  # a commit may claim any number
        try:
            chunk = rig.store.read(llsn, llsn, 1 << 20)
        except LoomError:
            continue
        for header, one in batch.split(chunk.buffer):
            found[header.first_llsn] = bytes(one)
    return found


@cache
def _whole_replica() -> dict[int, bytes]:
    return _read_replica(b"\0" + _replica()[min(_replica())])


def _compare_replica(example: bytes, data: bytes) -> None:
    if data[:1] != example[:1]:
        return
    whole = _whole_replica()
    for llsn, one in _read_replica(data).items():
        if one != whole.get(llsn):
            raise WrongRecordError(f"another batch at LLSN {llsn}")


# ---- small files


def _seal_small(data: bytes) -> bytes:
    line = data.partition(b"\n")[0]
    return b"%s\n%08x\n" % (line, crc32c(line))


def _small(name: str, path: str, example: dict[str, Any], load: Callable[[Any], Any]) -> Target:
    def read(data: bytes) -> Any:
        return load(MemoryFiles({f"{PLACE}/{path}": data}))

    return Target(name, (small_files.encode(example),), read, _seal_small, same(read))


def _small_targets() -> list[Target]:
    who = identity.Identity("c", 3, "secret", "other", {"x": 1}, ("/v", "/w"), 1, 2)
    owner = {"format": 2, "cluster": "abc", "node_id": 3, "shard": 0, "stamp": "x"}
    meta = {"format": replica_paths.META_FORMAT, **asdict(replica_paths.StreamMeta(1, 7, 5))}
    access = Access(3, AccessRules(True, (Grant("a", "read", "*"),)), {1: bytes(32)})
    wire = access.to_wire().SerializeToString(deterministic=True).hex()
    return [
        _small(
            "identity",
            "identity",
            {"format": identity.FORMAT, **asdict(who)},
            lambda files: identity.load(files, PLACE),
        ),
        _small("owner", "owner", owner, lambda files: identity._load_owner(files, PLACE)),
        _small("meta", "meta", meta, lambda files: replica_paths.load_meta(files, PLACE)),
        _small_of_marks("generation", {"number": 7}, lambda f: age_marks.load_generation(f, PLACE)),
        _small_of_marks(
            "run", {"number": 1, "id": "x", "revision": 3}, lambda f: age_marks.load_run(f, [PLACE])
        ),
        _small_of_marks(
            "access",
            {"access": wire},
            lambda files: KnownAccess(files, [PLACE], None).current,  # type: ignore[arg-type]
        ),
    ]


def _small_of_marks(name: str, example: dict[str, Any], load: Callable[[Any], Any]) -> Target:
    """Return a target whose reader does not raise: damage reads as one of a few safe values."""
    target = _small(name, name, example, load)
    unreadable = (None, Seen(Run(0, ""), 0), Seen(), Access(rules=AccessRules(enforced=True)))

    def compare(example: bytes, data: bytes) -> None:
        found = target.read(data)
        if found not in unreadable and found != target.read(example):
            raise WrongRecordError(f"read {found}")

    return Target(name, target.examples, target.read, target.seal, compare)


# ---- databases


def _rows_examples() -> Iterable[bytes]:
    standing = LogStanding(1, 2, 3, 4, make(5, 6), 7, 8, (EpochLng(5, 6),))
    head = rows.head_of(Record(make(1, 2), 3, Kind.DATA, 4, (1, 2, 3), 1, 2, 0, b"batch"))
    yield b"\0" + rows.pack_standing(standing)
    yield b"\1" + rows.pack_end(EpochEnd(1, 2, 3, 4, 5))
    yield b"\2" + rows.pack_share(rows.Share(1, 2, 3, 4))
    yield b"\3" + rows.pack_partition(5)
    yield b"\4" + rows.pack_head(head)
    yield b"\5" + rocks_table._STANDING.pack(rocks_table.VERSION, *Standing(1, 2, 3))


def _read_row(data: bytes) -> object:
    kind, value = data[:1], data[1:]
    match kind:
        case b"\0":
            return rows.unpack_standing(value)
        case b"\1":
            return rows.unpack_end(1, value)
        case b"\2":
            return rows.unpack_share(value)
        case b"\3":
            return rows.unpack_partition(value)
        case b"\4":
            return rows.unpack_head(make(1, 2), value)
    return rocks_table._unpack_standing(value)


def all_targets() -> list[Target]:
    """Return every target, the fastest kinds first."""
    commit = commit_log.encode(3, CommitContext(9, 5, 6, 2, 4, 1))
    files = sorted(_replica())
    return [
        Target("frames", _frame_examples(), _read_frames, _seal_frames, _compare_frames),
        Target("messages", tuple(_message_examples()), _read_message),
        Target("batch", tuple(_batch_examples()), _read_batch, _seal_batch, same(_read_batch)),
        Target("reference", (references.encode_body(REFERENCE),), references.decode_body),
        Target(
            "index",
            (_index_example(),),
            _read_index,
            lambda data: with_crc(data, len(data) - 4, crc32c(data[:-4])),
            same(_read_index),
        ),
        Target(
            "commit",
            (commit,),
            _read_commit,
            lambda data: with_crc(data, 0, crc32c(data[4:64])),
            same(_read_commit),
        ),
        *_small_targets(),
        Target("rows", tuple(_rows_examples()), _read_row),
        *metadata_targets(),
        *http_targets(),
        Target(
            "replica",
            tuple(bytes([number]) + _replica()[path] for number, path in enumerate(files)),
            _read_replica,
            lambda data: data[:1] + _seal_batches(data[1:]),
            _compare_replica,
        ),
    ]


def _seal_batches(data: bytes) -> bytes:
    """Give everything in a file of a replica right checksums: small files, batches, commits."""
    if data.startswith(b"{"):
        return _seal_small(data)
    sealed = bytearray(data)
    for at in range(0, len(sealed) - 63, 64):
        if sealed[at : at + 4] == batch.MAGIC and at + batch.HEADER_BYTES <= len(sealed):
            (size,) = _U32.unpack_from(sealed, at + 8)
            body = sealed[at + batch.HEADER_BYTES : at + size]
            _U32.pack_into(sealed, at + 24, crc32c(bytes(body)))
            batch._renew_header_crc(memoryview(sealed)[at:])
        elif sealed[at + 4 : at + 8] == commit_log.MAGIC:
            _U32.pack_into(sealed, at, crc32c(bytes(sealed[at + 4 : at + 64])))
    return bytes(sealed)
