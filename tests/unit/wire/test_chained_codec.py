"""The words of `chained` on the wire: there and back they are the same; bad ones are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomlog.batch import assign_llsn, assign_position, build
from loomlog.core.chained.chain import Block, Extent, Projection, Replica, junk
from loomlog.core.chained.messages import (
    ACKNOWLEDGED_MAX,
    LIST_MAX,
    Acknowledge,
    Answer,
    Before,
    Beyond,
    Check,
    Create,
    Current,
    Done,
    EpochOver,
    Fetch,
    Fetched,
    FindEnd,
    FindTicket,
    Forgotten,
    Found,
    HandedOut,
    List,
    Listed,
    Measure,
    MeasuredBlocks,
    Missing,
    Next,
    Pull,
    Pulled,
    Read,
    Refused,
    Remove,
    Request,
    Seal,
    SealedAt,
    Stored,
    Swapped,
    Ticket,
    Trim,
    TrimmedTo,
    Write,
    Written,
)
from loomlog.core.requests import Lost
from loomlog.errors import InvalidArgument
from loomlog.limits import POSITION_MAX, REFERENCE_RECORDS_MAX
from loomlog.types import Buffer
from loomlog.wire import chained
from loomlog.wire import loomlog_pb2 as pb

NODE = 4
LONG = st.integers(0, (1 << 64) - 1)
SHORT = st.integers(0, (1 << 32) - 1)
SIGNED = st.integers(-(1 << 63), (1 << 63) - 1)
POSITION = st.integers(1, (1 << 62) - 1)
COUNT = st.integers(1, REFERENCE_RECORDS_MAX)
REPLICAS = st.builds(Replica, st.just(NODE), SHORT, SHORT, LONG)


def block(first: int, count: int, sequence: int = 1, body: bytes = b"body") -> Block:
    batch = build(
        body,
        codec=0,
        flags=0,
        count=count,
        raw_size=len(body),
        producer_id=9,
        sequence=sequence,
        min_timestamp_us=1,
        max_timestamp_us=2,
    )
    assign_llsn(batch, 1, 1, first)
    assign_position(batch, first)
    return Block(first, count, 9, sequence, bytes(batch))


BATCHES = st.builds(block, POSITION, st.integers(1, 1000), LONG, st.binary(max_size=200))
BLOCKS = BATCHES | st.builds(junk, POSITION, COUNT)
TOLD = st.lists(POSITION, max_size=ACKNOWLEDGED_MAX).map(tuple)

REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(Write, LONG, BLOCKS),
    st.builds(
        lambda epoch, block, told: Write(epoch, block._replace(acknowledged=told)),
        *(LONG, BATCHES, TOLD),
    ),
    st.builds(Acknowledge, LONG, TOLD),
    st.builds(Read, LONG, LONG),
    st.builds(Before, LONG, LONG),
    st.builds(
        List,
        *(LONG, LONG, st.integers(1, LIST_MAX), st.none() | SIGNED, st.booleans(), st.booleans()),
    ),
    st.builds(Fetch, LONG, LONG, st.integers(1, chained.FETCH_BYTES_MAX), st.booleans()),
    st.builds(Check, LONG),
    st.builds(Measure, LONG, LONG, LONG, st.integers(1, LIST_MAX)),
    st.builds(FindEnd, LONG),
    st.builds(Trim, LONG, LONG),
    st.builds(Seal, LONG, st.booleans()),
    st.builds(Create),
    st.builds(Remove),
)
SOURCES = st.builds(Replica, SHORT, SHORT, SHORT, LONG)
PULLS = st.builds(Pull, LONG, SOURCES, LONG, st.integers(1, chained.FETCH_BYTES_MAX), st.booleans())

ANSWERS: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Stored),
    st.builds(Written),
    st.builds(Found, BLOCKS),
    st.builds(Missing, LONG),
    st.builds(TrimmedTo, LONG),
    st.builds(Listed, st.lists(st.builds(Extent, LONG, SHORT)), st.booleans(), LONG, TOLD),
    st.builds(MeasuredBlocks, LONG, LONG),
    st.builds(Fetched, st.lists(BLOCKS, max_size=5), st.booleans()),
    st.builds(Pulled, LONG, LONG, st.booleans()),
    st.builds(SealedAt, LONG, LONG),
    st.builds(Done),
    st.builds(Beyond, LONG),
    st.builds(Lost),
    st.builds(EpochOver, LONG),
    st.builds(Refused, st.text()),
)


def joined(buffers: Sequence[Buffer]) -> memoryview:
    return memoryview(b"".join(buffers))


@given(REPLICAS, REQUESTS)
def test_a_request_arrives_as_it_was_sent(replica: Replica, request: Request) -> None:
    message, payload = chained.request_to_wire(replica, request)
    sent = pb.ChainRequest.FromString(message.SerializeToString())
    assert chained.request_from_wire(sent, NODE, joined([payload])) == (replica, request)


@given(REPLICAS, PULLS)
def test_a_pull_is_from_the_same_chain(replica: Replica, request: Pull) -> None:
    source = request.source._replace(log_id=replica.log_id, chain=replica.chain)
    request = replace(request, source=source)
    message, _ = chained.request_to_wire(replica, request)
    assert chained.request_from_wire(message, NODE, joined([])) == (replica, request)


@given(ANSWERS)
def test_an_answer_arrives_as_it_was_given(answer: Answer) -> None:
    message, payload = chained.answer_to_wire(answer)
    sent = pb.ChainAnswer.FromString(message.SerializeToString())
    assert chained.answer_from_wire(sent, joined(payload)) == answer


def test_no_kind_is_left_out() -> None:
    replica = Replica(NODE, 1, 0, 1)
    requests = (
        *(
            Write(1, junk(1, 1)),
            Read(1, 1),
            Before(1, 1),
            List(1, 1, 1, 5, without_junk=True),
            Fetch(1, 1, 1),
            Check(1),
            Acknowledge(1, (1,)),
        ),
        Measure(1, 1, 1, 1),
        *(Trim(1, 1), Seal(1), Create(), Pull(1, replica, 1, 1), Remove(), FindEnd(1)),
    )
    sent = {chained.request_to_wire(replica, request)[0].kind for request in requests}
    assert sent == set(pb.ChainRequest.Kind.values()) - {pb.ChainRequest.KIND_UNSPECIFIED}
    answers: tuple[Answer, ...] = (
        *(Stored(), Written(), Found(junk(1, 1)), Missing(1), TrimmedTo(1), Listed([], False)),
        MeasuredBlocks(1, 1),
        *(Fetched([], False), Pulled(1, 1, False), SealedAt(1, 1), Done(), EpochOver(1)),
        *(Refused(""), Lost(), Beyond(1)),
    )
    given_back = {chained.answer_to_wire(answer)[0].kind for answer in answers}
    assert given_back == set(pb.ChainAnswer.Kind.values())


@given(
    SHORT,
    st.builds(Next, LONG, SHORT, st.none() | LONG, st.booleans())
    | st.builds(FindTicket, LONG, LONG)
    | st.builds(FindEnd, LONG),
)
def test_a_request_to_the_sequencer_arrives_as_it_was_sent(loglet: int, request: Request) -> None:
    message = chained.sequencer_request_to_wire(loglet, request)
    assert chained.sequencer_request_from_wire(message) == (loglet, request)


@given(
    st.one_of(
        st.builds(HandedOut, st.builds(Ticket, LONG, SHORT, LONG, st.binary(max_size=16))),
        st.builds(Forgotten),
        st.builds(Beyond, LONG),
        st.builds(EpochOver, LONG),
        st.builds(Refused, st.text()),
    )
)
def test_an_answer_of_the_sequencer_arrives_as_it_was_given(answer: Answer) -> None:
    message = chained.sequencer_answer_to_wire(answer)
    assert chained.sequencer_answer_from_wire(message) == answer


@st.composite
def projections(draw: st.DrawFn) -> Projection:
    loglet = draw(SHORT)
    nodes = draw(st.lists(st.lists(st.integers(1, 9), min_size=1), min_size=1, max_size=4))
    chains = tuple(
        tuple(Replica(node, loglet, index, draw(LONG)) for node in chain)
        for index, chain in enumerate(nodes)
    )
    epoch, first, start, sequencer = (draw(LONG) for _ in range(4))
    lost = tuple(draw(LONG) for _ in chains) if draw(st.booleans()) else ()
    closed, least = draw(st.booleans()), draw(SHORT)
    return Projection(loglet, epoch, first, start, chains, sequencer, closed, lost, least)


@given(projections())
def test_a_projection_arrives_with_the_addresses_of_its_nodes(projection: Projection) -> None:
    nodes = {replica.node_id for replica in projection.replicas}
    addresses = {node: f"host-{node}:1" for node in nodes}
    message = chained.projection_to_wire(projection, addresses)
    assert chained.projection_from_wire(message) == (projection, addresses)


def test_a_node_without_an_address_is_in_the_projection_all_the_same() -> None:
    projection = Projection(1, 1, 1, 1, ((Replica(3, 1, 0, 1),),), 1)
    message = chained.projection_to_wire(projection, {})
    assert chained.projection_from_wire(message) == (projection, {})


def test_a_fetch_can_wait() -> None:
    message, _ = chained.request_to_wire(Replica(NODE, 1, 0, 1), Fetch(1, 5, 100), wait_ms=250)
    assert message.wait_ms == 250


# ---- what makes no sense


def flipped(content: Buffer, at: int) -> memoryview:
    changed = bytearray(content)
    changed[at] ^= 1
    return memoryview(changed)


def write_of(found: Block, *told: int) -> pb.ChainRequest:
    request = Write(1, found._replace(acknowledged=told))
    message, _ = chained.request_to_wire(Replica(NODE, 1, 0, 1), request)
    return message


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (write_of(block(5, 2)), flipped(block(5, 2).batch, 20)),
        (write_of(block(5, 2)), flipped(block(5, 2).batch, -1)),
        (write_of(block(5, 2)), memoryview(block(5, 2).batch)[:-64]),
        (write_of(block(5, 2)), memoryview(b"no batch")),
        (write_of(block(5, 2)), memoryview(block(6, 2).batch)),
        (write_of(block(5, 2)), memoryview(block(5, 3).batch)),
        (write_of(block(5, 2), 0), memoryview(block(5, 2).batch)),
        (write_of(block(5, 2), 4, POSITION_MAX + 1), memoryview(block(5, 2).batch)),
        (write_of(block(5, 2), *[4] * (ACKNOWLEDGED_MAX + 1)), memoryview(block(5, 2).batch)),
        (pb.ChainRequest(), memoryview(b"")),
        (pb.ChainRequest(kind=99), memoryview(b"")),  # type: ignore[arg-type]
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    message: pb.ChainRequest, payload: memoryview
) -> None:
    with pytest.raises(InvalidArgument):
        chained.request_from_wire(message, NODE, payload)


def test_a_request_for_too_much_gets_less_and_one_for_nothing_something() -> None:
    replica = Replica(NODE, 1, 0, 1)
    for request, allowed in (
        (List(1, 1, 1 << 40), List(1, 1, LIST_MAX)),
        (List(1, 1, 0), List(1, 1, 1)),
        (Fetch(1, 1, 1 << 40), Fetch(1, 1, chained.FETCH_BYTES_MAX)),
        (Fetch(1, 1, 0), Fetch(1, 1, 1)),
    ):
        message, _ = chained.request_to_wire(replica, request)
        assert chained.request_from_wire(message, NODE, memoryview(b"")) == (replica, allowed)


def test_a_block_that_was_damaged_on_its_way_is_not_used() -> None:
    found = block(5, 2)
    message, _ = chained.answer_to_wire(Found(found))
    for payload in (flipped(found.batch, -1), memoryview(found.batch)[:-1]):
        assert isinstance(chained.answer_from_wire(message, payload), Refused)
    message.ClearField("extents")
    assert isinstance(chained.answer_from_wire(message, memoryview(b"")), Refused)


def test_an_answer_of_a_newer_release_counts_as_none() -> None:
    assert chained.answer_from_wire(pb.ChainAnswer(), memoryview(b"")) == Lost()
    assert chained.sequencer_answer_from_wire(pb.SequencerAnswer()) == Lost()


def test_what_is_nothing_to_ask_or_to_answer_is_not_sent() -> None:
    with pytest.raises(InvalidArgument):
        chained.request_to_wire(Replica(NODE, 1, 0, 1), Current())
    with pytest.raises(InvalidArgument):
        chained.answer_to_wire(Swapped())
    with pytest.raises(InvalidArgument):
        chained.sequencer_request_to_wire(1, Seal(1))
    with pytest.raises(InvalidArgument):
        chained.sequencer_answer_to_wire(Lost())
    with pytest.raises(InvalidArgument):
        chained.sequencer_request_from_wire(pb.SequencerRequest())
    with pytest.raises(InvalidArgument):
        chained.projection_from_wire(pb.Projection(loglet_id=1))
