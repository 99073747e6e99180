"""The operations that servers measure: every kind of message in the table of permissions, and each
operation of a kind that has several."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from loomlog.core.permissions import Verb
from loomlog.meters import Operation, Operations, OperationTable
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.permissions import RULES, Rule, Target

_OF_LOGS: Final = (Target.LOGLET, Target.STREAM)
_USES: Final = ((Verb.APPEND,), (Verb.READ,))


def _operation(kind: str, name: str, rule: Rule) -> Operation:
    is_use = rule.target in _OF_LOGS and rule.verbs in _USES
    may_wait = "wait_ms" in _fields(kind) and rule.verbs != (Verb.APPEND,)
    return Operation(
        name,
        log_field=rule.target.field if is_use else "",
        log_of=attrgetter(rule.target.field) if is_use else None,
        appends=rule.verbs == (Verb.APPEND,),
        follows=kind == "subscribe",
        wait_of=attrgetter("wait_ms") if may_wait else None,
    )


def _fields(kind: str) -> dict[str, Any]:
    message: Any = pb.Frame.DESCRIPTOR.fields_by_name[kind].message_type
    return dict(message.fields_by_name)


def _several(kind: str, rules: dict[int, Rule]) -> Operations:
    names = _fields(kind)["kind"].enum_type.values_by_number
    prefix = kind.removesuffix("_request")
    return Operations(
        attrgetter("kind"),
        {
            number: _operation(kind, f"{prefix}_{names[number].name}".lower(), rule)
            for number, rule in rules.items()
        },
    )


OPERATIONS: Final[OperationTable] = {
    kind: _operation(kind, kind, rules) if isinstance(rules, Rule) else _several(kind, {**rules})
    for kind, rules in RULES.items()
}
