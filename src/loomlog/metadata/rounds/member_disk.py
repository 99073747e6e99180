"""The files of a member of the round log, in one directory.

    promise               which member it is, the newest leader that sealed it, whether it lost its
                          data; small, replaced atomically
    rounds-00000007.log   its file (round_files.py). The first record has the index of the snapshot
                          and its number of records; then follow the snapshot and the records
                          appended since

Both exist from the first start on. A member that lacks one, or cannot read it, has lost its disk:
it no longer knows its records or promises, and reports this.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from loomlog.core.quorum.member import NOBODY, Leader, MemberId, MemberState
from loomlog.errors import Corrupt, InvalidArgument, VersionMismatch
from loomlog.metadata.rounds.round_files import (
    RoundFile,
    StoredRound,
    clean,
    creation,
    encode,
    open_file,
    read_file,
    remove,
    sync_way_to,
)
from loomlog.storage.files import Files, Step

logger = logging.getLogger(__name__)

FORMAT: Final = 1

_MAGIC: Final = b"loompmse"
_PROMISE: Final = struct.Struct("<8sIIIQIII")  # magic, CRC of the rest, format, owner, then
_CRC_FROM: Final = 12  # of the leader: epoch, member; lost; size of the leader's address; that
_BEGIN: Final = struct.Struct("<QQ")  # index of the snapshot, records in it


class MemberDisk:
    """The disk of a member. Created by `open`. Changes are steps for a worker."""

    def __init__(self, member_id: MemberId, files: Files, directory: str, file_bytes: int) -> None:
        self._member_id = member_id
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._current: RoundFile | None = None
        self._numbers: list[int] = []  # of the round files; the last one counts
        self.state = MemberState()  # as found

    @classmethod
    def open(
        cls, member_id: MemberId, files: Files, directory: str, *, create: bool, file_bytes: int
    ) -> MemberDisk:
        """Open an existing directory, or create it (only if `create`). Blocks."""
        disk = cls(member_id, files, directory, file_bytes)
        files.make_directory(directory)
        sync_way_to(files, directory)  # it is also new if the member lost its disk
        disk._numbers = clean(files, directory)
        if create and not files.exists(_promise_path(directory)):
            disk._check_unused()
            disk._begin()
        else:
            disk.state = _read_promise(files, directory, member_id)
            if not disk.state.lost:
                disk._recover()
        return disk

    def _begin(self) -> None:
        for step in [*self.install(MemberState(), []), *self.promise(MemberState())]:
            step()

    def _check_unused(self) -> None:
        """Raise if the files hold rounds, because they belong to a member that the MetaStore does
        not know. An interrupted start leaves at most a file without rounds."""
        for number in self._numbers:
            try:
                used = read_file(self._files, self._directory, number)[1:]
            except Corrupt as error:
                raise _unknown_rounds(self._directory, str(error)) from error
            if used:
                raise _unknown_rounds(self._directory, f"{len(used)} of them")

    def _recover(self) -> None:
        try:
            self._current = self._open_current()
            begin, *_ = self._current.records
            index, kept = _BEGIN.unpack(begin.content)
            self._check_promise(self._current.epoch)
        except (Corrupt, ValueError, struct.error) as error:
            logger.warning("this member's round log is lost, a leader must fill it: %s", error)
            self.state = self.state._replace(lost=True)
            return
        last_index = index + len(self._current.records) - 1 - kept
        self.state = self.state._replace(file_epoch=self._current.epoch, last_index=last_index)
        self._current.records.clear()
        remove(self._files, self._directory, self._numbers[:-1])
        del self._numbers[:-1]

    def _check_promise(self, file_epoch: int) -> None:
        if file_epoch > self.state.promised.epoch:
            raise Corrupt(f"{self._directory}: the promise is older than the file of rounds")

    def _open_current(self) -> RoundFile:
        if not self._numbers:
            raise Corrupt(f"{self._directory} holds no file of rounds")
        return open_file(self._files, self._directory, self._numbers[-1])

    def close(self) -> None:
        if self._current is not None:
            self._current.close()

    # ---- steps

    def promise(self, state: MemberState) -> list[Step]:
        """Write the promise of the member, and whether it is lost."""
        path = _promise_path(self._directory)

        def write() -> None:
            file = self._files.open(f"{path}.tmp", create=True)
            try:
                file.truncate(0)
                file.write([_encode_promise(state, self._member_id)], 0)
                file.sync()
            finally:
                file.close()

        def publish() -> None:
            self._files.rename(f"{path}.tmp", path)
            self._files.sync_directory(self._directory)

        return [write, publish]

    def append(self, epoch: int, records: Sequence[bytes]) -> list[Step]:
        current = self._current
        assert current is not None
        assert current.file is not None
        data = encode([StoredRound(epoch, record) for record in records], current.next_number)
        file, at = current.file, current.end
        current.end += len(data)
        current.next_number += len(records)
        return [lambda: file.write([data], at), file.sync]

    def install(self, state: MemberState, records: Sequence[bytes]) -> list[Step]:
        """Begin a new file with these records and delete the old one."""
        epoch = state.file_epoch
        contents = [_BEGIN.pack(state.last_index, len(records)), *records]
        data = encode([StoredRound(epoch, content) for content in contents], 1)
        old, old_numbers = self._current, self._numbers
        number = old_numbers[-1] + 1 if old_numbers else 1
        new = RoundFile.fresh(number, epoch, max(self._file_bytes, 2 * len(data)))
        new.next_number += len(contents)
        self._current, self._numbers = new, [number]

        def drop() -> None:
            if old is not None:
                old.close()
            remove(self._files, self._directory, old_numbers)

        return [*creation(self._files, self._directory, new, data), drop]

    def read(self) -> list[bytes]:
        """Return all records in the file. Blocks."""
        assert self._current is not None
        number, expected = self._current.number, self._current.next_number - 1
        records = read_file(self._files, self._directory, number)
        if len(records) != expected:
            raise Corrupt(f"{self._directory}: {len(records)} records instead of {expected}")
        return [record.content for record in records[1:]]


def _unknown_rounds(directory: str, what: str) -> Corrupt:
    return Corrupt(
        f"{directory} holds rounds ({what}), but the MetaStore does not know this member: give the "
        "etcd and prefix of its cluster, or restore that, or give an empty directory to a new one"
    )


# ---- the promise


def member_in(files: Files, directory: str) -> MemberId:
    """Return the member whose directory it is; raise Corrupt or FileNotFoundError if unknown."""
    path = _promise_path(directory)
    data = _content(files, path)
    if len(data) < _PROMISE.size or _crc_of(data) != int(crc32c(data[_CRC_FROM:])):
        raise Corrupt(f"{path} is damaged")
    return int(_PROMISE.unpack_from(data)[3])


def is_begun(files: Files, directory: str) -> bool:
    """Return whether this directory holds a member."""
    return files.exists(_promise_path(directory))


def _promise_path(directory: str) -> str:
    return f"{directory}/promise"


def _encode_promise(state: MemberState, member_id: MemberId) -> bytes:
    epoch, member, address = state.promised
    where = address.encode()
    fields = (FORMAT, member_id, epoch, member, int(state.lost), len(where))
    checked = _PROMISE.pack(_MAGIC, 0, *fields)[_CRC_FROM:] + where
    return _PROMISE.pack(_MAGIC, int(crc32c(checked)), *fields) + where


def _read_promise(files: Files, directory: str, member_id: MemberId) -> MemberState:
    """Return the promise of a member that is not new."""
    path = _promise_path(directory)
    try:
        return _decode_promise(path, _content(files, path), member_id)
    except (Corrupt, FileNotFoundError) as error:
        logger.warning("this member's promise is lost, a leader must fill it: %s", error)
        return MemberState(NOBODY, lost=True)


def _content(files: Files, path: str) -> bytes:
    file = files.open(path)
    try:
        return bytes(file.read(file.size(), 0))
    finally:
        file.close()


def _decode_promise(path: str, data: bytes, member_id: MemberId) -> MemberState:
    if len(data) < _PROMISE.size or int(crc32c(data[_CRC_FROM:])) != _crc_of(data):
        raise Corrupt(f"{path} is damaged")
    _, _, version, whose, epoch, member, lost, size = _PROMISE.unpack_from(data)
    if version != FORMAT:
        raise VersionMismatch(f"{path} has format {version}, this release reads {FORMAT}")
    if whose != member_id:
        raise InvalidArgument(f"{path} belongs to member {whose}: start it with that id")
    address = data[_PROMISE.size : _PROMISE.size + size].decode(errors="replace")
    return MemberState(Leader(epoch, member, address), lost=bool(lost))


def _crc_of(data: bytes) -> int:
    magic, crc = struct.unpack_from("<8sI", data)
    return int(crc) if magic == _MAGIC else -1
