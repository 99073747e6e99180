"""Subscriptions of a replica, at a real node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node_rig import STREAM, Nodes

from loomlog.batch import split
from loomlog.errors import LoomError
from loomlog.net.connection import Connection
from loomlog.wire import loomlog_pb2 as pb


async def test_a_subscription_that_gets_credit_while_it_drains_is_not_called_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer without batches says that everything up to its watermark was sent: the reader then
    drops whatever follows below it."""
    draining, writable = asyncio.Event(), asyncio.Event()

    async def drain(self: Connection[pb.Frame]) -> None:
        draining.set()
        await writable.wait()

    monkeypatch.setattr(Connection, "drain", drain)
    answers: list[list[int]] = []  # the last LLSN of each batch
    complete = asyncio.Event()

    def answered(answer: pb.Frame | LoomError, payload: memoryview) -> None:
        if isinstance(answer, pb.Frame):  # else the connection is closed, at the end
            answers.append([header.last_llsn for header, _ in split(payload)])
            if not payload or last in answers[-1]:
                complete.set()

    async with Nodes(tmp_path, 1) as nodes:
        await nodes.add(1)
        await nodes.run_alone(1)
        last = await nodes.append(1, 1, 3)
        connection = await nodes.client(1)
        wanted = pb.Subscribe(log_stream_id=STREAM, first_llsn=1, credit_bytes=1)
        subscription = connection.call(pb.Frame(subscribe=wanted), (), answered, many=True)
        await draining.wait()

        credit = pb.SubscriptionCredit(subscription_id=subscription, bytes=2**20)
        connection.send(pb.Frame(subscription_credit=credit))
        locate = pb.Locate(log_stream_id=STREAM, glsn=1)  # answered after the credit is taken
        await connection.request(pb.Frame(locate=locate))
        writable.set()
        await asyncio.wait_for(complete.wait(), 10)

    assert all(answers)
    assert answers[-1][-1] == last
