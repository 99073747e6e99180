"""Invalid arguments raise an error of one clear line that names the parameter."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest

import loomlog
from loomlog.client.blocking.subscriptions import BlockingSubscription
from loomlog.codecs import JSON
from loomlog.errors import InvalidArgument, LoomError, Timeout
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing import LocalCluster

BAD: Final[list[Any]] = [
    *(None, "x", "", "\ud800", "a\nb", b"x", -1, 2**70, 1.5, float("nan"), True, object()),
    *([], [None], {}, {1: b"x"}),
]
ROWS = pa.record_batch({"value": [b"x"]})
GOOD: Final[dict[str, Any]] = {  # what else a call needs; nothing here can do harm
    "value": b"v",
    "values": [b"v"],
    "records": ROWS,
    "log": "events",
    "name": "other",
    "position": 1,
    "start": 1,
    "stop": 1,
    "stream": 99,
    "start_llsn": 1,
    "stop_llsn": 1,
    "moment": 0.0,
    "count": 1,
    "holder": "me",
    "ttl_s": 1.0,
    "epoch": 1,
    "expected": 7,
    "node": 99,
    "from_node": 98,
    "to_node": 99,
    "volume": "/x",
    "within_s": 1.0,
    "member": 9,
    "address": "127.0.0.1:1",
    "subject": "ann",
    "allow": ["read:x"],
    "enforce": False,
    "sequence": 1,
    "first_position": 1,
    "receipt": "0.1",
    "positions": [1],
    "timeout_s": 5.0,
}
ENDS = {"close", "delete", "forget", "release", "delete_log"}  # what others need
SECRETS = {"rotate_token_key"}


def calls(target: object, **good: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Return a call for each method, parameter and bad value, and its description."""
    for name, method in inspect.getmembers(target, callable):
        if name.startswith("_") or name in ENDS | SECRETS:
            continue
        parameters = [*inspect.signature(method).parameters.values()]
        needed = {
            p.name: (GOOD | good)[p.name]
            for p in parameters
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
        for p in parameters:
            for bad in BAD:
                text = f"{type(target).__name__}.{name}({p.name}={bad!r})"
                if p.kind is p.VAR_POSITIONAL:
                    yield text, partial(method, bad)
                elif p.kind is not p.VAR_KEYWORD:
                    given = needed | {p.name: bad}
                    if "timeout_s" in inspect.signature(method).parameters:
                        given.setdefault("timeout_s", 5.0)
                    yield text, partial(method, **given)


def check_error(error: Exception, text: str) -> None:
    assert isinstance(error, LoomError), f"{text}: {error!r}"
    assert type(error) is not LoomError, f"{text}: {error!r}"
    assert str(error), text
    assert "\n" not in str(error), f"{text}: {error}"


async def finish(result: Any) -> None:
    """Wait for the result of a call, but not for entries that are never appended."""
    if inspect.isasyncgen(result):
        first = asyncio.ensure_future(anext(result, None))
        await asyncio.wait([first], timeout=0.2)
        if not first.done():
            first.cancel()
            await asyncio.wait([first])
        elif (error := first.exception()) is not None:
            raise error
    elif isinstance(result, Awaitable):
        async with asyncio.timeout(30):
            await result


async def test_every_method_refuses_bad_arguments_in_one_line() -> None:
    async with LocalCluster(nodes=1) as cluster, AsyncExitStack() as stack:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"{}", b"k")
        queue = await stack.enter_async_context(log.queue("q"))
        writer = await log.writer("w")
        entry = await log.read(1)
        targets: list[tuple[object, dict[str, Any]]] = [
            (cluster, {}),
            (log, {"name": "other"}),
            (await stack.enter_async_context(log.group("g")), {}),
            (queue, {}),
            (queue.visits, {}),
            (log.pipeline(), {}),
            (cluster.transaction(), {}),
            (log.checkpoint("c"), {}),
            (cluster.register("r"), {}),
            (await cluster.acquire_lease("l", "me", 60.0), {}),
            (writer, {"staged": await log.stage(ROWS)}),
            (cluster.log("events", JSON), {"entry": entry}),
        ]
        for target, good in targets:
            for text, call in calls(target, **good):
                try:
                    await finish(call())
                except Exception as error:
                    check_error(error, text)


