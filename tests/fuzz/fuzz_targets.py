"""Everything that reads bytes which somebody else wrote: peers, disks, files that users give."""

from __future__ import annotations

import asyncio
import atexit
import json
import struct
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import cache
from typing import Any, Final

from crc32c import crc32c
from fuzzing import Target, WrongRecordError
from memory_files import MemoryFiles
from random_frames import RandomFrames
from starlette.requests import Request
from storage_rig import StorageRig

from loomlog import batch, columns, references
from loomlog.archive import manifest, record
from loomlog.console.api import ROUTES
from loomlog.console.application import Endpoint
from loomlog.console.route import Route
from loomlog.core.chained.replica import Standing
from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.core.copyset.storage import EpochLng, LogStanding
from loomlog.core.history import Run, Seen
from loomlog.core.ordered.rounds import Round, RoundPart
from loomlog.core.permissions import AccessRules, Grant, parse_permissions
from loomlog.core.quorum.member import Leader, MemberState
from loomlog.core.segments import Segment, Settings
from loomlog.errors import Corrupt, InvalidArgument, LoomError, Unavailable
from loomlog.http import HttpServer
from loomlog.metadata.catalog import records
from loomlog.metadata.offline.transfer import Dump
from loomlog.metadata.registers import RegisterRecord
from loomlog.metadata.rounds import member_disk, round_files
from loomlog.metadata.rounds.round_files import RoundFile, StoredRound
from loomlog.metadata.store import checked_value
from loomlog.node.access import KnownAccess
from loomlog.references import Range, Reference
from loomlog.storage import age_marks, identity, small_files
from loomlog.storage.chained import rocks_table
from loomlog.storage.logsdb import rows
from loomlog.storage.ordered import commit_log, data_index, replica_paths
from loomlog.types import CommitContext
from loomlog.wire import chained, codec, copyset, info, tokens, translate
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec, FrameReader, FrameWriter
from loomlog.wire.conditions import condition_from_wire
from loomlog.wire.guard import Access
from loomlog.wire.permissions import rule_of

_U32: Final = struct.Struct("<I")
PLACE: Final = "/v"
_NOW_S: Final = 1_800_000_000


def _with_crc(data: bytes, at: int, crc: int) -> bytes:
    return data[:at] + _U32.pack(crc) + data[at + 4 :] if len(data) >= at + 4 else data


def _same(read: Callable[[bytes], Any]) -> Callable[[bytes, bytes], None]:
    """Return the comparison of a format in which checksums cover everything: a damaged copy is an
    error, or reads as the original."""
    read_once = cache(read)

    def compare(example: bytes, data: bytes) -> None:
        found = read(data)
        if found != read_once(example):
            raise WrongRecordError(f"read {str(found)[:200]}")

    return compare


# ---- frames


def _frame_examples() -> Iterable[bytes]:
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


def _compare_frames(example: bytes, data: bytes) -> None:
    """Whatever arrives before damage is found is what was sent, in order."""
    sent = _read_frames(example)
    found = _read_frames(data)
    if _sizes(found) != _sizes(sent)[: len(found)]:
        raise WrongRecordError("frames that nobody sent")


def _sizes(frames: list[tuple[bytes, bytes]]) -> list[tuple[bytes, int]]:
    """Payloads are batches, which have checksums of their own."""
    return [(frame, len(payload)) for frame, payload in frames]


def _read_message(data: bytes) -> None:
    """Handle a frame as servers and clients do, until it is known what it asks for."""
    if len(data) < 2:
        return
    (size,) = struct.unpack_from("<H", data)
    frame, payload = codec._parse(memoryview(data)[2 : 2 + size]), memoryview(data)[2 + size :]
    kind = frame.WhichOneof("body") or ""
    rule_of(kind, frame, payload)
    Codec("vsn").asks_for_content(kind, frame)
    Codec("vsn").failure(frame)
    if kind in _TRANSLATIONS:
        _TRANSLATIONS[kind](getattr(frame, kind), payload)


def _copyset_request(message: pb.CopysetRequest, payload: memoryview) -> None:
    if reason := rows.nonsense(copyset.request_from_wire(message, payload)):
        raise InvalidArgument(reason)


def _report(message: pb.GetReportResponse, payload: memoryview) -> None:
    for each in message.uncommit_reports:
        translate.report_from_wire(each)
    for condition in message.conditions.conditions:
        condition_from_wire(condition)


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
    "commit": lambda message, _: [
        translate.commit_from_wire(each) for each in message.commit_results
    ],
    "status": lambda message, _: info.cluster_status(message),
    "log": lambda message, _: info.log_info(message),
    "access": lambda message, _: Access.from_wire(message),
    "append": lambda _, payload: batch.split(payload),
}


