"""Records what clients did and saw, and checks that it was one log.

A `History` records, in real-time order: appends as they are invoked and as they end
(acknowledged, failed for certain, unknown), trims, and what each reader saw. `check` returns
every way in which that contradicts the guarantees of a log; an empty list is the proof. Values
are the identity of entries: no two appended values may be equal.

It is plain data and independent of the simulator, so it also checks real clusters; `dump` and
`load` carry a history between processes.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from loomlog.types import Entry, Gap, Glsn, Llsn, Position, StreamId

OpId = int | str

VALUE_CHARS_MAX = 60  # of a value in a message


class Outcome(StrEnum):
    """The outcome of an append as its client knows it."""

    UNKNOWN = "unknown"  # also: no answer yet, or the client died
    ACKED = "acked"
    FAILED = "failed"  # for certain: it must never be seen


class Rule(StrEnum):
    """The rules that a history can violate."""

    ACK_SHAPE = "an acknowledgement has consecutive positions in one stream, one per value"
    ACK_CLASH = "no position is acknowledged twice"
    REAL_TIME = "an append that began after another was acknowledged stands behind it"
    READER_ORDER = "a reader sees positions one after the other, from its start"
    AGREEMENT = "all readers see the same entry at a position, or all of them a gap"
    ONCE = "no value is seen at two positions"
    INVENTED = "no value is seen that nobody appended"
    FAILED_SEEN = "an append that failed for certain is never seen"
    ACKED_PLACE = "an acknowledged value is seen where it was acknowledged"
    ACKED_LOST = "every acknowledged value is seen"
    NO_LOSS = "no entry is reported as lost"
    WHOLE = "the values of one append are seen together, in order, or not at all"
    STREAM_ORDER = "in a stream, LLSNs grow one by one with the position, or are positions"
    EXPECTED = "between an expected tail and what was appended there, there is no entry"
    CONFLICT = "when an append met a conflict, another entry stood behind its expected tail"
    COMPLETE = "a final read goes from the head of the log to its last acknowledged position"


@dataclass(frozen=True, slots=True)
class Violation:
    """One contradiction."""

    rule: Rule
    message: str

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.message} (rule: {self.rule.value})"


@dataclass(slots=True)
class Append:
    """One append or append_many."""

    op: OpId
    client: str
    values: tuple[bytes, ...]
    floor: Glsn  # the highest position acknowledged to anybody when it was invoked
    outcome: Outcome = Outcome.UNKNOWN
    positions: tuple[Position, ...] = ()
    ended: bool = False
    expected: Glsn | None = None  # the tail behind which alone it may be appended
    conflict: int = 0  # how many appends had begun when it ended with a conflict; 0: it did not


@dataclass(slots=True)
class Reader:
    """The items that one subscription delivered, in order."""

    start: Glsn
    seen: list[tuple[Glsn, StreamId, Llsn, bytes]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    passed: list[tuple[Glsn, Glsn]] = field(default_factory=list)  # both, from here to there
    final: bool = False


class History:
    """A recorder. Call it in the order in which things happen."""

    def __init__(self) -> None:
        self.appends: dict[OpId, Append] = {}
        self.readers: dict[str, Reader] = {}
        self.trimmed: Glsn = 0
        self._value_owner: dict[bytes, OpId] = {}
        self._acked_max: Glsn = 0
        self._events: list[list[Any]] = []

    def invoke(
        self, client: str, op: OpId, values: Sequence[bytes], expected: Glsn | None = None
    ) -> None:
        """Note that an append is about to be sent, perhaps with an expected tail."""
        if op in self.appends:
            raise ValueError(f"append {op!r} was invoked before")
        if not values:
            raise ValueError(f"append {op!r} has no values")
        for value in values:
            if value in self._value_owner:
                raise ValueError(f"value {_short(value)} is appended twice; make values unique")
            self._value_owner[value] = op
        self._events.append(["invoke", client, op, [value.hex() for value in values], expected])
        self.appends[op] = Append(op, client, tuple(values), self._acked_max, expected=expected)

    def ack(self, op: OpId, positions: Sequence[Position]) -> None:
        append = self._end(op, Outcome.ACKED)
        append.positions = tuple(Position(*at) for at in positions)
        self._acked_max = max([self._acked_max, *(at.position for at in append.positions)])
        self._events.append(["ack", op, [list(at) for at in append.positions]])

    def fail(self, op: OpId) -> None:
        """Record that the append failed: nothing was appended."""
        self._end(op, Outcome.FAILED)
        self._events.append(["fail", op])

    def conflict(self, op: OpId) -> None:
        """Record that nothing was appended, since the tail was not the expected one."""
        self._end(op, Outcome.FAILED).conflict = len(self.appends)
        self._events.append(["conflict", op])

    def unknown(self, op: OpId) -> None:
        """Record that the append may or may not have happened, like one that never ends."""
        self._end(op, Outcome.UNKNOWN)
        self._events.append(["unknown", op])

    def trim(self, position: Glsn) -> None:
        """Note that a trim up to and with `position` is about to be requested."""
        self.trimmed = max(self.trimmed, position)
        self._events.append(["trim", position])

    def reader(self, reader: str, start: Glsn = 1) -> None:
        """Note that a subscription begins. A reader that starts over is a new reader."""
        if reader in self.readers:
            raise ValueError(f"reader {reader!r} has begun before")
        self.readers[reader] = Reader(start)
        self._events.append(["reader", reader, start])

    def see(self, reader: str, position: Glsn, stream: StreamId, llsn: Llsn, value: bytes) -> None:
        self.readers[reader].seen.append((position, stream, llsn, value))
        self.readers[reader].passed.append((position, position))
        self._events.append(["see", reader, position, stream, llsn, value.hex()])

    def see_gap(self, reader: str, first: Glsn, last: Glsn, kind: str) -> None:
        """Note that the reader got a gap: no entry stands there."""
        self.readers[reader].gaps.append(Gap(first, last, kind))
        self.readers[reader].passed.append((first, last))
        self._events.append(["see_gap", reader, first, last, kind])

    def see_entries(self, reader: str, entries: Iterable[Entry | Gap]) -> None:
        for entry in entries:
            if isinstance(entry, Gap):
                self.see_gap(reader, entry.first, entry.last, entry.kind)
            else:
                self.see(reader, entry.position, entry.stream, entry.llsn, entry.value)

    def final(self, reader: str) -> None:
        """This reader began at the head when all appends had ended, and read up to the tail."""
        self.readers[reader].final = True
        self._events.append(["final", reader])

    def _end(self, op: OpId, outcome: Outcome) -> Append:
        append = self.appends.get(op)
        if append is None or append.ended:
            raise ValueError(f"append {op!r} {'has ended before' if append else 'never began'}")
        append.outcome, append.ended = outcome, True
        return append

    def owner(self, value: bytes) -> Append | None:
        op = self._value_owner.get(value)
        return None if op is None else self.appends[op]

    def dump(self) -> str:
        """Return the history as text, one JSON array a line."""
        return "".join(json.dumps(event) + "\n" for event in self._events)

    @classmethod
    def load(cls, text: str) -> History:
        history = cls()
        for line in text.splitlines():
            history._replay(*json.loads(line))
        return history

    def _replay(self, kind: str, *args: Any) -> None:
        match kind, args:
            case "invoke", (client, op, values, *expected):
                self.invoke(client, op, [bytes.fromhex(value) for value in values], *expected)
            case "ack", (op, positions):
                self.ack(op, [Position(*at) for at in positions])
            case "see", (reader, position, stream, llsn, value):
                self.see(reader, position, stream, llsn, bytes.fromhex(value))
            case (("fail" | "conflict" | "unknown" | "trim" | "reader" | "see_gap" | "final"), _):
                getattr(self, kind)(*args)
            case _:
                raise ValueError(f"unknown event {kind!r} in a history")


def check(history: History) -> list[Violation]:
    """Return every violation of the guarantees of a log."""
    checker = _Checker(history)
    return list(checker.violations())


class _Checker:
    def __init__(self, history: History) -> None:
        self.history = history
        self.log: dict[Glsn, tuple[StreamId, Llsn, bytes]] = {}  # all readers' sights together
        self.place: dict[bytes, Glsn] = {}

    def violations(self) -> Iterator[Violation]:
        for append in self.history.appends.values():
            yield from self._check_ack(append)
        yield from self._check_clashes()
        for name, reader in self.history.readers.items():
            yield from self._check_reader(name, reader)
        yield from self._merge()
        yield from self._check_gaps()
        yield from self._check_values()
        for append in self.history.appends.values():
            yield from self._check_append(append)
        yield from self._check_expected()
        yield from self._check_streams()
        yield from self._check_complete()

    def _check_ack(self, append: Append) -> Iterator[Violation]:
        if append.outcome is not Outcome.ACKED:
            return
        ats = append.positions
        steps = {
            (b.position - a.position, b.llsn - a.llsn, b.stream - a.stream)
            for a, b in pairwise(ats)
        }
        if len(ats) != len(append.values) or steps - {(1, 1, 0)} or ats[0].position < 1:
            yield Violation(Rule.ACK_SHAPE, f"{_name(append)} got {list(map(tuple, ats))}")

    def _check_clashes(self) -> Iterator[Violation]:
        owners: dict[Glsn, Append] = {}
        for append in self.history.appends.values():
            for at in append.positions:
                other = owners.setdefault(at.position, append)
                if other is not append:
                    yield Violation(
                        Rule.ACK_CLASH,
                        f"position {at.position}: {_name(other)} and {_name(append)}",
                    )

    def _check_reader(self, name: str, reader: Reader) -> Iterator[Violation]:
        expected = reader.start
        for position, last in reader.passed:
            skipped_trimmed = expected < position <= self.history.trimmed + 1
            if position != expected and not skipped_trimmed:
                yield Violation(
                    Rule.READER_ORDER, f"reader {name} saw {position} instead of {expected}"
                )
            expected = last + 1

    def _merge(self) -> Iterator[Violation]:
        first: dict[Glsn, str] = {}
        for name, reader in self.history.readers.items():
            for position, stream, llsn, value in reader.seen:
                sight = (stream, llsn, value)
                known = self.log.setdefault(position, sight)
                other = first.setdefault(position, name)
                if known != sight:
                    yield Violation(
                        Rule.AGREEMENT,
                        f"position {position}: reader {other} saw {_sight(known)}, "
                        f"reader {name} saw {_sight(sight)}",
                    )

    def _check_gaps(self) -> Iterator[Violation]:
        """A gap for one reader is a gap for every reader."""
        places = sorted(self.log)
        for name, reader in self.history.readers.items():
            for gap in reader.gaps:
                if gap.kind == "dataloss":
                    yield Violation(Rule.NO_LOSS, f"reader {name}: {gap.first} to {gap.last}")
                if gap.kind == "trim" and gap.last <= self.history.trimmed:
                    continue  # a reader that came earlier saw the entries
                at = bisect_left(places, gap.first)
                if at < len(places) and places[at] <= gap.last:
                    yield Violation(
                        Rule.AGREEMENT,
                        f"position {places[at]}: reader {name} saw a gap from {gap.first} to "
                        f"{gap.last}, others {_sight(self.log[places[at]])}",
                    )

    def _check_values(self) -> Iterator[Violation]:
        for position, (_, _, value) in sorted(self.log.items()):
            owner = self.history.owner(value)
            earlier = self.place.setdefault(value, position)
            if earlier != position:
                yield Violation(Rule.ONCE, f"{_short(value)} at {earlier} and {position}")
            if owner is None:
                yield Violation(Rule.INVENTED, f"{_short(value)} at {position}")
            elif owner.outcome is Outcome.FAILED:
                yield Violation(Rule.FAILED_SEEN, f"{_name(owner)} at {position}")

    def _check_append(self, append: Append) -> Iterator[Violation]:
        if append.outcome is Outcome.ACKED:
            yield from self._check_acked_seen(append)
        places = [self.place.get(value) for value in append.values]
        seen = [place for place in places if place is not None]
        low = min([*seen, *(at.position for at in append.positions)], default=None)
        if low is not None and low <= append.floor:
            yield Violation(
                Rule.REAL_TIME,
                f"{_name(append)} stands at {low}; {append.floor} was acknowledged before it began",
            )
        if seen and not self._whole(places):
            yield Violation(Rule.WHOLE, f"the values of {_name(append)} are at {places}")

    def _check_acked_seen(self, append: Append) -> Iterator[Violation]:
        for at, value in zip(append.positions, append.values, strict=False):
            sight = self.log.get(at.position)
            if sight is not None and sight != (at.stream, at.llsn, value):
                yield Violation(
                    Rule.ACKED_PLACE,
                    f"{_name(append)}: {_short(value)} acknowledged at {tuple(at)}, "
                    f"seen there: {_sight(sight)}",
                )
            if value not in self.place and at.position > self.history.trimmed:
                yield Violation(
                    Rule.ACKED_LOST, f"{_name(append)}: {_short(value)} at {tuple(at)} is not seen"
                )

    def _whole(self, places: list[Glsn | None]) -> bool:
        """All seen side by side; a part may be missing where no reader looked, or by a trim."""
        anchor = next((i, place) for i, place in enumerate(places) if place is not None)
        for i, place in enumerate(places):
            expected = anchor[1] + i - anchor[0]
            if place is None:
                unread = expected not in self.log and not self._was_passed(expected)
                if not unread and expected > self.history.trimmed:
                    return False
            elif place != expected:
                return False
        return True

    def _was_passed(self, position: Glsn) -> bool:
        return any(
            reader.final or (reader.passed and reader.start <= position <= reader.passed[-1][1])
            for reader in self.history.readers.values()
        )

    def _check_expected(self) -> Iterator[Violation]:
        owners = {at: self.history.owner(value) for at, (_, _, value) in self.log.items()}
        for append in self.history.appends.values():
            owners |= {at.position: append for at in append.positions}
        taken = sorted(owners)
        began = {op: number for number, op in enumerate(self.history.appends)}
        for append in self.history.appends.values():
            if append.expected is None:
                continue
            behind = taken[bisect_right(taken, append.expected) :]
            own = [at for at in behind if owners[at] is append]
            if own and own[0] != behind[0]:
                yield Violation(
                    Rule.EXPECTED,
                    f"{_name(append)} expected {append.expected} and stands at {own[0]}, behind "
                    f"{behind[0]}",
                )
            earlier = [at for at in behind if self._began(owners[at], began) < append.conflict]
            if append.conflict and not earlier and append.expected >= self.history.trimmed:
                yield Violation(
                    Rule.CONFLICT, f"{_name(append)}: nothing stood behind {append.expected}"
                )

    @staticmethod
    def _began(append: Append | None, began: dict[OpId, int]) -> int:
        return 0 if append is None else began[append.op]

    def _check_streams(self) -> Iterator[Violation]:
        last: dict[StreamId, tuple[Glsn, Llsn]] = {}
        hole_end: Glsn = 0  # where the sights last began again, after positions nobody saw
        previous: Glsn = 0
        for position, (stream, llsn, _) in sorted(self.log.items()):
            if position != previous + 1:
                hole_end = position
            before, llsn_before = last.get(stream, (0, 0))
            dense = before >= hole_end and llsn != position  # else it counts positions
            if llsn <= llsn_before or (dense and llsn != llsn_before + 1):
                yield Violation(
                    Rule.STREAM_ORDER,
                    f"stream {stream}: LLSN {llsn} at {position} follows LLSN {llsn_before} "
                    f"at {before}",
                )
            last[stream] = (position, llsn)
            previous = position

    def _check_complete(self) -> Iterator[Violation]:
        acked = [at.position for append in self.history.appends.values() for at in append.positions]
        tail = max(acked, default=0)
        if tail <= self.history.trimmed:
            return
        finals = {name: r for name, r in self.history.readers.items() if r.final}
        if not finals:
            yield Violation(Rule.COMPLETE, f"no final read, though {tail} was acknowledged")
        for name, reader in finals.items():
            first = reader.passed[0][0] if reader.passed else None
            last = reader.passed[-1][1] if reader.passed else None
            if first is None or first > self.history.trimmed + 1 or last is None or last < tail:
                yield Violation(
                    Rule.COMPLETE,
                    f"final reader {name} saw {first} to {last}, of {self.history.trimmed + 1} "
                    f"to {tail}",
                )


def _name(append: Append) -> str:
    return f"append {append.op} of {append.client} ({append.outcome})"


def _sight(sight: tuple[StreamId, Llsn, bytes]) -> str:
    return f"{_short(sight[2])} (stream {sight[0]}, LLSN {sight[1]})"


def _short(value: bytes) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"
