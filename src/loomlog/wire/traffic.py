"""Measures the requests to one server: how long each kind takes, what each log gets and gives.

What a request is about is in the table of permissions. Only logs that a request succeeded for are
counted, and no more than LOGS_MAX of them: peers may send any number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, TypeAlias

from loomlog import batch
from loomlog.core.permissions import Verb
from loomlog.errors import LoomError
from loomlog.meters import Histogram
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.permissions import RULES, Rule, Target

LOGS_MAX: Final = 100_000  # loglets and streams that are counted
_FOLLOW: Final = "subscribe"  # has many answers

LogKey: TypeAlias = tuple[Target, int]  # a loglet or a stream, and its number


@dataclass(slots=True)
class LogTraffic:
    """Counts what was done for one log, or one stream of it."""

    appends: int = 0  # requests
    append_records: int = 0
    append_bytes: int = 0
    reads: int = 0  # requests
    read_bytes: int = 0

    def add(self, other: LogTraffic) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True, eq=False)
class _Operation:
    """A kind of request."""

    verb: Verb | None  # append or read, if it is one
    target: Target
    field: str  # that names the log
    follows: bool
    may_wait: bool  # for entries
    times: Histogram


@dataclass(slots=True, eq=False)
class _Request:
    operation: _Operation
    begun_s: float  # 0: it waits for entries, so its time means nothing
    log: int
    records: int
    size: int


class Traffic:
    """The requests to one server since it was started."""

    def __init__(self) -> None:
        self.times: dict[str, Histogram] = {}  # by operation
        self.errors: Counter[str] = Counter()  # requests that were refused, by class of the error
        self.logs: dict[LogKey, LogTraffic] = {}
        self._operations: dict[tuple[str, int], _Operation] = {}

    def begin(self, kind: str, frame: pb.Frame, payload: memoryview) -> _Request | None:
        message: Any = getattr(frame, kind, None)
        number = message.kind if message is not None and kind in _SEVERAL else 0
        operation = self._operations.get((kind, number)) or self._learn(kind, number)
        if operation is None:
            return None
        records, log = 0, 0
        if operation.verb is not None:
            log = getattr(message, operation.field)
            if operation.verb is Verb.APPEND and len(payload) >= batch.HEADER_BYTES:
                records = batch.count_in(payload)
        waits = operation.follows or (operation.may_wait and message.wait_ms)
        return _Request(operation, 0.0 if waits else perf_counter(), log, records, len(payload))

    def answer(self, request: _Request, size: int) -> bool:
        operation = request.operation
        if request.begun_s:
            operation.times.observe(perf_counter() - request.begun_s)
        if operation.verb is not None and (request.records or size):
            counts = self._counts(operation.target, request.log)
            if operation.verb is Verb.APPEND:
                counts.appends += 1
                counts.append_records += request.records
                counts.append_bytes += request.size
            else:
                counts.reads += 1
                counts.read_bytes += size
        return operation.follows

    def refuse(self, request: _Request | None, error: LoomError) -> None:
        self.errors[type(error).__name__] += 1

    def _counts(self, target: Target, number: int) -> LogTraffic:
        counts = self.logs.get((target, number))
        if counts is None:
            if len(self.logs) >= LOGS_MAX:
                return LogTraffic()  # not counted
            counts = self.logs[target, number] = LogTraffic()
        return counts

    def _learn(self, kind: str, number: int) -> _Operation | None:
        """Return the operation of a kind of message; None for what is not known."""
        rules = RULES.get(kind)
        rule = rules if rules is None or isinstance(rules, Rule) else rules.get(number)
        operation = None
        if rule is not None:
            verbs = [verb for verb in (Verb.APPEND, Verb.READ) if rule.verbs == (verb,)]
            descriptor: Any = pb.Frame.DESCRIPTOR.fields_by_name[kind].message_type
            fields = descriptor.fields_by_name
            name = kind
            if kind in _SEVERAL:
                enum = fields["kind"].enum_type
                name = f"{_SEVERAL[kind]}_{enum.values_by_number[number].name}".lower()
            operation = _Operation(
                verb=verbs[0] if verbs and rule.target in _OF_LOGS else None,
                target=rule.target,
                field=rule.target.field,
                follows=kind == _FOLLOW,
                may_wait="wait_ms" in fields,
                times=self.times.setdefault(name, Histogram()),
            )
            self._operations[kind, number] = operation
        return operation


_OF_LOGS: Final = (Target.LOGLET, Target.STREAM)
_SEVERAL: Final = {  # kinds of messages for several operations, and what those are called
    kind: kind.removesuffix("_request")
    for kind, rules in RULES.items()
    if not isinstance(rules, Rule)
}
