"""Swaps in etcd while answers are lost: each happens once, and its outcome is known.

etcd is played by a dictionary here; tests/conformance has the tests with real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("aetcd")

from loomlog import limits
from loomlog.errors import Conflict, NotLeader, SwapUnknown, Unavailable
from loomlog.metadata.store.contract import Fence
from loomlog.metadata.store.etcd.connection import AnswerLost, Keys, LeaseGone, rpc
from loomlog.metadata.store.etcd.swaps import Swaps

Answer = Callable[[Any], Any]


class PlayedEtcd:
    """A connection to one member with a few keys. What is in `fates` happens to the next
    transactions: "lost" on the way there, or only the "answer"."""

    def __init__(self) -> None:
        self.values: dict[bytes, tuple[bytes, int]] = {}  # with revisions
        self.revision = 1
        self.fates: list[str] = []
        self.leases = 0
        self.lease_gone = False
        self.kv = self.lease = self

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + 0.2

    def check(self) -> None:
        pass

    async def ask(self, method: Callable[[Any], Answer], request: Any, deadline: float) -> Any:
        while True:
            try:
                return await self.ask_once(method, request, deadline)
            except AnswerLost as lost:
                if "never" in self.fates:
                    raise Unavailable(str(lost)) from None

    async def ask_once(self, method: Callable[[Any], Answer], request: Any, deadline: float) -> Any:
        fate = self.fates[0] if self.fates and isinstance(request, rpc.TxnRequest) else ""
        if fate and fate != "never":
            self.fates.pop(0)
        if fate in ("lost", "never"):
            raise AnswerLost("it did not arrive")
        answer = method(self)(request)
        if fate == "answer":
            raise AnswerLost("the answer did not arrive")
        return answer

    # ---- as etcd

    def Txn(self, request: Any) -> Any:
        ok = all(self._version(each.key) == each.mod_revision for each in request.compare)
        operations = request.success if ok else request.failure
        if any(each.HasField("request_range") for each in operations):
            responses = [self._read(each.request_range) for each in operations]
            return rpc.TxnResponse(succeeded=ok, responses=responses)
        self.revision += 1
        for each in operations:
            if each.HasField("request_put"):
                self.values[each.request_put.key] = each.request_put.value, self.revision
            else:
                self.values.pop(each.request_delete_range.key, None)
        return rpc.TxnResponse(succeeded=ok, header=rpc.ResponseHeader(revision=self.revision))

    def Put(self, request: Any) -> Any:
        if self.lease_gone:
            self.lease_gone = False
            raise LeaseGone
        self.revision += 1
        self.values[request.key] = request.value, self.revision
        return rpc.PutResponse(header=rpc.ResponseHeader(revision=self.revision))

    def LeaseGrant(self, request: Any) -> Any:
        self.leases += 1
        return rpc.LeaseGrantResponse(ID=self.leases)

    def _version(self, key: bytes) -> int:
        return self.values.get(key, (b"", 0))[1]

    def _read(self, request: Any) -> Any:
        found = rpc.RangeResponse()
        if request.key in self.values:
            value, version = self.values[request.key]
            found.kvs.add(key=request.key, value=value, mod_revision=version)
        return rpc.ResponseOp(response_range=found)


@pytest.fixture
def etcd() -> PlayedEtcd:
    return PlayedEtcd()


@pytest.fixture
def swaps(etcd: PlayedEtcd) -> Swaps:
    return Swaps(etcd, Keys("test"))  # type: ignore[arg-type]


def value_of(etcd: PlayedEtcd, key: str) -> bytes | None:
    found = etcd.values.get(Keys("test").key(key))
    return None if found is None else found[0]


async def test_versions_are_compared_and_grow(etcd: PlayedEtcd, swaps: Swaps) -> None:
    first = await swaps.swap("k", 0, b"1", ())
    second = await swaps.swap("k", first, b"2", ())
    assert second > first
    with pytest.raises(Conflict):
        await swaps.swap("k", first, b"3", ())
    assert value_of(etcd, "k") == b"2"
    await swaps.swap("k", second, None, ())
    assert value_of(etcd, "k") is None
    lanes = len(etcd.values)
    assert lanes == 1, "one swap after the other needs one lane"


@pytest.mark.parametrize("value", [b"x", None])
@pytest.mark.parametrize(
    "fates",
    [
        ["lost"],
        ["answer"],
        ["lost", "lost"],
        ["lost", "answer"],  # the second: of the transaction that asks about the first
        ["answer", "lost"],
        ["answer", "answer"],
        ["lost", "answer", "answer"],
    ],
)
async def test_a_swap_without_an_answer_happens_once(
    etcd: PlayedEtcd, swaps: Swaps, value: bytes | None, fates: list[str]
) -> None:
    before = await swaps.swap("k", 0, b"before", ())
    etcd.fates = fates
    version = await swaps.swap("k", before, value, ())
    assert not etcd.fates
    assert value_of(etcd, "k") == value
    if value is not None:
        assert etcd.values[Keys("test").key("k")][1] == version


async def test_what_cannot_be_settled_is_unknown(etcd: PlayedEtcd, swaps: Swaps) -> None:
    before = await swaps.swap("k", 0, b"before", ())
    etcd.fates = ["answer", "never"]
    with pytest.raises(SwapUnknown, match="may or may not have been changed"):
        await swaps.swap("k", before, b"after", ())
    assert value_of(etcd, "k") == b"after"
    etcd.fates.clear()
    with pytest.raises(Conflict):
        await swaps.swap("k", before, b"again", ())


async def test_nothing_is_written_once_a_fence_fell(etcd: PlayedEtcd, swaps: Swaps) -> None:
    fence = await swaps.swap("lease", 0, b"mine", ())
    await swaps.swap("lease", fence, b"another's", ())
    with pytest.raises(NotLeader):
        await swaps.swap("k", 0, b"x", (Fence("lease", fence),))
    assert value_of(etcd, "k") is None


async def test_a_lane_that_etcd_cleared_is_replaced(etcd: PlayedEtcd, swaps: Swaps) -> None:
    before = await swaps.swap("k", 0, b"1", ())
    [lane] = [key for key in etcd.values if key != Keys("test").key("k")]
    del etcd.values[lane]
    await swaps.swap("k", before, b"2", ())
    assert value_of(etcd, "k") == b"2"
    assert lane not in etcd.values


async def test_a_lease_that_is_gone_is_taken_anew(etcd: PlayedEtcd, swaps: Swaps) -> None:
    etcd.lease_gone = True
    await swaps.swap("k", 0, b"1", ())
    assert etcd.leases == 2


async def test_too_many_swaps_at_once_are_refused(etcd: PlayedEtcd, swaps: Swaps) -> None:
    for _ in range(limits.ETCD_SWAPS_MAX):
        await swaps._under_way.acquire()
    with pytest.raises(Unavailable, match="too many changes"):
        await swaps.swap("k", 0, b"1", ())
    assert value_of(etcd, "k") is None
