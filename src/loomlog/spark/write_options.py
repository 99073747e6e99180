"""The options and columns of a write, checked: whatever is wrong is one error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import BinaryType, DataType, StringType, StructType, TimestampType

from loomlog.errors import InvalidArgument
from loomlog.spark.options import named, required

_NAMES: Final = ("cluster", "log", "writer", "sequence")
_OF_SPARK: Final = ("checkpointlocation",)  # it hands its own on

_BYTES: Final = (BinaryType, StringType)
_COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "timestamp": (TimestampType,),
}
_GIVEN_ANEW: Final = frozenset({"position", "stream", "llsn"})


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    cluster: str
    log: str
    writer: str | None  # of a batch: None for one that is written but once
    sequence: int


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a batch or of a streaming query."""
    ours = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    options = named(ours, _NAMES, "sink")
    writer, sequence = options.get("writer"), options.get("sequence")
    if streaming and (writer or sequence):
        raise InvalidArgument(
            "writer and sequence are for a batch: a streaming query has its checkpoint"
        )
    if (writer is None) != (sequence is None):
        raise InvalidArgument("writer and sequence go together: give both or none")
    return WriteOptions(
        cluster=required(options, "cluster", "the vmr's address, e.g. 127.0.0.1:7400"),
        log=required(options, "log", "the name of the log to write to"),
        writer=writer,
        sequence=_number(sequence) if sequence is not None else 1,
    )


def require_writable(schema: StructType, overwrite: bool) -> None:
    """The rows can go into a log."""
    if overwrite:
        raise InvalidArgument(
            "a log is only ever appended to: use mode('append'), or outputMode('append') or "
            "('update') for a stream"
        )
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if field.name in _GIVEN_ANEW:
            raise InvalidArgument(
                f"the column {field.name} is given by the log that is written to: drop it, e.g. "
                "select('timestamp', 'key', 'value')"
            )
        if kinds is None:
            raise InvalidArgument(
                f"a log has no column {field.name}: it keeps value, key and timestamp; drop it or "
                "encode it into value, e.g. with to_json(struct(…))"
            )
        if not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise InvalidArgument(
                f"the column {field.name} must be {wanted}, not "
                f"{field.dataType.simpleString()}: cast it"
            )
    if "value" not in schema.names:
        raise InvalidArgument(
            f"no column value in {schema.simpleString()}: rename the one that holds the data"
        )


def _number(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) < 1 << 63:
        return int(text)
    raise InvalidArgument(f"sequence must be a number from 1 on, not {text!r}")
