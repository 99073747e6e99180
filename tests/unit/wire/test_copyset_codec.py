"""The words of `copyset` on the wire: there and back they are the same; bad ones are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomlog.batch import assign_llsn, assign_position, build
from loomlog.core.copyset.messages import (
    Acknowledged,
    Activate,
    Amend,
    Clean,
    Contradict,
    Delivered,
    Digest,
    Digested,
    Done,
    EpochEnd,
    EpochState,
    EpochStoreRequest,
    FindBatch,
    Finish,
    Forget,
    FoundBatch,
    GetState,
    LogState,
    Miss,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Occupied,
    Preempted,
    Purge,
    Read,
    Refused,
    Release,
    Seal,
    SealedAt,
    SetClean,
    Store,
    Stored,
    Trim,
    UseShort,
)
from loomlog.core.copyset.nodeset import SHARD_MAX, EpochMetadata, Member, Trouble, shard_of
from loomlog.core.copyset.presumption import Presume, Presumption
from loomlog.core.copyset.record import EPOCH_MAX, OFFSET_MAX, Kind, Record, make
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.wire import copyset
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import KnownNode

SHARD = shard_of(5, 3)
LOG = st.integers(0, (1 << 32) - 1)
SHORT = st.integers(0, (1 << 32) - 1)
EPOCH = st.integers(1, EPOCH_MAX)
OFFSET = st.integers(1, 1 << 31)
LSN = st.builds(make, EPOCH, OFFSET)
NODES = st.lists(st.integers(0, SHARD_MAX), max_size=4).map(tuple)
ENDS = st.builds(EpochEnd, EPOCH, OFFSET, OFFSET, EPOCH, SHORT, st.booleans())


def batch_at(first: int, count: int, body: bytes = b"body") -> bytes:
    batch = build(
        body,
        codec=0,
        flags=0,
        count=count,
        raw_size=len(body),
        producer_id=9,
        sequence=1,
        min_timestamp_us=1,
        max_timestamp_us=2,
    )
    assign_llsn(batch, 1, 1, first)
    assign_position(batch, first)
    return bytes(batch)


@st.composite
def records(draw: st.DrawFn, *, with_batch: bool | None = None) -> Record:
    first, count = draw(LSN), draw(st.integers(1, 1000))
    has_batch = draw(st.booleans()) if with_batch is None else with_batch
    return Record(
        first,
        count,
        Kind.DATA if has_batch else draw(st.sampled_from(Kind)),
        draw(SHORT),
        draw(NODES),
        draw(SHORT),
        draw(OFFSET),
        draw(st.integers(0, EPOCH_MAX)),
        batch_at(first, count, draw(st.binary(min_size=1, max_size=90))) if has_batch else b"",
    )


REQUESTS: st.SearchStrategy[NodeRequest] = st.one_of(
    st.builds(Store, LOG, records(), st.booleans()),
    st.builds(Amend, LOG, records(with_batch=False)),
    st.builds(Release, LOG, LSN),
    st.builds(Seal, LOG, EPOCH, SHORT),
    st.builds(Digest, LOG, EPOCH, OFFSET, EPOCH, SHORT, st.booleans(), SHORT).map(
        lambda digest: Digest(
            digest.log,
            digest.epoch,
            digest.after,
            digest.seal,
            min(digest.bytes_max, copyset.READ_BYTES_MAX),
            digest.batches,
            digest.wave,
        )
    ),
    st.builds(Clean, LOG, EPOCH, ENDS),
    st.builds(
        Read,
        *(LOG, LSN, LSN, st.integers(0, copyset.READ_BYTES_MAX)),
        st.frozensets(SHORT, max_size=3),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(Trim, LOG, LSN),
    st.builds(Forget, LOG),
    st.builds(FindBatch, LOG, SHORT, SHORT),
)

RECORDS = st.lists(records(), max_size=3)
ANSWERS: st.SearchStrategy[NodeAnswer] = st.one_of(
    st.just(Stored()),
    st.just(Done()),
    st.just(NotHere()),
    st.builds(FoundBatch, st.lists(LSN).map(tuple), st.booleans()),
    st.builds(Preempted, EPOCH),
    st.builds(Occupied, LSN),
    st.builds(Refused, st.sampled_from(Trouble), st.text(max_size=9)),
    st.builds(
        SealedAt,
        *(EPOCH, LSN, st.lists(st.builds(EpochState, EPOCH, OFFSET, OFFSET), max_size=3)),
        *(EPOCH, LSN),
    ),
    st.builds(Digested, RECORDS, st.booleans(), LSN),
    st.builds(
        Delivered,
        *(RECORDS, LSN, LSN, LSN, EPOCH),
        st.lists(st.tuples(LSN, LSN), max_size=2),
    ),
)


@given(REQUESTS)
def test_a_request_is_the_same_there(request: NodeRequest) -> None:
    message, payload = copyset.request_to_wire(SHARD, request, 7)
    sent = pb.CopysetRequest.FromString(message.SerializeToString())
    assert copyset.request_from_wire(sent, memoryview(payload)) == request


@given(ANSWERS)
def test_an_answer_is_the_same_back(answer: NodeAnswer) -> None:
    message, buffers = copyset.answer_to_wire(answer)
    sent = pb.CopysetAnswer.FromString(message.SerializeToString())
    payload = b"".join(map(bytes, buffers))
    assert copyset.answer_from_wire(sent, memoryview(payload)) == answer


def test_a_read_can_wait() -> None:
    message, _ = copyset.request_to_wire(SHARD, Read(1, 2, 3, 4), 7, wait_ms=5)
    assert (message.wait_ms, message.stamp, message.shard) == (5, 7, 3)


def test_a_node_purges_itself_only() -> None:
    with pytest.raises(InvalidArgument, match="Purge"):
        copyset.request_to_wire(SHARD, Purge(1, EpochEnd(1, 1, 1, 1, 1)), 7)


def test_a_request_of_a_newer_release_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="upgrade this node"):
        copyset.request_from_wire(pb.CopysetRequest(), memoryview(b""))


@pytest.mark.parametrize("first", [0, make(0, 5), make(5, 0), make(5, OFFSET_MAX)])
def test_no_record_is_where_none_can_be(first: int) -> None:
    record = pb.CopysetRecord(first=first, count=2)
    message = pb.CopysetRequest(kind=pb.CopysetRequest.STORE, record=record)
    with pytest.raises(InvalidArgument, match=r"there is no record|can be at"):
        copyset.request_from_wire(message, memoryview(b""))


def test_a_batch_of_another_place_is_refused() -> None:
    first = make(3, 7)
    record = Record(first, 2, Kind.DATA, 1, (1,), 1, 0, 0, batch_at(first + 1, 2))
    message, payload = copyset.request_to_wire(SHARD, Store(1, record), 7)
    with pytest.raises(InvalidArgument, match="the batch of"):
        copyset.request_from_wire(message, memoryview(payload))


def test_an_answer_that_is_cut_off_or_damaged_is_corrupt() -> None:
    first = make(3, 7)
    record = Record(first, 2, Kind.DATA, 1, (1,), 1, 0, 0, batch_at(first, 2))
    message, buffers = copyset.answer_to_wire(Digested([record], more=False))
    payload = bytearray(b"".join(map(bytes, buffers)))
    with pytest.raises(Corrupt, match="cut off"):
        copyset.answer_from_wire(message, memoryview(payload)[:-64])
    payload[len(record.batch) // 2] ^= 1
    with pytest.raises(Corrupt):
        copyset.answer_from_wire(message, memoryview(payload))


NODE = 4
STORE_REQUESTS: st.SearchStrategy[EpochStoreRequest] = st.one_of(
    st.builds(GetState, LOG),
    st.builds(Activate, LOG, st.just(NODE), EPOCH),
    st.builds(SetClean, LOG, EPOCH, ENDS),
    st.builds(UseShort, LOG, EPOCH, EPOCH, NODES),
    st.builds(Presume, LOG, EPOCH, EPOCH, SHORT, OFFSET, OFFSET),
    st.builds(Finish, LOG, EPOCH, OFFSET),
    st.builds(Miss, LOG, EPOCH, OFFSET),
    st.builds(Contradict, LOG, EPOCH, SHORT, LSN),
)


@given(STORE_REQUESTS)
def test_a_request_to_the_epoch_store_is_the_same_there(request: EpochStoreRequest) -> None:
    message = copyset.store_request_to_wire(request)
    assert copyset.store_request_from_wire(message, NODE) == request


def test_a_node_takes_an_epoch_for_itself_only() -> None:
    message = copyset.store_request_to_wire(Activate(1, 7, 5))
    assert copyset.store_request_from_wire(message, NODE) == Activate(1, NODE, 5)


def test_the_epoch_store_refuses_requests_of_a_newer_release() -> None:
    with pytest.raises(InvalidArgument, match="takes no requests of kind"):
        copyset.store_request_from_wire(pb.EpochStoreRequest(), NODE)


def test_an_answer_of_a_newer_release_counts_as_none() -> None:
    with pytest.raises(Corrupt, match="no answer of kind"):
        copyset.answer_from_wire(pb.CopysetAnswer(), memoryview(b""))


MEMBERS = st.lists(st.builds(Member, SHORT, st.text(max_size=9)), min_size=1, max_size=4)
SHORT_COPYSETS = st.lists(NODES, max_size=2).map(tuple)
HISTORIES = st.lists(
    st.builds(EpochMetadata, EPOCH, MEMBERS.map(tuple), SHORT, SHORT_COPYSETS),
    min_size=1,
    max_size=3,
)
STATES = st.builds(
    LogState,
    *(EPOCH, SHORT, HISTORIES.map(tuple), EPOCH, LSN, st.booleans(), LSN),
    st.lists(ENDS, max_size=2).map(tuple),
    st.lists(st.builds(Acknowledged, EPOCH, OFFSET, st.booleans()), max_size=2).map(tuple),
    st.integers(0, (1 << 64) - 1),
    SHORT,
)


@given(LOG, STATES)
def test_any_state_is_the_same_there(loglet: int, state: LogState) -> None:
    message = copyset.state_to_wire(loglet, state, [])
    assert copyset.state_from_wire(message) == (state, {})


def test_a_state_and_its_nodes_are_the_same_there() -> None:
    first = EpochMetadata(4, (Member(1, "rack=a"), Member(2)), 2)
    second = EpochMetadata(6, (Member(1, "rack=a"), Member(3, "rack=b")), 2)
    state = LogState(7, 3, (first, second), 5, make(5, 9), closed=True, trimmed=make(4, 2))
    state = replace(state, presumed=(Presumption(6, 7, 3, 20, 30),))
    nodes = [KnownNode(1, "a:1", True), KnownNode(3, "c:3", False, True)]
    message = copyset.state_to_wire(8, state, nodes)
    found, by_id = copyset.state_from_wire(message)
    assert (message.loglet_id, found) == (8, state)
    assert list(by_id.values()) == nodes
    with pytest.raises(InvalidArgument, match="without nodes"):
        copyset.state_from_wire(pb.CopysetState(loglet_id=1))
