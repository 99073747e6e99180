"""The limits of an identity."""

from __future__ import annotations

from collections import Counter

import pytest

from loomlog.core.usage import NO_LIMITS, Usage
from loomlog.errors import Busy
from loomlog.limits import IdentityLimits

SMALL = IdentityLimits(connections=1, requests=2, bytes=100, subscriptions=1)


def usage() -> Usage:
    return Usage("client alice", SMALL, Counter())


def test_requests_are_refused_until_one_is_answered() -> None:
    alice = usage()
    alice.begin(10)
    alice.begin(0)
    with pytest.raises(Busy, match="client alice has 2 requests under way here: wait for answers"):
        alice.begin(0)
    alice.end(10)
    alice.begin(0)
    assert alice.refusals == {"requests": 1}


def test_bytes_are_refused_but_a_single_request_may_have_any_size() -> None:
    alice = usage()
    alice.begin(1000)
    with pytest.raises(Busy, match="client alice has 100 bytes under way here"):
        alice.begin(1)
    alice.end(1000)
    alice.begin(60)
    with pytest.raises(Busy):
        alice.begin(41)
    alice.begin(40)
    assert (alice.bytes, alice.requests, alice.refusals) == (100, 2, {"bytes": 2})


def test_subscriptions_and_connections_are_refused() -> None:
    alice = usage()
    alice.connect()
    with pytest.raises(Busy, match="client alice has 1 connections to this server: close some"):
        alice.connect()
    alice.subscribe()
    with pytest.raises(Busy, match="client alice has 1 subscriptions at this server: end some"):
        alice.subscribe()
    alice.unsubscribe()
    alice.subscribe()
    assert alice.refusals == {"connections": 1, "subscriptions": 1}


def test_servers_have_no_limits() -> None:
    node = Usage("servers", NO_LIMITS, Counter())
    for _ in range(100_000):
        node.begin(1 << 30)
    assert not node.is_limited
