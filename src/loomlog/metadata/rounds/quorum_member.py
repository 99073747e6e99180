"""A member of the quorum round log, in every metadata repository, whether or not it leads.

Requests are handled in the order of their arrival, one disk job at a time; all appends that arrive
meanwhile form one job. Requests are answered only when durable. core.quorum.member decides what is
accepted. A leader bounds its messages in flight, so the queue here needs no bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypedDict

from crc32c import crc32c

from loomlog.core.quorum import member as rules
from loomlog.core.quorum.leader import Append, Install, Message, Read, Seal
from loomlog.core.quorum.member import Leader, MemberId, MemberState
from loomlog.errors import Corrupt, InvalidArgument, LoomError, Unavailable
from loomlog.metadata.rounds import RECORD_FORMAT
from loomlog.metadata.rounds.member_disk import MemberDisk
from loomlog.metadata.rounds.round_files import FILE_BYTES, SHORT_BYTES_MAX
from loomlog.storage.files import Files, Step, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Route

logger = logging.getLogger(__name__)

Answer = Callable[[pb.Frame | LoomError, Sequence[bytes]], None]
Watcher = Callable[[Leader], None]
_REQUESTS = ("round_seal", "round_read", "round_install", "round_append")


class _Request(NamedTuple):
    kind: str
    body: Any
    records: list[bytes]
    answer: Answer


class QuorumMember:
    """A member of the quorum round log. Created by `open`."""

    def __init__(self, member_id: MemberId, disk: MemberDisk, worker: Worker) -> None:
        self._member_id = member_id
        self._disk = disk
        self._worker = worker
        self._state = disk.state
        self._requests: deque[_Request] = deque()
        self._busy = False
        self._watchers: list[Watcher] = []
        self.failed: asyncio.Future[LoomError] = asyncio.get_running_loop().create_future()

    @classmethod
    def open(
        cls,
        member_id: MemberId,
        files: Files,
        directory: str,
        worker: Worker,
        *,
        create: bool,
        file_bytes: int = FILE_BYTES,
    ) -> QuorumMember:
        """Open a member. With `create`, it was never started before. Otherwise a member without
        files is lost, and a leader fills it before it counts. Blocks."""
        disk = MemberDisk.open(member_id, files, directory, create=create, file_bytes=file_bytes)
        return cls(member_id, disk, worker)

    def close(self) -> None:
        """Close the member, after its worker was closed. Blocks."""
        self._requests.clear()
        self._disk.close()

    # ---- the leader

    @property
    def leader(self) -> Leader:
        """Return the newest leader that sealed this member; epoch 0: none yet."""
        return self._state.promised

    @property
    def state(self) -> MemberState:
        return self._state

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with every newer leader that seals this member. The result ends it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    # ---- requests

    def routes(self, codec: Codec) -> dict[str, Route]:
        """Return the handlers of requests that the metadata repository passes on."""

        def route(connection: Connection, frame: Frame, payload: memoryview) -> None:
            leader = self.leader
            if getattr(frame, codec.kind(frame)).epoch == leader.epoch:  # otherwise it is refused
                connection.require("metadata", leader.member)

            def answer(reply: pb.Frame | LoomError, records: Sequence[bytes]) -> None:
                if isinstance(reply, LoomError):
                    reply = codec.failure_frame(reply)
                reply.id, reply.reply = frame.id, True
                connection.send(reply, records)

            self.take(frame, payload, answer)

        return dict.fromkeys(_REQUESTS, route)

    async def seal(
        self, seal: pb.RoundSeal, check: Callable[[Leader], Awaitable[None]]
    ) -> pb.Frame:
        """Answer a RoundSeal; `check` raises unless its sender may lead."""
        leader = leader_in(seal)
        if leader.epoch >= self.leader.epoch and leader != self.leader:
            await check(leader)
        sealed: asyncio.Future[pb.Frame] = asyncio.get_running_loop().create_future()

        def answer(reply: pb.Frame | LoomError, records: Sequence[bytes]) -> None:
            if sealed.done():
                return
            if isinstance(reply, LoomError):
                sealed.set_exception(reply)
            else:
                sealed.set_result(reply)

        self.take(pb.Frame(round_seal=seal), memoryview(b""), answer)
        return await sealed

    def take(self, frame: pb.Frame, payload: memoryview, answer: Answer) -> None:
        """Take a request of a leader; `answer` may be called at once."""
        kind = frame.WhichOneof("body") or ""
        body = getattr(frame, kind)
        records = records_in(body, payload) if kind in ("round_install", "round_append") else []
        self._requests.append(_Request(kind, body, records, answer))
        if not self._busy:
            self._next_job()

    # ---- jobs

    def _next_job(self) -> None:
        while self._requests and not self._busy:
            request = self._requests[0]
            if self.failed.done():
                self._requests.popleft().answer(Unavailable(str(self.failed.result())), ())
            elif request.kind == "round_append":
                self._append_job()
            else:
                self._requests.popleft()
                self._try(request)

    def _try(self, request: _Request) -> None:
        try:
            match request.kind:
                case "round_seal":
                    self._seal(request)
                case "round_install":
                    self._install(request)
                case _:
                    self._read(request)
        except LoomError as error:
            request.answer(error, ())

    def _seal(self, request: _Request) -> None:
        if request.body.member != self._member_id:
            raise InvalidArgument(
                f"this is metadata repository {self._member_id}, not {request.body.member}: "
                "each needs an address of its own"
            )
        state = rules.seal(self._state, leader_in(request.body))
        sealed = pb.RoundSealed(
            file_epoch=state.file_epoch,
            last_index=state.last_index,
            lost=state.lost,
            record_format=RECORD_FORMAT,
        )
        steps = self._disk.promise(state) if state.promised != self._state.promised else []
        self._run(steps, state, lambda: request.answer(pb.Frame(round_sealed=sealed), ()))

    def _install(self, request: _Request) -> None:
        body, records = request.body, request.records
        state = rules.install(self._state, body.epoch, body.last_index)
        steps = self._disk.install(state, records) if state is not self._state else []
        if self._state.lost:
            steps += self._disk.promise(state)
        stored = pb.RoundStored(last_index=state.last_index)
        self._run(steps, state, lambda: request.answer(pb.Frame(round_stored=stored), ()))

    def _append_job(self) -> None:
        """Return a job for all appends that wait now."""
        state, epoch = self._state, 0
        records: list[bytes] = []
        answers: list[tuple[Answer, pb.Frame | LoomError]] = []
        while self._requests and self._requests[0].kind == "round_append":
            _, body, added, answer = self._requests.popleft()
            reply: pb.Frame | LoomError
            try:
                before = state
                state = rules.append(state, body.epoch, body.first_index, len(added))
                index = rules.stored_index(state, body.epoch)
                reply = pb.Frame(round_stored=pb.RoundStored(last_index=index))
            except LoomError as error:
                reply = error
            else:
                if state is not before:
                    epoch = body.epoch
                    records += added
            answers.append((answer, reply))

        def finished() -> None:
            for answer, reply in answers:
                answer(reply, ())

        steps = self._disk.append(epoch, records) if records else []
        self._run(steps, state, finished, is_short=sum(map(len, records)) <= SHORT_BYTES_MAX)

    def _read(self, request: _Request) -> None:
        rules.check_leader(self._state, request.body.epoch)
        found: list[bytes] = []
        self._busy = True

        def finished(error: BaseException | None) -> None:
            self._busy = False
            if isinstance(error, Corrupt):
                self._lose(request, error)
            elif error is not None:
                self._fail(error)
                request.answer(Unavailable(str(self.failed.result())), ())
            else:
                self._answer_tail(request, found)
            self._next_job()

        self._worker.run([lambda: found.extend(self._disk.read())], finished)

    def _answer_tail(self, request: _Request, records: list[bytes]) -> None:
        tail = pb.RoundTail(
            file_epoch=self._state.file_epoch,
            last_index=self._state.last_index,
            **describe(records),
        )
        request.answer(pb.Frame(round_tail=tail), records)

    def _lose(self, request: _Request, error: Corrupt) -> None:
        """Record that durable records can no longer be read, to report it when sealed."""
        logger.warning("this member's round log is lost, a leader must fill it: %s", error)
        lost = self._state._replace(lost=True)
        reply = Unavailable(f"this member cannot be read: {error}")
        self._run(self._disk.promise(lost), lost, lambda: request.answer(reply, ()))

    # ---- the disk

    def _run(
        self,
        steps: list[Step],
        state: MemberState,
        finished: Callable[[], None],
        *,
        is_short: bool = False,
    ) -> None:
        """Make a state durable; then adopt it and call `finished`."""
        if not steps:
            self._enter(state)
            finished()
            return
        self._busy = True

        def on_finished(error: BaseException | None) -> None:
            self._busy = False
            if error is None:
                self._enter(state)
                finished()
            else:
                self._fail(error)
            self._next_job()

        (self._worker.run_short if is_short else self._worker.run)(steps, on_finished)

    def _enter(self, state: MemberState) -> None:
        newer = state.promised.epoch > self._state.promised.epoch
        self._state = state
        if newer:
            for watcher in list(self._watchers):
                watcher(state.promised)

    def _fail(self, error: BaseException) -> None:
        """End this process, because the content of the disk is unknown."""
        if not self.failed.done():
            logger.critical("the round log failed, this process must end: %s", error)
            self.failed.set_result(LoomError(f"the round log failed: {error}"))


# ---- messages: sizes and a checksum of records in the header, their bytes as payload


class Described(TypedDict):
    """A header's description of the records in its payload."""

    sizes: list[int]
    crc: int