def finish_blocking(result: Any) -> None:
    if isinstance(result, BlockingSubscription):
        with result:
            next(result, None)
    elif hasattr(result, "result"):
        result.result(30)


async def test_the_same_without_an_event_loop() -> None:
    def story(address: str) -> None:
        with loomlog.connect_sync(address) as cluster, ExitStack() as stack:
            log = cluster.create_log("events", replicas=1)
            log.append(b"{}", b"k")
            lease = cluster.acquire_lease("l", "me", 60.0)
            writer = log.writer("w")
            coded = cluster.log("events", JSON)
            targets: list[tuple[object, dict[str, Any]]] = [
                (cluster, {}),
                (log, {}),
                (stack.enter_context(log.group("g")), {}),
                (stack.enter_context(log.queue("q")), {}),
                (log.pipeline(), {}),
                (cluster.transaction(), {}),
                (log.checkpoint("c"), {}),
                (cluster.register("r"), {}),
                (lease, {}),
                (writer, {"staged": log.stage(ROWS)}),
                (coded, {"entry": log.read(1)}),
            ]
            for target, good in targets:
                for text, call in calls(target, **good):
                    try:
                        finish_blocking(call())
                    except Timeout:
                        pass  # nobody appends what it waits for
                    except Exception as error:
                        check_error(error, text)

    local = LocalCluster(nodes=1)
    async with local:
        await asyncio.to_thread(story, local.address)


@pytest.mark.parametrize("bad", [None, "x", 5, object(), [1]])
async def test_what_is_published_is_named(bad: Any) -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        writer = await log.writer("w")
        with pytest.raises(InvalidArgument, match=r"^staged must be of type Staged, not "):
            await writer.publish(1, bad)
        with pytest.raises(InvalidArgument, match="RecordBatch"):
            await log.stage(bad)
        with pytest.raises(InvalidArgument, match=r"^each of grants must be of type Grant, not"):
            await cluster.grant(bad)


async def test_bad_arguments() -> None:
    async with LocalCluster(nodes=1) as cluster:
        no: Any = "no"
        no_list: Any = 5
        with pytest.raises(InvalidArgument, match=r"^exist_ok must be True or False, not 'no'$"):
            await cluster.create_log("events", replicas=1, exist_ok=no)
        log = await cluster.create_log("events", replicas=1)
        for name, one in (("keys", b"k"), ("timestamps", 1.0), ("headers", {"h": b"x"})):
            more: dict[str, Any] = {name: [one]}
            with pytest.raises(InvalidArgument, match=f"^{name}: 1 given for 2 values; give one"):
                await log.append_many([b"a", b"b"], **more)
            with pytest.raises(InvalidArgument, match=f"^{name} must be a list, one per value"):
                await log.append_many([b"a"], **{name: no_list})
        await log.append(b"a")
        beyond = "^start is 3, but the last position of log 'events' is 1: begin at 2 or before$"
        with pytest.raises(InvalidArgument, match=beyond):
            async with log.group("g", start=3):
                pass
        async with log.group("g", start=2):
            pass
        with pytest.raises(InvalidArgument, match=beyond):
            await log.group("g").reset(3)


@pytest.mark.parametrize("protocol", [ORDERED, CHAINED, COPYSET])
async def test_a_refused_append_takes_no_position(protocol: str) -> None:
    """A `chained` client asks for positions while it encodes a batch: unused ones are holes, for
    which readers wait."""
    tables = [
        pa.record_batch({"value": [1]}),
        pa.record_batch({"value": [b"a", None]}),
        pa.record_batch({"value": [b"a"], "headers": [b"no headers"]}),
    ]
    no_keys: list[Any] = [5]
    lists: list[Any] = [[b"a", "x"], [b"a", None], [b"a", 5]]
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", protocol, replicas=1)
        before = await log.append(b"before")
        for tail in (None, before.position):
            for values in lists:
                with pytest.raises(InvalidArgument):
                    await log.append_many(values, expected_tail=tail)
            for records in tables:
                with pytest.raises(InvalidArgument):
                    await log.append_arrow(records, expected_tail=tail)
            with pytest.raises(InvalidArgument):
                await log.append_many([b"a"], no_keys, expected_tail=tail)
        after = await log.append(b"after")
        assert after.position == before.position + 1