def _message_examples() -> Iterable[bytes]:
    frames = RandomFrames(2, [1, 2])
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

    return Target(name, (small_files.encode(example),), read, _seal_small, _same(read))


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


# ---- metadata


def _rounds_example() -> bytes:
    file = RoundFile.fresh(7, 2, 4096)
    stored = [StoredRound(2, b"one"), StoredRound(2, b"two" * 30), StoredRound(3, b"")]
    content = round_files._file_header(file) + round_files.encode(stored, 1)
    return content.ljust(file.capacity, b"\0")


def _read_rounds(data: bytes) -> list[StoredRound]:
    files = MemoryFiles({f"{PLACE}/rounds-00000007.log": data})
    return round_files.open_file(files, PLACE, 7).records


def _seal_rounds(data: bytes) -> bytes:
    sealed = bytearray(data)
    if len(sealed) >= 64:
        _U32.pack_into(sealed, 8, crc32c(bytes(sealed[12:40])))
    at = sealed.find(b"LMRR")
    while at >= 0:
        if at + 32 <= len(sealed):
            (size,) = _U32.unpack_from(sealed, at + 8)
            _U32.pack_into(sealed, at + 4, crc32c(bytes(sealed[at + 8 : at + 32 + size])))
        at = sealed.find(b"LMRR", at + 4)
    return bytes(sealed)


def _compare_rounds(example: bytes, data: bytes) -> None:
    whole, found = _read_rounds(example), _read_rounds(data)
    if found != whole[: len(found)]:
        raise WrongRecordError(f"rounds {found}")


def _read_promise(data: bytes) -> object:
    return member_disk._decode_promise("promise", data, 2)


def _promise_example() -> bytes:
    state = MemberState(Leader(3, 1, "host:7400"), lost=False)
    return member_disk._encode_promise(state, 2)


def _read_export(data: bytes) -> object:
    dump = Dump.decode(data, "file")
    return dump.epoch, dump.version, dump.items, dump.rounds, dump.cluster_id


def _export_example() -> bytes:
    cluster = records.encode(records.ClusterRecord("c", "secret"))
    return Dump(3, 9, {"cluster": cluster, "log/x": b"{}"}, (b"round", b"")).encode()


_RECORDS: Final[tuple[records.MetadataRecord, ...]] = (
    records.ClusterRecord("c", "secret"),
    records.CountersRecord(3, 4),
    records.NodeRecord(1, "h:1", "s", "always", ("/v",), generations={0: 1}),
    records.LogRecord(1, "orders", (Segment(1, Settings("ordered", 1, 3), 1),)),
    records.AccessRecord(),
)


def _read_record(data: bytes) -> object:
    if not data:
        return None
    return records.decode(type(_RECORDS[data[0] % len(_RECORDS)]), "key", data[1:])


def _read_round(data: bytes) -> object:
    return Round.decode(data)


# ---- archives


def _manifest_example() -> bytes:
    return manifest.Manifest(
        (manifest.Page("p", 1, 20, 2, 5, 3),), (manifest.RangeFile("g", 21, 30, 9, 5, 1, 2, "y"),)
    ).encode()


def _archive_example() -> bytes:
    return record.ArchiveInfo(1, "/a", 1, 9, 1, 2, "m", 3, "run").encode()


# ---- tokens and HTTP

_KEY: Final = tokens.new_private_key()
_KEYS: Final = {1: tokens.public_key(_KEY)}


def _read_token(data: bytes) -> object:
    found = tokens.verify(data.decode("latin-1"), _KEYS, frozenset(), _NOW_S)
    return found.name, found.permissions, found.expires_s


def _token_example() -> bytes:
    allow = parse_permissions("append:orders.*")
    return tokens.sign(1, _KEY, "billing", allow, _NOW_S + 100).text.encode()


class _StillLoop:
    """An event loop whose timers never ring."""

    def call_later(self, *_: object) -> Any:
        return self

    def cancel(self) -> None:
        """Do nothing: it would not have rung."""


class _Transport:
    def __init__(self) -> None:
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def close(self) -> None:
        """Do nothing: the input ends anyway."""

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None


_PAGES: Final = {"/status": lambda: ("text/plain", b"ok")}


def _read_http(data: bytes) -> int:
    asyncio._set_running_loop(_StillLoop())  # type: ignore[arg-type]
    try:
        connection, transport = HttpServer(_PAGES)._connection(), _Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        for at in range(0, len(data), 500):
            connection.data_received(data[at : at + 500])
        connection.connection_lost(None)
    finally:
        asyncio._set_running_loop(None)
    if transport.written > 1000 * (len(data) + 1):
        raise MemoryError(f"{transport.written} bytes of answers to {len(data)}")
    return transport.written


_HTTP: Final = (
    b"GET /status HTTP/1.1\r\nHost: x\r\n\r\nGET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"HEAD /status HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    b"0\r\n\r\n",
)


