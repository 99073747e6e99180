"""Targets that read what metadata repositories and archives store."""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c
from fuzzing import Target, WrongRecordError, same, with_crc
from memory_files import MemoryFiles

from loomlog.archive import manifest, record
from loomlog.core.ordered.round_parts import RoundPart
from loomlog.core.ordered.rounds import Round
from loomlog.core.quorum.member import Leader, MemberState
from loomlog.core.segments import Segment, Settings
from loomlog.metadata.catalog import records
from loomlog.metadata.offline.transfer import Dump
from loomlog.metadata.registers import RegisterRecord
from loomlog.metadata.rounds import member_disk, round_files
from loomlog.metadata.rounds.round_files import RoundFile, StoredRound
from loomlog.metadata.store import checked_value

_U32: Final = struct.Struct("<I")
PLACE: Final = "/v"


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


def metadata_targets() -> list[Target]:
    """Return the targets of this module, the fastest kinds first."""
    value, stored = b"content", lambda data: checked_value.unpack("log/x", data, 3)
    register = RegisterRecord(b"value", 5, ((1, 2), (3, 4))).encode()
    return [
        Target("rounds", (_rounds_example(),), _read_rounds, _seal_rounds, _compare_rounds),
        Target("round", (Round(1, 2, 3, (RoundPart(1, 2, 3, 4, 5),)).encode(),), _read_round),
        Target(
            "promise",
            (_promise_example(),),
            _read_promise,
            lambda data: with_crc(data, 8, crc32c(data[12:])),
            same(_read_promise),
        ),
        Target(
            "export",
            (_export_example(),),
            _read_export,
            lambda data: with_crc(data, 8, crc32c(data[12:])),
            same(_read_export),
        ),
        Target(
            "record",
            tuple(bytes([number]) + records.encode(each) for number, each in enumerate(_RECORDS)),
            _read_record,
        ),
        Target("register", (register,), lambda data: RegisterRecord.decode("key", data)),
        Target("stored", (checked_value.pack("log/x", value, 3),), stored, compare=same(stored)),
        Target("manifest", (_manifest_example(),), lambda data: manifest.decode(data, "file")),
        Target(
            "page",
            (manifest.encode_page([manifest.RangeFile("f", 1, 10, 10, 100, 1, 2, "x")]),),
            lambda data: manifest.decode_page(data, "file"),
        ),
        Target("archive", (_archive_example(),), lambda data: record.decode(data, "orders")),
    ]
