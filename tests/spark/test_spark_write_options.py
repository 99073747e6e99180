"""Options and columns of a write: each checked, one error that names it."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from loomlog.errors import InvalidArgument
from loomlog.spark.writers import require_writable, write_options

PLACE = {"cluster": "127.0.0.1:7400", "log": "events"}

pytestmark = pytest.mark.usefixtures("spark")  # a schema is read from text by a session


def columns_of(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def test_a_batch_may_have_a_writer_and_a_number() -> None:
    options = write_options(PLACE | {"WRITER": " nightly ", "Sequence": "7"}, streaming=False)
    assert (options.cluster, options.log) == ("127.0.0.1:7400", "events")
    assert (options.writer, options.sequence) == ("nightly", 7)
    assert write_options(PLACE, streaming=False).writer is None


def test_what_spark_keeps_for_itself_is_passed_over() -> None:
    given = PLACE | {"checkpointLocation": "/somewhere"}
    assert write_options(given, streaming=True).log == "events"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"writer": "w"}, "writer and sequence go together"),
        ({"sequence": "3"}, "writer and sequence go together"),
        ({"writer": "w", "sequence": "0"}, "sequence must be a number from 1 on"),
        ({"writer": "w", "sequence": "x"}, "sequence must be a number from 1 on"),
        ({"topic": "t"}, "the loomlog sink has no option topic; there are cluster, log"),
        ({"cluster": ""}, "the option cluster is missing"),
        ({"log": " "}, "the option log is missing"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        write_options(PLACE | given, streaming=False)


def test_a_stream_is_its_own_writer() -> None:
    with pytest.raises(InvalidArgument, match="a streaming query has its checkpoint"):
        write_options(PLACE | {"writer": "w", "sequence": "1"}, streaming=True)


@pytest.mark.parametrize(
    "columns",
    ["value binary", "value string, key string", "timestamp timestamp, key binary, value binary"],
)
def test_columns_of_a_log(columns: str) -> None:
    require_writable(columns_of(columns), overwrite=False)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id long", "a log has no column id"),
        ("value long", "value must be binary or string, not bigint: cast it"),
        ("key string", "no column value in"),
        ("value binary, stream int", "stream is given by the log"),
        ("value binary, timestamp string", "timestamp must be timestamp, not string"),
        ("value binary, timestamp timestamp_ntz", "timestamp must be timestamp, not"),
        ("value binary, topic string", "a log has no column topic"),
    ],
)
def test_other_columns_are_one_clear_error(columns: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        require_writable(columns_of(columns), overwrite=False)


def test_a_log_cannot_be_overwritten() -> None:
    with pytest.raises(InvalidArgument, match="only ever appended to"):
        require_writable(columns_of("value binary"), overwrite=True)
