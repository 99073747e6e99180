"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import signal

import forked_programs
import pytest
from hypothesis import settings
from old_arrivals import LongAgo

from loomlog.metadata.logs.arrivals import Arrivals

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("loomlog", deadline=None)
settings.load_profile("loomlog")

# A shell starts background jobs with SIGINT ignored, and children inherit that: the commands that
# tests interrupt would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

forked_programs.install()


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: nobody need look through them for garbage again.
    Simulations do that once a seed, which is a quarter of their time otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def arrived_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries count as old as their timestamps say: nobody knows that they have just arrived."""
    monkeypatch.setattr(Arrivals, "arrived_by", LongAgo.arrived_by)
