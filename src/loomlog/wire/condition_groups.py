"""Groups conditions for people, so that those of many streams are shown once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from loomlog.wire.conditions import ConditionInfo
from loomlog.wire.events import subject_of

NAMES_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class ConditionGroup:
    """Conditions that differ only in their streams."""

    subject: str
    condition: ConditionInfo  # the first of them, with the bytes of all
    count: int


def group_conditions(conditions: Iterable[ConditionInfo]) -> list[ConditionGroup]:
    """Return groups in the order of their first conditions."""
    groups: dict[ConditionInfo, list[ConditionInfo]] = {}
    for each in conditions:
        alike = each
        if each.stream is not None and each.node is None:
            alike = replace(each, log=None, stream=None, records=None, bytes=None)
        groups.setdefault(alike, []).append(each)
    return [_group(members) for members in groups.values()]


def _group(members: Sequence[ConditionInfo]) -> ConditionGroup:
    sizes = [each.bytes for each in members if each.bytes is not None]
    first = replace(members[0], bytes=sum(sizes) if sizes else None)
    return ConditionGroup(_subject(members), first, len(members))


def _subject(members: Sequence[ConditionInfo]) -> str:
    if len(members) == 1:
        return subject_of(members[0])
    logs = list(dict.fromkeys(each.log or "" for each in members))
    if len(logs) == 1:
        return f"log {logs[0]}, streams {_some([str(each.stream) for each in members])}"
    return f"{len(members):,} streams of logs {_some(logs)}"


def _some(names: Sequence[str]) -> str:
    shown, more = names[:NAMES_SHOWN], len(names) - NAMES_SHOWN
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
