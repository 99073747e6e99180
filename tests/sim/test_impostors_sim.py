"""Servers with certificates under faults: their checks of senders stop an impostor, but no other
server. The negative controls leave out some of them."""

from __future__ import annotations

from typing import Any

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.net.identified import Identified
from loomlog.node.copyset.grants import Grants
from loomlog.node.ordered.service import OrderedService

CHUNKS = 4
SEEDS_PER_CHUNK = 6


def run(seed: int, workload: str = "impostors", *, certificates: bool = False) -> str | None:
    outcome = run_seed(Choice(seed, workload=workload, certificates=certificates))
    return f"{outcome.choice.replay}\n{outcome.error}" if outcome.error is not None else None


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_an_impostor_achieves_nothing(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed)
        assert error is None, error


@pytest.mark.parametrize(
    ("workload", "seeds"),
    [
        ("cluster", range(3)),
        ("copysets", range(3)),
        ("takeovers", range(3)),
        ("rebuilding", range(2)),
        *(
            pytest.param(workload, range(3, 15), marks=pytest.mark.long)
            for workload in ("cluster", "copysets", "takeovers", "rebuilding", "protocols")
        ),
    ],
)
def test_certificates_hinder_nobody(workload: str, seeds: range) -> None:
    for seed in seeds:
        error = run(seed, workload, certificates=True)
        assert error is None, error


# ---- negative controls


def is_found(first: int, seeds: int = 20) -> bool:
    return any(run(seed) is not None for seed in range(first, first + seeds))


def test_nodes_that_take_entries_from_anybody_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def anybody(self: OrderedService, *request: Any) -> None:
        pass

    monkeypatch.setattr(Identified, "require", lambda self, kind, number=0: None)
    monkeypatch.setattr(OrderedService, "check_replica", anybody)
    assert is_found(first=5)


def test_copies_that_anybody_may_store_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grants, "may", lambda self, connection, request, epoch: True)
    assert is_found(first=118)
