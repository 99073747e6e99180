"""Logs of every protocol while a storage node that was taken over plays the others.

Every host has a certificate. The impostor has one of a node, overhears what nodes send to each
other and to metadata repositories, and sends that again, as it was or altered, in its own name: it
has nothing to say in any log. Nothing of it may be stored, and nobody else may be hindered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

import certificates

from loomlog import batch, columns
from loomlog.core.principal import Kind
from loomlog.errors import LoomError
from loomlog.net.connection import Connection
from loomlog.net.endpoints import Links
from loomlog.net.service import OnlyAnswers
from loomlog.testing.history import History
from loomlog.testing.sim.faults import FaultPlan
from loomlog.testing.sim.host import Process
from loomlog.testing.sim.loop import SimLoop
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import Buffer
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.permissions import rule_of
from workloads.cluster import Run
from workloads.protocols import ALL, run_protocols

NUMBER = 9  # of its node, which no cluster has
HOST = f"vsn-{NUMBER}"
OVERHEARD_MAX = 20  # of each kind
PAUSE_MAX_S = 0.02
ANSWER_S = 0.3
AS_IT_WAS = 0.3  # of what it sends
FORGED = 0.6  # of the entries in the rest


class Overheard(NamedTuple):
    """A frame that a node has sent."""

    to: str
    frame: pb.Frame
    payload: bytes


Memory: TypeAlias = defaultdict[str, deque[Overheard]]  # by kind


def impostors(sim: Simulation, plan: FaultPlan) -> History:
    """Run the workload of this module."""
    overheard: Memory = defaultdict(lambda: deque(maxlen=OVERHEARD_MAX))
    with certificates.in_force(sim), _overhearing(overheard):
        return run_protocols(
            sim, plan, mortals=0, among=ALL, others={HOST: partial(play, overheard)}
        )


@contextmanager
def _overhearing(overheard: Memory) -> Iterator[None]:
    send = Connection.send

    def heard(self: Connection[Any], frame: Any, payload: Sequence[Buffer] = ()) -> None:
        kind = self.codec.kind(frame)
        rule = rule_of(kind, frame)
        if "node" in rule.servers and not self._accepted and _host() != HOST:
            part = getattr(getattr(frame, kind), "kind", "")
            copy = pb.Frame()
            copy.CopyFrom(frame)
            found = Overheard(self.peer, copy, b"".join(payload))
            overheard[f"{kind} {part}"].append(found)
        send(self, frame, payload)

    with patch.object(Connection, "send", heard):
        yield


def _host() -> str:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop.host


async def play(overheard: Memory, run: Run, process: Process) -> None:
    """Send what others have sent, until all is calm."""
    random = run.random
    credentials = certificates.SimCredentials()
    codec = Codec("vsn", cluster_id=certificates.CLUSTER_ID, credentials=credentials)
    links = Links(codec, OnlyAnswers())
    while not run.calm:
        await asyncio.sleep(random.random() * PAUSE_MAX_S)
        if overheard:
            kind = random.choice(list(overheard))
            to, frame, payload = altered(random, random.choice(list(overheard[kind])))
            try:
                async with asyncio.timeout(ANSWER_S):
                    connection = await links.connect(to, (_kind_of(to), 0))
                    if frame.id:
                        await connection.request(frame, [payload] if payload else ())
                    else:
                        connection.send(frame, [payload] if payload else ())
            except (LoomError, TimeoutError):
                pass
    links.close()


def _kind_of(address: str) -> Kind:
    return "metadata" if address.startswith("vmr") else "node"


def altered(random: Random, found: Overheard) -> Overheard:
    """Return what was overheard, often with another number or other entries in it."""
    frame = pb.Frame()
    frame.CopyFrom(found.frame)
    if random.random() < AS_IT_WAS:
        return Overheard(found.to, frame, found.payload)
    body = getattr(frame, str(frame.WhichOneof("body")))
    if found.payload and random.random() < FORGED:
        return Overheard(found.to, frame, _forged(body, found.payload))
    numbers = [
        (field.name, value)
        for field, value in body.ListFields()
        if type(value) is int and field.name != "kind"
    ]
    if numbers:
        name, value = random.choice(numbers)
        setattr(body, name, max(0, random.choice((value - 1, value + 1, NUMBER))))
    return Overheard(found.to, frame, found.payload)


def _forged(body: Any, payload: bytes) -> bytes:
    """Return an entry that nobody has appended, to be stored behind the ones that were."""
    header = batch.split(payload)[-1][0]
    forged = columns.encode([b"forged"], timestamps_us=1)
    if header.first_position:
        batch.assign_place(forged, header.stream_id, header.epoch, header.last_position + 1)
    else:
        batch.assign_llsn(forged, header.stream_id, header.epoch, header.last_llsn + 1)
    if body.DESCRIPTOR.name == "CopysetRequest":
        body.record.first += body.record.count
        body.record.count = 1
    return bytes(forged)
