"""Transactions under faults, from one seed each; and rules that, broken, must be found."""

from __future__ import annotations

from typing import Any

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.client.transactions import transaction
from loomlog.client.transactions.decisions import Decisions
from loomlog.core.chained import append
from loomlog.core.chained.chain import Block
from loomlog.core.chained.messages import Found, NotWritten
from loomlog.core.chained.read import read_at
from loomlog.core.transactions import AppendParts, Reserve, Write

CHUNKS = 100
SEEDS_PER_CHUNK = 3


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_transactions_are_seen_as_a_whole_or_not_at_all(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(Choice(seed, workload="transactions"))
        assert outcome.error is None, f"{outcome.choice.replay}\n{outcome.error}"


# ---- negative controls


def is_found(by: str, first: int = 0, seeds: int = 40) -> bool:
    choices = (Choice(seed, workload="transactions") for seed in range(first, first + seeds))
    errors = (run_seed(choice).error for choice in choices)
    return any(error is not None and by in error for error in errors)


def test_a_writer_that_decides_before_its_parts_are_there_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_early() -> Any:
        while True:
            cell = yield Reserve()
            written = yield Write(cell)
            placed = yield AppendParts(cell)
            if written:
                return placed

    monkeypatch.setattr(transaction, "commit", too_early)
    assert is_found(by="but not in")


def test_readers_that_do_not_ask_for_decisions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def always(self: Decisions, cell: Any) -> bool:
        return True

    monkeypatch.setattr(Decisions, "is_committed", always)
    assert is_found(by="but not in", first=1)


def test_readers_that_pass_over_what_is_not_decided_yet_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_deciding(projection: Any, ticket: Any, producer_id: int, *, fill: bool) -> Any:
        outcome = yield from read_at(projection, ticket.first)
        match outcome:
            case Found(block):
                return _is_of(block, producer_id)
            case NotWritten():
                return False
        return outcome

    monkeypatch.setattr(append, "settle", without_deciding)
    assert is_found(by="missed", first=3)


def test_readers_that_take_any_block_for_the_decision_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later epoch gives positions again that an earlier one had reserved."""
    settle = append.settle

    def any_block(projection: Any, ticket: Any, producer_id: int, *, fill: bool) -> Any:
        outcome = yield from read_at(projection, ticket.first)
        if isinstance(outcome, Found) and not outcome.block.is_junk:
            return True
        return (yield from settle(projection, ticket, producer_id, fill=fill))

    monkeypatch.setattr(append, "settle", any_block)
    assert is_found(by="is only in", first=62)


def _is_of(block: Block, producer_id: int) -> bool:
    return not block.is_junk and block.producer_id == producer_id
