"""Options as users write them: case of no matter, each checked, one error that names it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from loomlog.errors import InvalidArgument
from loomlog.spark.options import read_options

PLACE = {"cluster": "127.0.0.1:7400", "log": "events"}


def test_defaults_of_a_batch_and_of_a_stream() -> None:
    batch = read_options(PLACE, streaming=False)
    assert (batch.cluster, batch.log) == ("127.0.0.1:7400", "events")
    assert (batch.start, batch.end) == ("earliest", "latest")
    assert batch.fail_on_data_loss
    assert read_options(PLACE, streaming=True).start == "latest"


def test_names_and_words_are_known_in_any_case() -> None:
    given = {"STARTINGPOSITION": "Earliest", "failondataloss": "FALSE", "maxrecordspertrigger": "5"}
    options = read_options(PLACE | given, streaming=True)
    assert options.start == "earliest"
    assert not options.fail_on_data_loss
    assert options.records_per_trigger_max == 5


@pytest.mark.parametrize(
    "text",
    ["2026-01-31T12:00:00", "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "1769860800000"],
)
def test_times_are_utc_unless_they_say_otherwise(text: str) -> None:
    options = read_options(PLACE | {"startingTimestamp": text}, streaming=False)
    assert options.from_time == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startPosition": "1"}, "has no option startPosition; there are cluster, log"),
        ({"startingPosition": "first"}, "startingPosition must be earliest, latest, committed:"),
        ({"startingPosition": "0"}, "startingPosition must be"),
        ({"startingPosition": "committed:"}, "startingPosition must be"),
        ({"startingPosition": "5", "endingPosition": "4"}, "startingPosition 5 is above"),
        ({"endingPosition": "earliest"}, "endingPosition must be latest or a position"),
        ({"startingTimestamp": "noon"}, "startingTimestamp must be ISO 8601"),
        ({"endingTimestamp": "9" * 30}, "endingTimestamp must be ISO 8601"),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "is after endingTimestamp"),
        ({"minPartitions": "0"}, "minPartitions must be a number from 1 on"),
        ({"maxRecordsPerPartition": "x"}, "maxRecordsPerPartition must be a number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"readTimeoutMs": "-1"}, "readTimeoutMs must be a number"),
        ({"maxRecordsPerTrigger": "5"}, "maxRecordsPerTrigger is for spark.readStream"),
        ({"cluster": ""}, "the option cluster is missing"),
        ({"log": " "}, "the option log is missing"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        read_options(PLACE | given, streaming=False)
    assert "\n" not in str(caught.value)
