"""Negative controls: the chained protocol with one rule left out, which the judge must notice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import chained_parties
import pytest
from chained_parties import Party
from chained_world import ChainedWorld
from memory_tables import MemoryTable
from violation import finds

from loomlog.core.chained import read, reconfigure, replica
from loomlog.core.chained.append import Appended, Overtaken, append, resolve
from loomlog.core.chained.chain import Block, Projection, Replica
from loomlog.core.chained.messages import (
    Answer,
    Beyond,
    Found,
    NotWritten,
    Reading,
    Refused,
    Request,
    Steps,
    Stop,
    Ticket,
    Trimmed,
    first_stop,
    stopped,
)
from loomlog.core.chained.newcomer import Newcomer
from loomlog.core.chained.read import write_down
from loomlog.core.chained.reconfigure import (
    Goal,
)
from loomlog.core.chained.replica import Change, Put
from loomlog.core.chained.sequencer import Sequencer
from loomlog.core.requests import Service
from loomlog.types import Glsn

SEEDS = 400
Patch = pytest.MonkeyPatch


def notices(complaint: str, make: type[ChainedWorld] = ChainedWorld, *, first: int = 0) -> bool:
    """Return whether the judge complains in these words (a pattern), with a seed from `first` on;
    that one did when the test was written."""
    return finds(complaint, make, range(first, first + SEEDS)) is not None


def test_an_append_that_only_the_head_has_is_acknowledged(monkeypatch: Patch) -> None:
    def hasty(
        projection: Projection, ticket: Ticket, block: Block
    ) -> Steps[Appended | Overtaken | Stop]:
        head = projection.chain_of(block.first)[:1]
        refusal = yield from write_down(projection.epoch, head, block)
        return Appended() if refusal is None else stopped(refusal)

    monkeypatch.setattr(chained_parties, "append", hasty)
    assert notices("is not on")


def test_a_ticket_is_used_in_a_newer_epoch(monkeypatch: Patch) -> None:
    def stubborn(projection: Projection, block: Block) -> Steps[Appended | Overtaken | Stop]:
        ticket = Ticket(block.first, block.count, projection.epoch)
        return (yield from append(projection, ticket, block))

    monkeypatch.setattr(chained_parties, "resolve", stubborn)
    assert notices("showed .* now", first=82)


def test_a_chain_that_became_too_short_is_enough(monkeypatch: Patch) -> None:
    def content(projection: Projection, block: Block) -> Steps[Appended | Overtaken | Stop]:
        return (yield from resolve(projection._replace(least=1), block))

    monkeypatch.setattr(chained_parties, "resolve", content)
    assert notices("is acknowledged with . copies")


def test_positions_of_a_chain_that_is_too_short_are_handed_out(monkeypatch: Patch) -> None:
    def content(
        projection: Projection, ticket: Ticket, block: Block
    ) -> Steps[Appended | Overtaken | Stop]:
        return (yield from append(projection._replace(least=1), ticket, block))

    def generous(projection: Projection, remembered: int) -> Sequencer:
        return Sequencer(projection._replace(least=1), remembered)

    monkeypatch.setattr(chained_parties, "append", content)
    monkeypatch.setattr(chained_parties, "Sequencer", generous)
    assert notices("is acknowledged with . copies")


def test_replicas_serve_every_epoch(monkeypatch: Patch) -> None:
    monkeypatch.setattr(replica, "_check_epoch", lambda request, standing: None)
    assert notices("showed .* now", first=24)


def test_a_node_that_comes_back_keeps_what_it_had(monkeypatch: Patch) -> None:
    first_birth = next(ChainedWorld(0).projection.replicas).birth

    def found_again(projection: Projection, newcomer: Replica) -> Steps[Newcomer]:
        yield from ()
        return Newcomer(newcomer._replace(birth=first_birth), projection.first)

    monkeypatch.setattr(chained_parties, "create", found_again)
    assert notices("different blocks|showed .* now", first=8)


def test_a_newcomer_joins_empty(monkeypatch: Patch) -> None:
    def no_copy(*args: object, **_: object) -> Steps[object]:
        yield from ()
        return args[2]

    monkeypatch.setattr(reconfigure, "copy", no_copy)
    assert notices("is not on")


def test_nothing_written_is_said_although_an_epoch_may_be_over(monkeypatch: Patch) -> None:
    def only_trimmed(answers: Iterable[Answer], *expected: type[Answer]) -> Stop | None:
        stop = first_stop(answers, *expected)
        return stop if isinstance(stop, Trimmed) else None

    monkeypatch.setattr(read, "first_stop", only_trimmed)
    assert notices("is said to be unwritten")


class MeasuredWorld(ChainedWorld):
    """Clients mostly ask where the log ends."""

    uses = (30, 5, 5, 60, 0)


def test_the_tail_is_what_was_handed_out(monkeypatch: Patch) -> None:
    def handed_out(projection: Projection) -> Steps[Glsn | Stop]:
        end = yield from read.find_end(projection)
        return end - 1 if isinstance(end, int) else end

    monkeypatch.setattr(chained_parties, "find_tail", handed_out)
    assert notices("the tail is said to be", MeasuredWorld)


def test_the_tail_is_told_although_an_epoch_may_be_over(monkeypatch: Patch) -> None:
    def only_tails(answers: Iterable[Answer], *expected: type[Answer]) -> Stop | None:
        stop = first_stop(answers, *expected)
        told = any(isinstance(answer, Beyond) for answer in answers)
        return None if told else stop

    monkeypatch.setattr(read, "first_stop", only_tails)
    assert notices("the tail is said to be", first=29)


def test_a_block_at_the_head_is_shown_before_it_is_at_the_tail(monkeypatch: Patch) -> None:
    def eager(projection: Projection, found: Found, holders: object) -> Steps[Reading]:
        yield from ()
        return found

    monkeypatch.setattr(read, "_complete", eager)
    assert notices("showed .* now|is said to be unwritten", first=156)


def test_a_hole_is_filled_with_a_guess(monkeypatch: Patch) -> None:
    known = read._length

    def guess(
        projection: Projection, address: Glsn, certain: bool
    ) -> Steps[int | NotWritten | Stop]:
        length = yield from known(projection, address, certain)
        return 2 if length == 1 else length

    monkeypatch.setattr(read, "_length", guess)
    assert notices("showed .* now")


class SecondSequencer(ChainedWorld):
    """A lost sequencer is made again, in the same epoch, behind what is written."""

    def _serve(self, service: Service, request: Request, party: Party) -> Answer:
        answer = super()._serve(service, request, party)
        if service is Service.SEQUENCER and isinstance(answer, Refused):
            if not any(self.projection.sequencer in r.sequencers for r in self.repositories):
                again = self.projection._replace(start=max(self.projection.start, self._end()))
                self.repositories[-1].sequencers[again.sequencer] = Sequencer(again)
            answer = super()._serve(service, request, party)
        return answer

    def _end(self) -> Glsn:
        lasts = [self.nodes[r.node_id].table.look(r).last() for r in self.projection.replicas]
        return max((last.end for last in lasts if last is not None), default=1)


def test_an_epoch_has_two_sequencers() -> None:
    assert notices("showed .* now", SecondSequencer, first=82)


def test_positions_of_a_lost_chain_are_handed_out_again(monkeypatch: Patch) -> None:
    def no_room(
        projection: Projection, goal: Goal, handed_out: Glsn, trimmed: Glsn, *, did_without: bool
    ) -> Glsn:
        return handed_out

    monkeypatch.setattr(chained_parties, "least_start", no_room)
    assert notices("is not on", first=104)


def test_what_a_chain_lost_is_not_reported(monkeypatch: Patch) -> None:
    monkeypatch.setattr(reconfigure, "with_losses", lambda projection, lost, first: projection)
    assert notices("nobody says so", first=42)


def test_blocks_are_not_synced(monkeypatch: Patch) -> None:
    commit = MemoryTable.commit

    def careless(
        self: MemoryTable, changes: Sequence[tuple[Replica, Change]], *, sync: bool
    ) -> None:
        commit(self, changes, sync=not all(isinstance(change, Put) for _, change in changes))

    monkeypatch.setattr(MemoryTable, "commit", careless)
    assert notices("is gone|is said to be unwritten", first=107)
