"""Tells operators what restored registers mean: they are as in the copy, while outputs of pipelines
and archives have what was made since. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from loomlog.archive import record
from loomlog.errors import LoomError
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.registers import RegisterRecord
from loomlog.metadata.store.contract import StoredItem

_PREFIX: Final = "register/"
_PIPELINE: Final = "pipeline/"


def register_notes(items: Mapping[str, StoredItem], logs: Iterable[LogRecord]) -> Iterator[str]:
    """Yield notes about the registers among the items, which are of these logs."""
    values = dict(_values(items))
    names = (name for name in values if name.startswith(_PIPELINE))
    if pipelines := ", ".join(name.removeprefix(_PIPELINE) for name in names):
        yield (
            f"pipeline {pipelines}: as in the copy; if the output has, or may have, units that "
            "were committed since, the pipeline stops and says what to do"
        )
    for log in logs:
        value = values.get(record.register_name(log.name))
        if value is not None and (note := _archive_note(log, value)):
            yield note


def _values(items: Mapping[str, StoredItem]) -> Iterator[tuple[str, bytes]]:
    for key, item in items.items():
        if key.startswith(_PREFIX):
            try:
                value = RegisterRecord.decode(key, item.value).value
            except LoomError:  # it is reported when it is read
                continue
            if value is not None:
                yield key.removeprefix(_PREFIX), value


def _archive_note(log: LogRecord, value: bytes) -> str:
    try:
        info = record.decode(value, log.name)
    except LoomError:
        return ""
    if info.log_id != log.log_id or info.through >= log.trimmed:
        return ""
    return (
        f"log {log.name}: positions {info.through + 1} to {log.trimmed} are trimmed, and not in "
        f"the archive as the copy has it: `loom archive run {log.name}` finds what was archived "
        "since; readers skip it until then"
    )
