"""Recover the epochs before that of a new sequencer. Pure.

    for each epoch that is not clean yet, in order, with the nodeset and replication it had:
    seal → digest what is above the last known good → settle → mutate → clean → set clean

- Readers stop at the last known good of an epoch that is not clean. So nothing else is ever seen
  than what recovery decides.
- Sealed nodes are an f-majority: no other sequencer can complete a record any more. Digested nodes
  are one: each complete record is found. The same holds for what another recovery completed, so a
  new one gets the same result, wherever the other one died.
- A node that crashed since the epoch began may have forgotten records that its disk confirmed. Its
  records count; their absence counts only if all nodes are asked, within reason, because one of
  them still has each complete record. The epoch's end names nodes not asked (evidence.py).
- Nodes that are not written to keep their leftovers until they are purged (procedures.py). So a
  node that does not answer costs nothing, and one that fails meanwhile only another attempt.
- If too few nodes can be written to, all that can get everything: a short copyset (nodeset.py). The
  epoch store knows of it before the first write, so a later recovery finds what this one wrote.

Recovery relies on two things: a node that lost its disk is no longer fully authoritative, and seals
itself below the newest epoch before it takes any record; a node that counts as empty or unavailable
takes none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from loomlog.core.copyset.evidence import recovered
from loomlog.core.copyset.messages import (
    Acknowledged,
    Amend,
    Clean,
    Digest,
    Digested,
    Done,
    EpochEnd,
    GetState,
    LogState,
    Preempted,
    Seal,
    SealedAt,
    SetClean,
    Store,
    Stored,
    UseShort,
)
from loomlog.core.copyset.nodeset import Authority, EpochMetadata, choose_short, node_of, shard_name
from loomlog.core.copyset.presumption import Presume, Presumption
from loomlog.core.copyset.procedures import (
    Answer,
    Answers,
    CopysetAsk,
    Exchange,
    Steps,
    ask_each,
    ask_store,
)
from loomlog.core.copyset.record import (
    OFFSET_MAX,
    Epoch,
    Kind,
    Lsn,
    Offset,
    Record,
    make,
    offset_of,
    offset_within,
)
from loomlog.core.copyset.settlement import (
    Digests,
    Mutation,
    above,
    doubted,
    plan,
    settle,
    unmarked,
    without_marks,
)
from loomlog.core.requests import Ask
from loomlog.core.steady_wait import SteadyWait
from loomlog.limits import MIB
from loomlog.types import Buffer, LogId, NodeId, ShardId

DIGEST_BYTES: Final = MIB  # of heads, in one answer
RECOVERED_AT_ONCE: Final = 32  # records whose batches are held in memory
CRASHED_WAIT_S: Final = 30.0  # until nodes that crashed are believed without the rest
CRASHED_ATTEMPTS: Final = 60  # the same, if each is short
CRASHED_PAUSE_S: Final = 30.0  # the wait starts over if too few answered for this long
PATIENT_ATTEMPTS: Final = 2  # before fewer copies must do, unless nodes are known as down


@dataclass(frozen=True, slots=True)
class Failed:
    """This attempt is over. Nothing that it did hinders the next one."""

    reason: str
    nodes: frozenset[ShardId] = frozenset()  # should not be written to for now
    crashed: bool = False  # it waits for nodes, because those that answer crashed


class Basis(NamedTuple):
    """Nodes that are enough to recover an epoch."""

    writable: frozenset[ShardId]
    authoritative: bool  # what none of them has was not complete
    short: tuple[ShardId, ...] = ()  # the copyset, if too few are writable


class Heads(NamedTuple):
    """The heads that nodes have of an epoch."""

    records: dict[ShardId, list[Record]]  # heads, in order
    trimmed: Lsn  # some may have been trimmed meanwhile, up to here


class EpochRecovery:
    """The recovery of one epoch, in one attempt."""

    def __init__(
        self,
        log: LogId,
        epoch: Epoch,
        metadata: EpochMetadata,
        *,
        seal: Epoch,
        wave: int,
        authority: Mapping[ShardId, Authority],
        avoided: frozenset[ShardId],
        least: int = 0,
        down: Collection[NodeId] = (),
        lives: Mapping[NodeId, int] | None = None,
        is_patient: bool = True,
        presumed: Presumption | None = None,
    ) -> None:
        """`avoided` could not be written to; `least`: the number of copies that must do, 0: as many
        as wanted; `down` nodes are not waited for; `lives`: of the nodes, when the epoch began.
        Unless it `is_patient`, nodes that crashed are believed without the rest. `presumed`: by
        earlier attempts, which did not know everything."""
        self._log = log
        self._epoch = epoch
        self._metadata = metadata
        self._seal = seal
        self._wave = wave
        self._avoided = avoided
        self._least = least
        self._down = {shard for shard in metadata.shards if node_of(shard) in down}
        self._lives = lives or {}
        self._is_patient = is_patient
        self._presumed = presumed
        self._crashed: set[ShardId] = set()  # since the epoch began
        self._authority = {node: authority.get(node, Authority.FULL) for node in metadata.shards}

    def run(
        self, trimmed: Lsn, acknowledged: Acknowledged, now_us: int
    ) -> Steps[EpochEnd | Failed | Preempted]:
        """Recover the epoch. `acknowledged` is what the epoch store knows of it."""
        sealed = yield from self._seal_nodes()
        if not isinstance(sealed, dict):
            return sealed
        trimmed = max([trimmed, *(answer.trimmed for answer in sealed.values())])
        lng = good = self._last_known_good(sealed.values())
        if self._presumed is not None:  # its marks are above another one
            lng, good = min(lng, self._presumed.lng), max(good, self._presumed.good)
        after = max(lng, offset_within(self._epoch, trimmed))
        digested = yield from self._digest(sealed, after)
        if isinstance(digested, Preempted):
            return digested
        after = max(after, offset_within(self._epoch, digested.trimmed))
        digests = above(after, digested.records)
        basis = self._basis(digests)
        if isinstance(basis, Failed):
            return basis
        if basis.short and (stop := (yield from self._use_short(basis.short))) is not None:
            return stop
        absent = self._absent(digests)
        is_presumed = absent or self._crashed or self._presumed is not None
        if is_presumed and (stop := (yield from self._presume(lng, good))) is not None:
            return stop
        heads = digests if self._are_marks_believed(basis) else without_marks(digests)
        told = acknowledged.last
        settled = settle(heads, after, authoritative=basis.authoritative, acknowledged=told)
        like = self._like(lng, digests, now_us)
        mutations = plan(settled.spans, digests, basis.writable, self._metadata, like)
        for index in range(0, len(mutations), RECOVERED_AT_ONCE):
            stop = yield from self._mutate(mutations[index : index + RECOVERED_AT_ONCE])
            if stop is not None:
                return stop
        if after == OFFSET_MAX:
            end = EpochEnd(self._epoch, lng, lng, *self._by)  # all of it is trimmed
        else:
            last, exact = max(settled.last, acknowledged.last), settled.exact or acknowledged.final
            kept = unmarked(settled.spans, lng)  # what is trimmed has no marks
            crashed = tuple(sorted(self._crashed))
            end = EpochEnd(self._epoch, lng, last, *self._by, exact, kept, crashed, absent)
            if self._presumed is not None:
                unsettled = [] if settled.exact else doubted(digests, settled.spans)
                end = recovered(end, good, unsettled)
        return (yield from self._clean(basis, end))

    @property
    def _by(self) -> tuple[Epoch, int]:
        return self._seal, self._wave

    # ---- the nodes that take part

    def _basis(self, there: Collection[ShardId]) -> Basis | Failed:
        """Return enough nodes: an f-majority that can also replicate, or all nodes that will ever
        be there, which then get every record. If that is nobody, the epoch is lost as a whole."""
        metadata = self._metadata
        empty = self._those(Authority.EMPTY)
        certain = self._those(Authority.FULL).intersection(there) | empty
        could_be_copied = metadata.can_hold_a_copyset(set(metadata.shards) - empty)
        authoritative = could_be_copied and metadata.is_f_majority(certain)
        missing = self._those(Authority.FULL, Authority.UNDERREPLICATED).difference(there)
        if missing and not (authoritative and metadata.is_f_majority(there)):
            return Failed(
                f"too few nodes of epoch {self._epoch} answer; missing: {_words(missing)}"
            )
        if missing and self._is_patient and self._absent(there):
            return Failed(
                f"{_words(self._crashed)} crashed, and may have forgotten records of epoch "
                f"{self._epoch} that others have; missing: {_words(missing)}",
                crashed=True,
            )
        everybody, willing = frozenset(there), frozenset(there) - self._avoided
        if metadata.can_hold_a_copyset(willing):
            return Basis(willing, authoritative)
        if short := self._short(willing, missing | self._avoided):
            return Basis(willing, authoritative, short)
        if metadata.can_hold_a_copyset(everybody) or not missing:
            return Basis(everybody, authoritative)
        reason = f"too few nodes of epoch {self._epoch} can be written to"
        return Failed(f"{reason}; missing: {_words(missing)}")

    def _absent(self, there: Collection[ShardId]) -> tuple[ShardId, ...]:
        """Return the nodes that may have what all others have forgotten; none if enough of those
        that are there did not crash."""
        empty = self._those(Authority.EMPTY)
        vouching = self._those(Authority.FULL).intersection(there) - self._crashed
        if self._metadata.is_f_majority(vouching | empty):
            return ()
        return tuple(sorted(set(self._metadata.shards).difference(there) - empty))

    def _short(
        self, willing: Collection[ShardId], others: Collection[ShardId]
    ) -> tuple[ShardId, ...]:
        """Return the short copyset that has to do if `others` are down, or were waited for."""
        is_time = self._wave > PATIENT_ATTEMPTS or self._down.issuperset(others)
        if not (self._least and others and is_time):
            return ()
        return choose_short(self._log, self._metadata, willing, self._least)

    def _use_short(self, short: tuple[ShardId, ...]) -> Steps[Failed | Preempted | None]:
        state = yield from self._tell(UseShort(self._log, self._seal + 1, self._epoch, short))
        if not isinstance(state, LogState):
            return state
        self._metadata = state.metadata_of(self._epoch)
        return None

    def _presume(self, lng: Offset, good: Offset) -> Steps[Failed | Preempted | None]:
        """Only this attempt may end the epoch. Until it does, marks above `lng` prove nothing."""
        by, wave = self._seal + 1, self._wave
        state = yield from self._tell(Presume(self._log, by, self._epoch, wave, lng, good))
        return None if isinstance(state, LogState) else state

    def _are_marks_believed(self, basis: Basis) -> bool:
        """Return whether marks of earlier attempts count. If these did not know everything, they
        count only for the sake of nodes that are not written to: they may have the marks, and the
        end that belongs to them."""
        is_everybody_written_to = basis.writable.issuperset(self._metadata.shards)
        return self._presumed is None or (basis.authoritative and not is_everybody_written_to)

    def _tell(self, request: UseShort | Presume) -> Steps[LogState | Failed | Preempted]:
        """Let the epoch store know, and so every later recovery."""
        state = yield from ask_store(request)
        if state is None or state.last_clean >= self._epoch:
            return Failed("the epoch store does not answer, or knows of an end")
        return state if state.epoch == request.by else Preempted(state.epoch - 1)

    def _those(self, *authorities: Authority) -> frozenset[ShardId]:
        return frozenset(n for n, authority in self._authority.items() if authority in authorities)

    # ---- sealing

    def _seal_nodes(self) -> Steps[dict[ShardId, SealedAt] | Failed | Preempted]:
        seal = Seal(self._log, *self._by, self._epoch)
        answers = yield from ask_each(self._metadata.shards, seal, self._are_sealed)
        if (preempted := _preempted(answers.values())) is not None:
            return preempted
        sealed = {node: a for node, a in answers.items() if isinstance(a, SealedAt)}
        self._believe(sealed)
        basis = self._basis(sealed)
        return basis if isinstance(basis, Failed) else sealed

    def _are_sealed(self, answers: Answers) -> bool:
        sealed = {node: a for node, a in answers.items() if isinstance(a, SealedAt)}
        self._believe(sealed)
        basis = self._basis(sealed)
        is_all = self._down.issuperset(set(self._metadata.shards).difference(sealed))
        return isinstance(basis, Basis) and (is_all or not basis.short)

    def _believe(self, answers: Mapping[ShardId, SealedAt]) -> None:
        """Note the losses that nodes report: they know first."""
        for node, answer in answers.items():
            has_lost = answer.lost_through >= self._epoch
            if has_lost and self._authority[node] is Authority.FULL:
                self._authority[node] = Authority.UNDERREPLICATED
            if answer.life != self._lives.get(node_of(node), 0):
                self._crashed.add(node)

    def _last_known_good(self, answers: Iterable[SealedAt]) -> Offset:
        states = [state for answer in answers for state in answer.epochs]
        return max((state.lng for state in states if state.epoch == self._epoch), default=0)

    # ---- digesting

    def _digest(
        self, sealed: Mapping[ShardId, SealedAt], after: Offset
    ) -> Steps[Heads | Preempted]:
        """Return what the nodes have, without batches. Nodes that fail are left out."""
        digests: dict[ShardId, list[Record]] = {node: [] for node in sealed}
        trimmed: Lsn = 0
        offsets = {node: after for node, a in sealed.items() if self._may_have(a, after)}
        while offsets:
            answers = yield Exchange(
                [Ask(node, self._digest_above(offset)) for node, offset in offsets.items()]
            )
            if (preempted := _preempted(answers)) is not None:
                return preempted
            for node, answer in zip(list(offsets), answers, strict=True):
                if not isinstance(answer, Digested):
                    del digests[node], offsets[node]
                    continue
                digests[node] += answer.records
                trimmed = max(trimmed, answer.trimmed)
                if answer.more:
                    offsets[node] = offset_of(answer.records[-1].last)
                else:
                    del offsets[node]
        return Heads(digests, trimmed)

    def _may_have(self, answer: SealedAt, after: Offset) -> bool:
        if after == OFFSET_MAX:
            return False
        if answer.last_clean >= self._epoch:
            return True  # from an earlier recovery, which was not the last; it does not say which
        return any(s.epoch == self._epoch and s.last > after for s in answer.epochs)

    def _digest_above(self, after: Offset) -> Digest:
        seal, wave = self._by
        return Digest(self._log, self._epoch, after, seal, DIGEST_BYTES, batches=False, wave=wave)

    # ---- mutating

    def _like(self, lng: Offset, digests: Digests, now_us: int) -> Record:
        """Return a record with all that written copies have in common. Marks get the age of the
        records around them, so that they are trimmed together."""
        times = [record.timestamp_us for digest in digests.values() for record in digest]
        timestamp_us = max(times, default=now_us)
        first = make(self._epoch, 0)
        return Record(first, 0, Kind.HOLE, timestamp_us, (), self._wave, lng, self._seal + 1)

    def _mutate(self, mutations: Sequence[Mutation]) -> Steps[Failed | Preempted | None]:
        batches = yield from self._fetch([m for m in mutations if m.needs_batch])
        if not isinstance(batches, dict):
            return batches
        asks: list[CopysetAsk] = []
        for record, amend, store, _ in mutations:
            whole = record._replace(batch=batches.get(record.first, b""))
            asks += [Ask(node, Amend(self._log, record)) for node in amend]
            asks += [Ask(node, Store(self._log, whole)) for node in store]
        answers = yield Exchange(asks)
        return _stop(asks, answers, Stored)

    def _fetch(
        self, mutations: Sequence[Mutation]
    ) -> Steps[dict[Lsn, Buffer] | Failed | Preempted]:
        asks = []
        for record, _, _, sources in mutations:
            source = sources[self._wave % len(sources)]
            digest = self._digest_above(record.offset - 1)
            asks.append(Ask(source, replace(digest, bytes_max=1, batches=True)))
        answers = (yield Exchange(asks)) if asks else []
        if (stop := _stop(asks, answers, Digested)) is not None:
            return stop
        records = [a.records[0] for a in answers if isinstance(a, Digested) and a.records]
        batches = {record.first: record.batch for record in records if record.kind is Kind.DATA}
        if any(mutation.record.first not in batches for mutation in mutations):
            return Failed("a record that was digested is gone")
        return batches

    def _clean(self, basis: Basis, end: EpochEnd) -> Steps[EpochEnd | Failed | Preempted]:
        asks = [Ask(node, Clean(self._log, self._seal, end)) for node in sorted(basis.writable)]
        answers = yield Exchange(asks)
        return _stop(asks, answers, Done) or end


def _preempted(answers: Iterable[Answer]) -> Preempted | None:
    preemptions = [answer for answer in answers if isinstance(answer, Preempted)]
    return max(preemptions, key=lambda answer: answer.seal, default=None)


def _stop(
    asks: Sequence[CopysetAsk], answers: Sequence[Answer], expected: type[Answer]
) -> Failed | Preempted | None:
    """Return what ends the attempt, or None if all answers are as expected."""
    if (preempted := _preempted(answers)) is not None:
        return preempted
    pairs = zip(asks, answers, strict=True)
    failed = frozenset(
        ask.target
        for ask, answer in pairs
        if isinstance(ask.target, int) and not isinstance(answer, expected)
    )
    return Failed(f"could not be written to: {_words(failed)}", failed) if failed else None


def _words(shards: Collection[ShardId]) -> str:
    return ", ".join(f"node {shard_name(shard)}" for shard in sorted(shards))


@dataclass(frozen=True, slots=True)
class Recovered:
    """All epochs before the sequencer's are clean, and what it stores may be released."""

    state: LogState


