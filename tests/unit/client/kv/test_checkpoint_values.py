"""Checkpoints, registers and leases: what is refused before anything is sent, and what is stored.

On servers: tests/cluster/test_checkpoints.py and tests/cluster/test_registers_cluster.py."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from loomlog.client.kv.checkpoints import CheckpointInfo, decode, encode
from loomlog.client.kv.leases import Lease, Leases
from loomlog.client.kv.registers import Registers, Versioned
from loomlog.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    SwapUnknown,
    Unavailable,
    VersionMismatch,
)
from loomlog.wire import loomlog_pb2 as pb


class PlayedMetadata:
    """Answers every request with what a function returns."""

    def __init__(self, answer: Callable[[pb.Frame], pb.Frame]) -> None:
        self.answer = answer
        self.asked: list[pb.Frame] = []

    async def request(self, frame: pb.Frame, **_: object) -> pb.Frame:
        self.asked.append(frame)
        return self.answer(frame)


class Values(Registers, Leases):
    """Registers and leases of a cluster."""

    def __init__(self, answer: Callable[[pb.Frame], pb.Frame]) -> None:
        self.played = PlayedMetadata(answer)
        self._metadata = self.played  # type: ignore[assignment]
        self._rng = random.Random(1)


def refuse(error: Exception) -> Callable[[pb.Frame], pb.Frame]:
    def answer(frame: pb.Frame) -> pb.Frame:
        raise error

    return answer


def test_a_checkpoint_belongs_to_one_log() -> None:
    info = CheckpointInfo(41, 1_700_000_000_000_000)
    assert decode(encode(info, 7), 7) == info
    assert decode(encode(info, 7), 8) is None, "it was of a deleted log of the same name"
    assert info.changed.year == 2023


def test_what_other_programs_wrote_is_no_checkpoint() -> None:
    value = encode(CheckpointInfo(1, 1), 7)
    for broken in (b"", b"{}", b"[1]", b"\xff", value.replace(b'"position"', b'"other"')):
        with pytest.raises(Corrupt, match="another program"):
            decode(broken, 7)
    with pytest.raises(VersionMismatch, match="update it"):
        decode(value.replace(b'"version": 1', b'"version": 2'), 7)


async def test_a_register_without_a_version_does_not_exist() -> None:
    found = pb.RegisterValue()
    values = Values(lambda _: pb.Frame(register_value=found))
    assert await values.register("r").get() is None
    found.value, found.version = b"x", 3
    assert await values.register("r").get() == Versioned(b"x", 3)


async def test_a_swap_without_an_answer_may_have_happened() -> None:
    values = Values(refuse(Unavailable("no answer")))
    with pytest.raises(SwapUnknown, match="read it before you repeat it"):
        await values.register("r").swap(b"x", 0)
    values.played.answer = refuse(Conflict("r has version 2"))
    with pytest.raises(Conflict):
        await values.register("r").swap(b"x", 1)
    tokens = {frame.swap_register.token for frame in values.played.asked}
    assert len(tokens) == 2, "the second is not a repetition of the first"
    assert 0 not in tokens


@pytest.mark.parametrize(
    ("value", "expected"), [("text", 0), (b"x", -1), (b"x", True), (None, -1), (b"x", "1")]
)
async def test_senseless_swaps_are_not_sent(value: bytes, expected: int) -> None:
    values = Values(refuse(AssertionError()))
    with pytest.raises(InvalidArgument):
        await values.register("r").swap(value, expected)
    assert not values.played.asked


async def test_registers_and_leases_are_listed_in_parts() -> None:
    names = [f"n{n}" for n in range(5)]

    def two(frame: pb.Frame) -> pb.Frame:
        asked = frame.list_registers.after or frame.list_leases.after
        left = [name for name in names if name > asked]
        if frame.HasField("list_leases"):
            leases = [pb.Lease(name=name, holder="h", epoch=1) for name in left[:2]]
            return pb.Frame(lease_list=pb.LeaseList(leases=leases, more=len(left) > 2))
        registers = [pb.RegisterValue(name=name, value=b"v", version=1) for name in left[:2]]
        return pb.Frame(register_list=pb.RegisterList(registers=registers, more=len(left) > 2))

    values = Values(two)
    assert list(await values.registers()) == names
    assert [lease.name for lease in await values.leases()] == names
    assert len(values.played.asked) == 6


async def test_a_lease_of_another_holder_is_not_acquired() -> None:
    values = Values(lambda _: pb.Frame(lease=pb.Lease(name="l", holder="b", epoch=4, ttl_s=5.0)))
    assert await values.acquire_lease("l", "a", 5.0) is None
    lease = await values.acquire_lease("l", "b", 5.0)
    assert isinstance(lease, Lease)
    assert (lease.epoch, lease.ttl_s) == (4, 5.0)
