"""Views of segments while the metadata repository refuses to describe their log."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.loglets.chained.chains import Chains
from loomlog.client.loglets.copyset.segments import Segments
from loomlog.client.servers import Connections
from loomlog.core.chained.chain import first_projection
from loomlog.core.copyset.log_state import first_state
from loomlog.core.copyset.nodeset import Member
from loomlog.errors import Trimmed, Unavailable
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.chained import projection_to_wire
from loomlog.wire.copyset import state_to_wire

STREAM = 2


def chained(log: CachedLog) -> Callable[[int], object]:
    projection = first_projection(1, [[1]], birth=1, sequencer=1)
    stream = pb.LogStream(log_stream_id=STREAM, projection=projection_to_wire(projection, {1: "a"}))
    log.last_known = pb.Log(log_id=1, streams=[stream])
    return Chains(
        log, cast(Client, SimpleNamespace(metadata=None, connections=None, rng=None))
    ).view


def copyset(log: CachedLog) -> Callable[[int], object]:
    state = state_to_wire(1, first_state([Member(1)], replication=1), [])
    log.last_known = pb.Log(log_id=1, streams=[pb.LogStream(log_stream_id=STREAM, copyset=state)])
    return Segments(log, Connections.__new__(Connections)).view


@pytest.mark.parametrize("make", [chained, copyset])
async def test_a_log_that_is_not_known_now_is_not_called_trimmed(
    make: Callable[[CachedLog], Callable[[int], object]],
) -> None:
    log = CachedLog.__new__(CachedLog)
    log.name = "log"
    view = make(log)
    known = view(STREAM)
    log.last_known = None  # the metadata repository answered RolledBack
    assert view(STREAM) == known
    with pytest.raises(Unavailable):
        view(STREAM + 1)
    log.last_known = pb.Log(log_id=1)
    with pytest.raises(Trimmed):
        view(STREAM)