# ---- the HTTP API


class _NoCluster:
    """The clients of an API whose cluster is away."""

    @property
    def clients(self) -> _NoCluster:
        return self

    def use(self, token: str) -> _NoCluster:
        return self

    async def __aenter__(self) -> None:
        raise Unavailable("the request was understood")

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: it is never entered."""


_ENDPOINTS: Final = [(route, Endpoint(route, _NoCluster())) for route in ROUTES]  # type: ignore[arg-type]


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def _read_api(data: bytes) -> None:
    """Handle a request until it is known what it asks of the cluster. The bytes are the number of a
    route, a line of its query, lines of headers, and behind an empty line its body."""
    route, endpoint = _ENDPOINTS[(data[0] if data else 0) % len(_ENDPOINTS)]
    head, _, body = data[1:].partition(b"\n\n")
    query, *headers = head.split(b"\n")
    texts = {each.name: query.decode("latin-1") for each in route.of("path")}
    scope = {
        "type": "http",
        "method": route.method,
        "path": route.path,
        "query_string": query,
        "headers": [
            (name.lower(), value.strip())
            for name, _, value in (header.partition(b":") for header in headers)
        ],
        "path_params": texts,
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 9),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def answer() -> None:
        async with AsyncExitStack() as stack:
            await endpoint._response(Request(scope, receive), stack)

    _loop().run_until_complete(answer())


def _api_examples() -> Iterable[bytes]:
    for number, (route, _) in enumerate(_ENDPOINTS):
        query = "&".join(f"{name}={value}" for name, value in _values(route, "query").items())
        head = f"{query}\ncontent-type: application/json\nauthorization: Bearer x\nhost: localhost"
        body = _values(route, "body")
        text = json.dumps(body).encode() if body else b""
        yield bytes([number]) + head.encode() + b"\n\n" + text


def _values(route: Route, place: str) -> dict[str, Any]:
    return {each.name: _VALUES.get(str(each.schema.get("type")), 1) for each in route.of(place)}


_VALUES: Final = {"string": "text", "boolean": True, "array": [1, 2], "object": {}}


def all_targets() -> list[Target]:
    """Return every target, the fastest kinds first."""
    commit = commit_log.encode(3, CommitContext(9, 5, 6, 2, 4, 1))
    value, stored = b"content", lambda data: checked_value.unpack("log/x", data, 3)
    register = RegisterRecord(b"value", 5, ((1, 2), (3, 4))).encode()
    files = sorted(_replica())
    return [
        Target("frames", tuple(_frame_examples()), _read_frames, _seal_frames, _compare_frames),
        Target("messages", tuple(_message_examples()), _read_message),
        Target("batch", tuple(_batch_examples()), _read_batch, _seal_batch, _same(_read_batch)),
        Target("reference", (references.encode_body(REFERENCE),), references.decode_body),
        Target(
            "index",
            (_index_example(),),
            _read_index,
            lambda data: _with_crc(data, len(data) - 4, crc32c(data[:-4])),
            _same(_read_index),
        ),
        Target(
            "commit",
            (commit,),
            _read_commit,
            lambda data: _with_crc(data, 0, crc32c(data[4:64])),
            _same(_read_commit),
        ),
        *_small_targets(),
        Target("rows", tuple(_rows_examples()), _read_row),
        Target("rounds", (_rounds_example(),), _read_rounds, _seal_rounds, _compare_rounds),
        Target("round", (Round(1, 2, 3, (RoundPart(1, 2, 3, 4, 5),)).encode(),), _read_round),
        Target(
            "promise",
            (_promise_example(),),
            _read_promise,
            lambda data: _with_crc(data, 8, crc32c(data[12:])),
            _same(_read_promise),
        ),
        Target(
            "export",
            (_export_example(),),
            _read_export,
            lambda data: _with_crc(data, 8, crc32c(data[12:])),
            _same(_read_export),
        ),
        Target(
            "record",
            tuple(bytes([number]) + records.encode(each) for number, each in enumerate(_RECORDS)),
            _read_record,
        ),
        Target("register", (register,), lambda data: RegisterRecord.decode("key", data)),
        Target("stored", (checked_value.pack("log/x", value, 3),), stored, compare=_same(stored)),
        Target("manifest", (_manifest_example(),), lambda data: manifest.decode(data, "file")),
        Target(
            "page",
            (manifest.encode_page([manifest.RangeFile("f", 1, 10, 10, 100, 1, 2, "x")]),),
            lambda data: manifest.decode_page(data, "file"),
        ),
        Target("archive", (_archive_example(),), lambda data: record.decode(data, "orders")),
        Target("token", (_token_example(),), _read_token, compare=_same(_read_token)),
        Target("http", _HTTP, _read_http),
        Target("api", tuple(_api_examples()), _read_api),
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
