"""The loglets of a log by their classes, for tests of one protocol."""

from __future__ import annotations

from loomlog.client.log import Log
from loomlog.client.loglets.chained.chains import Chains
from loomlog.client.loglets.chained.loglet import ChainedLoglet
from loomlog.client.loglets.copyset.loglet import CopysetLoglet


def chains_of(log: Log) -> Chains:
    loglet = log._parts.loglets.of("chained")
    assert isinstance(loglet, ChainedLoglet)
    return loglet.chains


def copysets_of(log: Log) -> CopysetLoglet:
    loglet = log._parts.loglets.of("copyset")
    assert isinstance(loglet, CopysetLoglet)
    return loglet
