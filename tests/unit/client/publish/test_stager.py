"""Staged rows: portions of a good size, an order that is read fast, small enough to be sent."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from loomlog.client.loglets.contract import Fixed
from loomlog.client.publish import writer_state
from loomlog.client.publish.stager import PORTION_BYTES, Staged, portions
from loomlog.client.publish.writer_state import SILENT_US, Intent, WriterState
from loomlog.errors import Corrupt, InvalidArgument, VersionMismatch
from loomlog.limits import BATCH_BYTES_MAX
from loomlog.references import Range, Reference
from loomlog.staging_logs import staged_log, staging_name


def rows(values: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def values_of(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column(0).to_pylist()]


# ---- portions ---------------------------------------------------------------------


def test_large_batches_are_cut_and_small_ones_joined() -> None:
    large = [b"%06d" % n * 20 for n in range(20_000)]
    cut = list(portions(rows(large)))
    assert values_of(cut) == large
    assert all(PORTION_BYTES // 2 <= part.nbytes <= PORTION_BYTES for part in cut[:-1])
    small = [rows(large[at : at + 100]) for at in range(0, 20_000, 100)]
    joined = list(portions(iter(small)))
    assert values_of(joined) == large
    assert all(PORTION_BYTES // 2 <= part.nbytes <= PORTION_BYTES for part in joined[:-1])


def test_rows_of_very_different_sizes_stay_within_what_a_batch_may_have() -> None:
    uneven = [b"x"] * 1000 + [b"y" * (8 << 20)] * 5 + [b"z"] * 1000
    cut = list(portions(rows(uneven)))
    assert values_of(cut) == uneven
    assert all(part.nbytes < BATCH_BYTES_MAX for part in cut)


def test_nothing_is_no_portion_and_other_columns_begin_another() -> None:
    assert list(portions([])) == []
    assert list(portions([rows([]), rows([])])) == []
    keyed = pa.record_batch({"value": [b"v"], "key": [b"k"]})
    assert [part.num_columns for part in portions([rows([b"a"]), keyed])] == [1, 2]
    with pytest.raises(InvalidArgument, match="RecordBatch is needed, not int"):
        list(portions([1]))


# ---- what is staged ---------------------------------------------------------------


def staged(*ranges: tuple[int, int, int], times: tuple[int, int] = (5, 6)) -> Staged:
    return Staged("events", (tuple(Range(*piece) for piece in ranges),), *times)


def test_tasks_that_took_turns_on_a_stream_are_read_in_one_pass() -> None:
    one, other = staged((1, 1, 10), (1, 21, 10)), staged((1, 11, 10), (1, 31, 5))
    assert (one + other).ranges() == (Range(1, 1, 35),)
    elsewhere = staged((2, 1, 7))
    assert (elsewhere + one).ranges() == (Range(1, 1, 10), Range(1, 21, 10), Range(2, 1, 7))


def test_a_task_keeps_its_order_also_where_its_rows_lie_the_other_way_round() -> None:
    backwards = staged((1, 40, 2), (1, 30, 2))
    moved = staged((2, 5, 1), (1, 50, 1))
    ranges = (backwards + staged((1, 45, 1)) + moved).ranges()
    assert ranges.index(Range(1, 40, 2)) < ranges.index(Range(1, 30, 2))
    assert ranges.index(Range(2, 5, 1)) < ranges.index(Range(1, 50, 1))
    assert sum(piece.rows for piece in ranges) == 7


def test_what_is_staged_travels() -> None:
    whole = staged((1, 1, 10), times=(7, 9)) + staged((2, 1, 5), times=(3, 8))
    assert (whole.rows, whole.min_timestamp_us, whole.max_timestamp_us) == (15, 3, 9)
    assert Staged.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    assert pickle.loads(pickle.dumps(whole)) == whole


def test_nothing_adds_nothing() -> None:
    nothing, some = Staged("events"), staged((1, 1, 1))
    assert nothing + some == some + nothing == some
    assert (nothing + nothing).ranges() == ()
    with pytest.raises(InvalidArgument, match="cannot be published together"):
        some + Staged("others")


def test_a_staging_log_is_known_by_its_name() -> None:
    assert staged_log(staging_name("events")) == "events"
    assert staged_log("events") is None


# ---- the register of a writer -----------------------------------------------------

STATE = WriterState(
    producer_id=77,
    sequence=4,
    published=(10, 19),
    stream=3,
    staged_from=5,
    next_staged_from=9,
    changed_us=1_000,
    intent=Intent(
        Reference("events.staged", "w", 5, 2, (Range(1, 1, 10),)),
        Fixed("ordered", 3, above=19, place=[1, 2]),
        staged_tail=40,
        min_timestamp_us=-7,
        max_timestamp_us=8,
    ),
)


def test_a_writers_state_comes_back_as_it_was() -> None:
    for state in (STATE, WriterState(9, 0, (0, 0), 0, 1, 1, 0)):
        assert writer_state.decode(state.encode()) == state


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[1]", b"\xff", STATE.encode()[:-1], STATE.encode()[:-40] + b'"}}']
)
def test_what_is_no_state_is_corrupt(value: bytes) -> None:
    with pytest.raises(Corrupt):
        writer_state.decode(value)


def test_a_later_version_says_so() -> None:
    with pytest.raises(VersionMismatch, match="version 3"):
        writer_state.decode(b'{"version": 3}')


def test_who_is_silent_for_a_day_holds_nothing_back_unless_something_is_decided() -> None:
    quiet = WriterState(9, 1, (1, 1), 1, 1, 1, changed_us=0)
    assert quiet.holds_back(SILENT_US - 1)
    assert not quiet.holds_back(SILENT_US)
    assert STATE.holds_back(2 * SILENT_US)