def describe(records: Sequence[bytes]) -> Described:
    """Return the sizes and the checksum of records."""
    crc = 0
    for record in records:
        crc = int(crc32c(record, crc))
    return {"sizes": [len(record) for record in records], "crc": crc}


def records_in(
    described: pb.RoundTail | pb.RoundInstall | pb.RoundAppend, payload: memoryview
) -> list[bytes]:
    if sum(described.sizes) != len(payload) or int(crc32c(payload)) != described.crc:
        raise Corrupt("records of the round log do not match their checksum: send them again")
    records = []
    at = 0
    for size in described.sizes:
        records.append(bytes(payload[at : at + size]))
        at += size
    return records


def frame_of(message: Message, leader: Leader, member: MemberId) -> tuple[pb.Frame, list[bytes]]:
    """Return a leader's message to a member, as a frame."""
    epoch, number, address = leader
    match message:
        case Seal():
            seal = pb.RoundSeal(epoch=epoch, leader=number, address=address, member=member)
            return pb.Frame(round_seal=seal), []
        case Read():
            return pb.Frame(round_read=pb.RoundRead(epoch=epoch)), []
        case Install(last_index, records):
            install = pb.RoundInstall(epoch=epoch, last_index=last_index, **describe(records))
            return pb.Frame(round_install=install), records
        case Append(first_index, records):
            append = pb.RoundAppend(epoch=epoch, first_index=first_index, **describe(records))
            return pb.Frame(round_append=append), records


def leader_in(seal: pb.RoundSeal) -> Leader:
    member: MemberId = seal.leader
    return Leader(seal.epoch, member, seal.address)
