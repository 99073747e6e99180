"""The replicated form of metadata, offline: etcd, and the round logs of several vmr.

Rounds are read from the directories of a majority, since everything that was decided is in one of
them. While these are locked, no metadata repository can lead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Final

from loomlog.config import EtcdSettings
from loomlog.core.quorum.leader import Sealed, choose
from loomlog.core.quorum.member import NOBODY, MemberId
from loomlog.errors import Corrupt, InvalidArgument, LoomError, NotFound, Unavailable
from loomlog.metadata.data_directory import quorum_in
from loomlog.metadata.leader import membership
from loomlog.metadata.leader.membership import Membership
from loomlog.metadata.leader.peers import Peers
from loomlog.metadata.offline import transfer
from loomlog.metadata.offline.transfer import Dump
from loomlog.metadata.rounds import imported_rounds
from loomlog.metadata.rounds.member_disk import MemberDisk, member_in
from loomlog.metadata.rounds.round_files import FILE_BYTES
from loomlog.metadata.store.etcd import EtcdStore
from loomlog.net.credentials import Credentials, HandshakeFailed
from loomlog.storage.disk import RealFiles, lock_directory
from loomlog.wire.codec import Codec

ASKED_S: Final = 1.0  # a running vmr answers sooner


async def export(
    settings: EtcdSettings, directories: Sequence[str], *, skip_damaged: bool = False
) -> Dump:
    """Return all metadata; `directories` are those of a majority of the metadata repositories."""
    async with opened(settings) as store:
        known = await membership.known_membership(store)
        leader, _ = await membership.read_leader(store)
        with _members(directories) as disks:
            rounds = _decided(known, disks)
        waiting = await imported_rounds.read(store) or []
        return await transfer.dump(
            store,
            (*waiting, *rounds),
            leader.epoch,
            _where(settings),
            skip_damaged=skip_damaged,
        )


async def fill(settings: EtcdSettings, dump: Dump, peers: Mapping[MemberId, str]) -> None:
    """Create the metadata of a cluster with these members. Their directories must be empty."""
    async with opened(settings) as store:
        await transfer.check_empty(store, _where(settings))
        more = membership.beginning(dump.epoch, peers) | imported_rounds.items(dump.rounds)
        await transfer.fill(store, dump, more)


async def begin_again(store: EtcdStore, records: Sequence[bytes]) -> None:
    """Let new members continue with these rounds. Their directories must be empty."""
    await imported_rounds.write(store, records)
    await membership.forget_starts(store)  # only now: no member may begin without rounds


async def check_stopped(store: EtcdStore, settings: EtcdSettings) -> None:
    """Raise if a metadata repository still runs, because it would continue with its state."""
    known = await membership.known_membership(store)
    cluster_id = await transfer.cluster_id(store, _where(settings))
    codec = Codec("vmr", cluster_id=cluster_id, credentials=Credentials.of_stand_in())
    peers = Peers(NOBODY.member, codec, lambda: None)
    try:
        for member, address in known.addresses.items():
            try:
                await peers.ask(address, ASKED_S)
            except HandshakeFailed as error:
                raise Unavailable(f"vmr {member} may run: {error}") from error
            except LoomError:
                continue
            raise Unavailable(f"vmr {member} runs at {address}: stop all of them first")
    finally:
        peers.close()


@asynccontextmanager
async def opened(settings: EtcdSettings) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(settings)
    try:
        yield store
    finally:
        await store.close()


def _where(settings: EtcdSettings) -> str:
    return f"etcd at {', '.join(settings.endpoints)} under {settings.prefix!r}"


@contextmanager
def _members(directories: Sequence[str]) -> Iterator[dict[MemberId, MemberDisk]]:
    """Lock the directories, and return their members."""
    files = RealFiles()
    with ExitStack() as closing:
        disks: dict[MemberId, MemberDisk] = {}
        for directory in directories:
            path = quorum_in(directory)
            if not files.exists(path):
                raise NotFound(f"{directory} holds no round log of one of several vmr: give others")
            closing.callback(_lock(directory))
            try:
                number = member_in(files, path)
            except (Corrupt, FileNotFoundError):
                continue  # lost: not evidence
            disk = MemberDisk.open(number, files, path, create=False, file_bytes=FILE_BYTES)
            closing.callback(disk.close)
            disks[number] = disk
        yield disks


def _lock(directory: str) -> Callable[[], None]:
    """Lock a directory like its vmr."""
    try:
        return lock_directory(directory).close
    except InvalidArgument:
        raise Unavailable(f"{directory} is in use: stop all vmr first") from None


def _decided(known: Membership, disks: dict[MemberId, MemberDisk]) -> list[bytes]:
    """Return all rounds that were ever decided."""
    answers = {number: _answer(disk) for number, disk in disks.items()}
    best = choose(known.configuration, answers)
    if best is None:
        missing = [str(n) for n in known.configuration.everybody if n not in answers]
        raise InvalidArgument(
            f"the rounds are certain only with a majority of the vmr: give --data of "
            f"{' or '.join(missing) or 'others that did not lose theirs'}, too"
        )
    return disks[best.member].read()


def _answer(disk: MemberDisk) -> Sealed:
    return Sealed(disk.state.file_epoch, disk.state.last_index, disk.state.lost)
