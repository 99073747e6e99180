"""A reader whose nodes answer what a test says, when it says."""

from __future__ import annotations

from loomlog.core.copyset.effects import (
    AskShard,
    Deliver,
    Finished,
    GapKind,
    NeedMetadata,
    ReaderEffect,
    ReadGap,
    SetTimer,
)
from loomlog.core.copyset.messages import Delivered, EpochEnd, LogState, Read
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.reader import CopysetReader
from loomlog.core.copyset.reader_sources import ReadSettings
from loomlog.core.copyset.record import LSN_MAX, OFFSET_MAX, Epoch, Kind, Lsn, Record, make
from loomlog.types import NodeId

LOG = 1
START = make(1, 1)


def metadata(*nodes: NodeId, since: Epoch = 1, replication: int = 2) -> EpochMetadata:
    return EpochMetadata(since, tuple(Member(node) for node in nodes), replication)


def state(
    *history: EpochMetadata, epoch: Epoch = 1, ends: tuple[EpochEnd, ...] = (), **more: int
) -> LogState:
    """Return a state in which no epoch is clean, by default."""
    facts = {"last_clean": 0, "tail": 0, "trimmed": 0, **more}
    return LogState(
        epoch,
        sequencer=1,
        history=history,
        last_clean=facts["last_clean"],
        tail=facts["tail"],
        closed=bool(facts.get("closed")),
        trimmed=facts["trimmed"],
        ends=ends,
    )


def data(
    first: Lsn, count: int = 1, *, wave: int = 1, recovered: int = 0, size: int = 10
) -> Record:
    batch = bytes([first % 256]) * size
    return Record(first, count, Kind.DATA, 0, (1, 2), wave, 0, recovered, batch)


def hole(first: Lsn, last: Lsn, *, recovered: int = 2) -> Record:
    return Record(first, last - first + 1, Kind.HOLE, 0, (1, 2), 1, 0, recovered)


def bridge(first: Lsn, *, recovered: int = 2) -> Record:
    count = OFFSET_MAX - (first & OFFSET_MAX) + 1
    return Record(first, count, Kind.BRIDGE, 0, (1, 2), 1, 0, recovered)


def end(epoch: Epoch, last: int, *, exact: bool = True) -> EpochEnd:
    return EpochEnd(epoch, last, last, epoch + 1, 1, exact)


def lsns(first: int, last: int, epoch: Epoch = 1) -> tuple[Lsn, Lsn]:
    return make(epoch, first), make(epoch, last)


class ReaderRig:
    def __init__(
        self,
        known: LogState | None = None,
        *,
        first: Lsn = START,
        until: Lsn = LSN_MAX,
        batches: bool = True,
        settings: ReadSettings | None = None,
    ) -> None:
        self.settings = settings or ReadSettings()
        self.reader = CopysetReader(LOG, first, until, batches=batches, settings=self.settings)
        self.now = 10.0
        self.seen: list[Deliver | ReadGap] = []
        self.asks: dict[NodeId, AskShard] = {}  # the newest that is not answered
        self.questions: list[AskShard] = []
        self.wanted: list[Epoch] = []
        self.timer: float | None = None
        self.known: LogState | None = None
        self.finished = False
        self.do(self.reader.woken(self.now))
        if known is not None:
            self.tell(known)

    # ---- what happens

    def tell(self, known: LogState) -> None:
        """Answer with a state, which is also what a reader gets that doubts a loss."""
        self.known = known
        self.do(self.reader.learn_state(known, self.now))

    def answer(
        self,
        node: NodeId,
        *records: Record,
        up_to: int | Lsn,
        trimmed: Lsn = 0,
        lost_through: Epoch = 0,
        damaged: tuple[tuple[Lsn, Lsn], ...] = (),
        ask: AskShard | None = None,
        released: Lsn | None = None,
        life: int = 0,
    ) -> None:
        """Answer with these records and nothing more up to `up_to`; a small number is an offset of
        epoch 1. All of it is released unless `released` says how far."""
        last = up_to if up_to > OFFSET_MAX else make(1, up_to)
        shown = last if released is None else released
        answer = Delivered(records, last + 1, trimmed, shown, lost_through, damaged, life)
        question = ask or self.asks.pop(node)
        self.do(self.reader.answered(node, question.question, answer, self.now))

    def fail(self, node: NodeId) -> None:
        ask = self.asks.pop(node)
        self.do(self.reader.failed(node, ask.question, self.now))

    def consume(self, deliveries: int) -> None:
        self.do(self.reader.consumed(deliveries, self.now))

    def pass_time(self, seconds: float) -> None:
        end_of_wait = self.now + seconds
        while self.timer is not None and self.timer <= end_of_wait:
            self.now, self.timer = self.timer, None
            self.do(self.reader.woken(self.now))
        self.now = end_of_wait

    def pass_grace(self) -> None:
        self.pass_time(self.settings.grace_s + 0.001)

    def do(self, effects: list[ReaderEffect]) -> None:
        for effect in effects:
            match effect:
                case AskShard():
                    self.asks[effect.shard] = effect
                    self.questions.append(effect)
                case Deliver() | ReadGap():
                    self.seen.append(effect)
                case NeedMetadata() if self.known and self.reader.is_doubtful:
                    self.tell(self.known)
                case NeedMetadata(epoch):
                    self.wanted.append(epoch)
                case SetTimer(at):
                    self.timer = at
                case Finished():
                    self.finished = True

    # ---- what is to be seen

    def request(self, node: NodeId) -> Read:
        return self.asks[node].request

    @property
    def delivered(self) -> list[tuple[Lsn, Lsn]]:
        return [(seen.first, seen.last) for seen in self.seen if isinstance(seen, Deliver)]

    @property
    def gaps(self) -> list[tuple[Lsn, Lsn, GapKind]]:
        return [(gap.first, gap.last, gap.kind) for gap in self.seen if isinstance(gap, ReadGap)]