@dataclass(frozen=True, slots=True)
class NotRecovered:
    """Make another attempt after a moment."""

    reason: str


Ending: TypeAlias = Recovered | NotRecovered | Preempted


class Recovery:
    """The recovery of one log by one sequencer, in as many attempts as it takes."""

    def __init__(self, log: LogId, epoch: Epoch) -> None:
        """`epoch` is the one that the sequencer took."""
        self._log = log
        self._epoch = epoch
        self._attempts = 0
        self._failed: frozenset[ShardId] = frozenset()  # could not be written to, the last time
        self._waits = 0  # attempts that ended because those that answered had crashed
        self._patience = SteadyWait(CRASHED_WAIT_S, CRASHED_PAUSE_S)

    def attempt(
        self,
        authority: Mapping[ShardId, Authority],
        now_us: int,
        down: Collection[NodeId] = (),
        now_s: float = 0.0,
    ) -> Steps[Ending]:
        """Make one attempt. Shards without an authority are fully authoritative; those of nodes
        that are `down` are not waited for. `now_s` is by a clock that nobody sets."""
        self._attempts += 1
        if self._patience.has_paused(now_s):
            self._waits = 0
        avoided, self._failed = self._failed, frozenset()
        state = yield from ask_store(GetState(self._log))
        while state is not None:
            if state.epoch != self._epoch:
                return Preempted(state.epoch - 1)
            epoch = state.last_clean + 1
            if epoch == self._epoch:
                return Recovered(state)
            recovery = EpochRecovery(
                self._log,
                epoch,
                state.metadata_of(epoch),
                seal=self._epoch - 1,
                wave=self._attempts,
                authority=authority,
                avoided=avoided,
                least=state.least,
                down=down,
                lives=state.lives_in(epoch),
                is_patient=self._is_patient(now_s),
                presumed=state.presumed_in(epoch),
            )
            end = yield from recovery.run(state.trimmed, state.acknowledged_in(epoch), now_us)
            if isinstance(end, Preempted):
                return end
            if isinstance(end, Failed):
                self._failed = end.nodes
                self._waits += end.crashed
                if end.crashed or end.nodes:  # enough nodes answer
                    self._patience.note(now_s)
                return NotRecovered(end.reason)
            state = yield from ask_store(SetClean(self._log, self._epoch, end))
        return NotRecovered("the epoch store does not answer")

    def _is_patient(self, now_s: float) -> bool:
        return self._waits < CRASHED_ATTEMPTS and not self._patience.is_over(now_s)
