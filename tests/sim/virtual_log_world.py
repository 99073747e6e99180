"""The virtual log without a clock or a network: only what may happen, by chance.

Parties run operations; each step one party's question arrives, or its answer does, or it dies. What
a dead party had asked may still arrive, at any later time. The loglets are lists in memory in which
an append is two things: it is written, and then it counts, unless the loglet was sealed meanwhile.

Judged while it runs:
- no position ever shows two values, and no value is appended twice;
- an acknowledged entry is found by whoever asks afterwards, until it is trimmed;
- who got a switch found its settings active;
- when the faults are over everything comes to an end, and the log takes appends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import virtual_log_use
from violation import Violation
from virtual_log_use import IsSealed, NotBegun, Tail, UseSteps

from loomlog.core import virtual_log
from loomlog.core.requests import Lost
from loomlog.core.segments import Layout, Segment, Settings, SwitchState
from loomlog.core.virtual_log import Done, Refused
from loomlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LoomError,
    NotYetWritten,
    Trimmed,
)
from loomlog.types import Glsn, LogId

STEPS = 500
CALM_STEPS = 5000  # within which all must be well when the faults are over
FIRST = Settings("memory", 1, 1)
IMPOSSIBLE = Settings("memory", 1, 99)
CHOICES = [FIRST, Settings("memory", 2, 1), Settings("memory", 1, 3), IMPOSSIBLE]


UNANSWERED = object()


class Loglet:
    """A list in which writes may show without counting."""

    def __init__(self, start: Glsn | None = None) -> None:
        self.start = start  # None: made, not begun
        self.written: dict[Glsn, int] = {}
        self.tail: Glsn = (start or 1) - 1  # the last one that counts
        self.sealed = False

    def write(self, values: Sequence[int]) -> Glsn | NotBegun | IsSealed:
        """Do the first half of an append, which does not check whether the loglet is sealed."""
        if self.start is None:
            return IsSealed() if self.sealed else NotBegun()
        first = max(self.tail, *self.written, 0) + 1
        self.written.update(enumerate(values, first))
        return first

    def count(self, first: Glsn, values: Sequence[int]) -> Glsn | IsSealed:
        """Do the second half of an append."""
        last = first + len(values) - 1
        if last > self.tail and self.sealed:
            return IsSealed()
        self.tail = max(self.tail, last)
        return first

    def seal(self, random: Random) -> Glsn:
        """Seal the loglet: what is written and does not count yet counts now, or never."""
        if not self.sealed:
            self.sealed = True
            self.tail = random.choice([self.tail, max(self.tail, *self.written, 0)])
        return self.tail

    def trim(self, position: Glsn) -> None:
        self.written = {p: value for p, value in self.written.items() if p > position}


@dataclass(eq=False)
class Party:
    """Runs one operation."""

    operation: UseSteps[Any]
    finished: Any  # called with the result or the error
    question: Any = None  # to arrive
    answer: Any = UNANSWERED  # to be heard
    half: Glsn | None = None  # of an append that is written and does not count yet


@dataclass
class Counts:
    acknowledged: int = 0
    switches: int = 0
    crashes: int = 0
    reads: int = 0
    died_at: set[tuple[str, SwitchState]] = field(default_factory=set)  # asking, while


class VirtualLogWorld:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.layout = Layout((Segment(1, FIRST, 1),))
        self.loglets: dict[LogId, Loglet] = {1: Loglet(1)}
        self.last_loglet = 1
        self.last_value = 0
        self.parties: list[Party] = []
        self.orphans: list[Party] = []  # dead, and something of theirs may still arrive
        self.counts = Counts()
        self.seen: dict[Glsn, int] = {}  # what a position showed
        self.place: dict[int, Glsn] = {}  # where a value was acknowledged
        self.trimmed = 0
        self._harm = random.choice((0.01, 0.03, 0.08))
        self._parties_max = random.choice((2, 4, 8))
        self._stale: list[Layout] = [self.layout]  # that some party may still believe in

    # ---- running

    def run(self) -> None:
        for _ in range(STEPS):
            if len(self.parties) < self._parties_max:
                self._begin_something()
            self._happen(faults=True)
        for _ in range(CALM_STEPS):
            if not self.parties:
                break
            self._happen(faults=False)
        else:
            raise Violation(f"these never end: {[p.question for p in self.parties]}")
        self._check_all()

    def _happen(self, *, faults: bool) -> None:
        random = self.random
        if faults and self.parties and random.random() < self._harm:
            self._crash(random.choice(self.parties))
            return
        everybody = self.parties + (self.orphans if faults else [])
        if not everybody:
            return
        party = random.choice(everybody)
        lose = faults and random.random() < self._harm
        if party.answer is not UNANSWERED:
            self._hear(party, Lost() if lose else party.answer)
        elif lose and random.random() < 0.5:
            party.answer = Lost()  # the question never arrived, or arrives later
            if random.random() < 0.5:
                self.orphans.append(Party(party.operation, None, party.question, half=party.half))
        else:
            party.answer = self._answer(party)

    def _hear(self, party: Party, answer: Any) -> None:
        if party in self.orphans:
            self.orphans.remove(party)
            return
        party.answer, party.half = UNANSWERED, None
        self._go_on(party, answer)

    def _go_on(self, party: Party, answer: Any) -> None:
        try:
            party.question = party.operation.send(answer)
        except StopIteration as end:
            self.parties.remove(party)
            party.finished(party, end.value)
        except LoomError as error:
            self.parties.remove(party)
            party.finished(party, error)

    def _crash(self, party: Party) -> None:
        self.counts.crashes += 1
        self.counts.died_at.add((type(party.question).__name__, self.layout.switch))
        self.parties.remove(party)
        if self.random.random() < 0.7:
            self.orphans.append(party)

    # ---- answering

    def _answer(self, party: Party) -> Any:
        match party.question:
            case virtual_log.GetLayout():
                return self.layout
            case virtual_log.Swap(expected, layout):
                return self.swap(expected, layout)
            case virtual_log.NewLoglet():
                self.last_loglet += 1
                return self.last_loglet
            case virtual_log.Make(successor):
                if successor.settings == IMPOSSIBLE:
                    return Refused("there are too few nodes")
                self.loglets.setdefault(successor.loglet, Loglet())
                return Done()
            case virtual_log.Discard(loglet):
                self.loglets.pop(loglet, None)
                return Done()
            case question:
                return self._answer_of(self.loglets.get(question.segment.loglet), party)

    def _answer_of(self, loglet: Loglet | None, party: Party) -> Any:
        match party.question:
            case virtual_log.Begin(segment):
                self._begin_loglet(loglet, segment)
                return Done()
            case virtual_log_use.Append(_, values):
                return self._append(loglet, party, values)
            case virtual_log.Seal(segment):
                self._begin_loglet(loglet, segment)
                return loglet.seal(self.random) if loglet else segment.start - 1
            case virtual_log_use.GetTail():
                if loglet is None or loglet.start is None:
                    return Tail(party.question.segment.start - 1, sealed=loglet is None)
                return Tail(loglet.tail, loglet.sealed)
            case virtual_log_use.Read(_, position):
                return loglet.written.get(position) if loglet else None
            case virtual_log_use.Trim(_, position):
                if loglet is not None:
                    loglet.trim(position)
                return Done()

    def _begin_loglet(self, loglet: Loglet | None, segment: Segment) -> None:
        if loglet is not None and loglet.start is None:
            loglet.start, loglet.tail = segment.start, segment.start - 1

    def _append(self, loglet: Loglet | None, party: Party, values: Sequence[int]) -> Any:
        if loglet is None:
            return IsSealed()
        if party.half is None:
            first = loglet.write(values)
            if not isinstance(first, int):
                return first
            party.half = first
            return UNANSWERED
        return loglet.count(party.half, values)

    def swap(self, expected: Layout, layout: Layout) -> Any:
        if expected != self.layout:
            return Refused()
        self._check_layout(layout)
        self.layout = layout
        self._stale.append(layout)
        self.trimmed = max(self.trimmed, layout.trimmed)
        return Done()

    # ---- what parties do

    def _begin_something(self) -> None:
        chance = self.random.random()
        if chance < 0.5:
            self.append()
        elif chance < 0.8:
            self.read()
        elif chance < 0.93:
            self.switch(self.random.choice(CHOICES))
        elif chance < 0.96:
            self._start(virtual_log.finish(), lambda party, result: None)
        elif self.place:
            position = self.random.choice(list(self.place.values()))
            self._start(virtual_log_use.trim(position), self._trim_ended)

    def _start(self, operation: UseSteps[Any], finished: Any) -> None:
        party = Party(operation, finished)
        self.parties.append(party)
        self._go_on(party, None)

    def _known(self) -> Layout | None:
        """Return the layout that a client knows, perhaps an old one."""
        return self.random.choice([None, self.random.choice(self._stale), self._stale[-1]])

    def append(self) -> None:
        count = self.random.choice((1, 1, 3))
        values = list(range(self.last_value + 1, self.last_value + count + 1))
        self.last_value += count

        def finished(party: Party, result: Any) -> None:
            if isinstance(result, int):
                self.counts.acknowledged += 1
                for position, value in enumerate(values, result):
                    self._show(position, value)
                    self.place[value] = position
            elif not isinstance(result, AppendUnknown):
                raise Violation(f"an append ended with {result!r}")

        self._start(virtual_log_use.append(values, self._known()), finished)

    def read(self) -> None:
        highest = max(self.place.values(), default=0)
        position = self.random.randint(1, highest + 3)
        expected = self.seen.get(position)
        known = position in self.place.values()

        def finished(party: Party, result: Any) -> None:
            self.counts.reads += 1
            if isinstance(result, int):
                self._show(position, result)
            elif isinstance(result, Trimmed):
                if position > self.trimmed:
                    raise Violation(f"{position} was not trimmed")
            elif position > self.trimmed and (known or not isinstance(result, NotYetWritten)):
                raise Violation(f"{position}: {result!r} instead of {expected}")

        self._start(virtual_log_use.read(position, self._known()), finished)

    def switch(self, wanted: Settings) -> None:
        def finished(party: Party, result: Any) -> None:
            if isinstance(result, LoomError):
                if wanted != IMPOSSIBLE or not isinstance(result, InvalidArgument):
                    raise Violation(f"the switch to {wanted} ended with {result!r}")
                return
            self.counts.switches += 1
            if all(segment.settings != wanted for segment in result.segments):
                raise Violation(f"{wanted} was wanted, and this is the layout: {result}")

        self._start(virtual_log.switch(wanted), finished)

    def _trim_ended(self, party: Party, result: Any) -> None:
        if result is not None:
            raise Violation(f"a trim ended with {result!r}")

    # ---- judging

    def _show(self, position: Glsn, value: int) -> None:
        before = self.seen.setdefault(position, value)
        if before != value:
            raise Violation(f"position {position} showed {before}, and then {value}")

    def _check_layout(self, layout: Layout) -> None:
        known = {segment.loglet: segment for segment in self.layout.segments}
        for segment in layout.segments:
            old = known.get(segment.loglet, segment)
            if old.start != segment.start or old.end not in (None, segment.end):
                raise Violation(f"{old} became {segment}")
        for one, next_ in zip(layout.segments, layout.segments[1:], strict=False):
            if one.end is None or next_.start != one.end + 1:
                raise Violation(f"{next_} follows {one}")

    def _check_all(self) -> None:
        """Check, after the faults, that the log has what was acknowledged and takes appends."""
        self._stale = [self.layout]
        self.append()
        while self.parties:
            self._happen(faults=False)
        last = self._run_now(virtual_log_use.tail())
        values = [self._run_now(virtual_log_use.read(p)) for p in range(self.trimmed + 1, last + 1)]
        if len(set(values)) != len(values):
            raise Violation("a value was appended twice")
        for position, value in enumerate(values, self.trimmed + 1):
            self._show(position, value)
            if self.place.get(value, position) != position:
                raise Violation(f"{value} was acknowledged at {self.place[value]}")
        lost = [v for v, p in self.place.items() if p > last]
        if lost:
            raise Violation(f"acknowledged and lost: {lost}")

    def _run_now(self, operation: UseSteps[Any]) -> Any:
        results: list[Any] = []
        self._start(operation, lambda party, result: results.append(result))
        while self.parties:
            self._happen(faults=False)
        if isinstance(results[0], LoomError):
            raise Violation(f"all is calm, and: {results[0]!r}")
        return results[0]
