"""Options as users write them: case of no matter, each checked, one error that names it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from loomlog.errors import InvalidArgument
from loomlog.spark import lag
from loomlog.spark.options import _NAMES as ALL_NAMES
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


def test_starting_offsets_is_another_name_of_starting_position() -> None:
    for text, start in {"earliest": "earliest", "Latest": "latest", "7": 7}.items():
        assert read_options(PLACE | {"startingoffsets": text}, streaming=True).start == start


def test_logs_are_named_or_match_a_pattern() -> None:
    place = {"cluster": "127.0.0.1:7400"}
    options = read_options(place | {"logs": "b, a"}, streaming=True)
    assert (options.log, options.logs, options.log_pattern) == ("", ("a", "b"), "")
    options = read_options(place | {"logpattern": "orders.*"}, streaming=False)
    assert (options.log, options.logs, options.log_pattern) == ("", (), "orders.*")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"logs": "a,,b"}, "logs must be different names with commas"),
        ({"logs": "a,b,a"}, "logs must be different names with commas"),
        ({"logPattern": "a("}, r"logPattern 'a\(' is not a regular expression"),
        ({"logPattern": ""}, "the option logPattern is missing"),
        ({"logs": "a,b", "log": "a"}, "log and logs name the logs to read: give one of them"),
        ({"logs": "a,b", "startingPosition": "5"}, "a position is one of a single log"),
        ({"logPattern": "a.*", "endingPosition": "5"}, "a position is one of a single log"),
    ],
)
def test_a_wrong_choice_of_logs_is_one_line(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        read_options({"cluster": "127.0.0.1:7400"} | given, streaming=True)
    assert "\n" not in str(caught.value)


def test_limits_of_a_trigger() -> None:
    given = {"minRecordsPerTrigger": "5", "maxTriggerDelay": "1.5m", "maxBytesPerTrigger": "2M"}
    options = read_options(PLACE | given, streaming=True)
    assert (options.records_per_trigger_min, options.trigger_delay_s) == (5, 90)
    assert options.bytes_per_trigger_max == 2 << 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be a number of bytes such as 64M"),
        ({"maxBytesPerTrigger": "many"}, "maxBytesPerTrigger must be a number of bytes"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay limits the wait for minRecordsPerTrigger"),
        ({"minRecordsPerTrigger": "2", "maxTriggerDelay": "5"}, "maxTriggerDelay: '5' is not a"),
        ({"minRecordsPerTrigger": "0"}, "minRecordsPerTrigger must be a number from 1 on"),
        (
            {"minRecordsPerTrigger": "6", "maxRecordsPerTrigger": "5"},
            "minRecordsPerTrigger 6 is above maxRecordsPerTrigger 5",
        ),
    ],
)
def test_a_wrong_limit_of_a_trigger_is_one_line(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        read_options(PLACE | given, streaming=True)
    assert "\n" not in str(caught.value)


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
        ({"startingOffsets": "5", "startingPosition": "5"}, "startingOffsets is another name"),
        ({"startingOffsets": "first"}, "startingOffsets must be earliest, latest, committed:"),
        ({"cluster": ""}, "the option cluster is missing"),
        ({"log": " "}, "the option log is missing"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        read_options(PLACE | given, streaming=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*ALL_NAMES])
@pytest.mark.parametrize(
    "text", ["9" * 30, "9" * 5000, "(" * 5000, "a{99999999999}", "9" * 400 + "G"]
)
def test_a_huge_value_is_refused_in_one_short_line_or_fine(name: str, text: str) -> None:
    given = PLACE | {name: text}
    if name in ("logs", "logPattern"):
        del given["log"]
    refusals = []
    try:
        read_options(given, streaming=True)
    except InvalidArgument as error:
        refusals.append(str(error))
    assert all(name in said and len(said) < 400 and "\n" not in said for said in refusals)


def test_there_is_no_lag_before_the_first_micro_batch() -> None:
    assert lag(None) == {}
