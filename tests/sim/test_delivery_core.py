"""Exactly-once delivery explored without a cluster, with the carrier of each protocol: every order
of what can happen to a few batches. The last tests break one rule each, and the exploration has to
object."""

from __future__ import annotations

from typing import Any

import pytest
from chained_delivery import ChainedWorld
from copyset_delivery import Call, CopysetWorld, ModelRetries
from delivery_world import DEADLINE_S, DeliveryWorld, Shape, explore, outcome
from ordered_delivery import ModelStream, OrderedWorld
from violation import Violation

from loomlog.client.loglets.copyset import carrier as copyset_carrier
from loomlog.client.loglets.copyset.carrier import CopysetAttempt
from loomlog.client.loglets.ordered.resolver import Resolver
from loomlog.core.chained import append as chained_append
from loomlog.core.chained.append import Overtaken
from loomlog.core.chained.chain import Block
from loomlog.core.chained.messages import Interrupted
from loomlog.core.delivery import (
    AT_ONCE,
    DOUBTFUL,
    EXACTLY_ONCE,
    QUEUED,
    RETRYING,
    SENT,
    SETTLED,
    WAITING,
    Action,
    Event,
    Progress,
    Rules,
    State,
)
from loomlog.errors import Conflict

# They wait for nothing, and compute for some ten seconds: minutes where many others compute, too.
pytestmark = pytest.mark.timeout(900)

SHAPES: dict[type[DeliveryWorld], list[Shape]] = {
    OrderedWorld: [
        Shape(cuts=2),
        Shape(refusals=1, disconnected=True),
        Shape(rejections=1, disconnected=True),
        Shape(forgotten=1, silences=1, cancels=1),
        Shape(batches=2),
        Shape(batches=2, refusals=1, cancels=1, epochs=0),
        Shape(streams=2),
        Shape(batches=3, epochs=0, cuts=0),  # one more than may be in flight
        Shape(conditional=True),
        Shape(conditional=True, batches=2, epochs=0),
    ],
    ChainedWorld: [
        Shape(),
        Shape(cuts=2, epochs=0),
        Shape(refusals=1, cancels=1, epochs=0),
        Shape(silences=1, epochs=0, cuts=0),
        Shape(fills=1, cuts=0),  # a reader was faster than the writer
        Shape(ends=1, epochs=0),
        Shape(trims=1),
        Shape(batches=2, epochs=0, cuts=0),
        Shape(conditional=True),
        Shape(conditional=True, fills=1, cuts=0),
        Shape(conditional=True, batches=2, epochs=0, cuts=0),
    ],
    CopysetWorld: [
        Shape(),
        Shape(cuts=2, epochs=0),
        Shape(refusals=1, cancels=1, epochs=0),
        Shape(rejections=1, refusals=1, disconnected=True, epochs=0),
        Shape(forgotten=1, silences=1, epochs=0),
        Shape(ends=1, epochs=0),
        Shape(batches=2, epochs=0, cuts=0),
        Shape(batches=2, cuts=0, refusals=1, epochs=0),
        Shape(conditional=True, epochs=0),
        Shape(conditional=True, batches=2, epochs=0, cuts=0),
    ],
}

# Rules that no exploration of a protocol uses. An `ordered` attempt reports every refusal. A
# `chained` attempt ends only when it knows the outcome, so its batch is never in doubt. A `copyset`
# attempt that is in doubt ignores refusals. Queues are the same for all: one protocol is enough.
QUEUE = {(QUEUED, e) for e in (Event.REJECTED, Event.OVERDUE, Event.CLOSED, Event.LOG_GONE)}
UNUSED: dict[type[DeliveryWorld], set[tuple[State, Event]]] = {
    OrderedWorld: {
        (WAITING, Event.CONFLICT),
        (WAITING, Event.DECLINED),
        (SENT, Event.SENT),
        (SENT, Event.DECLINED),
    },
    ChainedWorld: {
        *QUEUE,
        (WAITING, Event.REJECTED),
        (SENT, Event.CONFLICT),
        *((SENT, e) for e in (Event.REFUSED, Event.REJECTED, Event.LOST, Event.ABSENT)),
        *(rule for rule in EXACTLY_ONCE if rule[0] is DOUBTFUL),
    },
    CopysetWorld: {
        *QUEUE,
        (WAITING, Event.REJECTED),
        (WAITING, Event.CONFLICT),
        (SENT, Event.ABSENT),
        # A conflict of a batch in doubt needs another batch and a cut: that takes long.
        *((DOUBTFUL, e) for e in (Event.REFUSED, Event.REJECTED, Event.CONFLICT, Event.LOST)),
    },
}


@pytest.fixture(autouse=True)
def pauses_end_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copyset_carrier, "Retries", ModelRetries)


@pytest.mark.parametrize("world", SHAPES)
async def test_whatever_happens_a_batch_is_appended_once_or_its_caller_knows(
    world: type[DeliveryWorld],
) -> None:
    used = set()
    for shape in SHAPES[world]:
        exploration = explore(world, shape, EXACTLY_ONCE)
        appended = ("appended",) * (1 if shape.conditional else shape.batches)
        assert any(set(appended) <= set(found) for found in exploration.outcomes)
        assert shape.conditional or appended in exploration.outcomes
        used |= exploration.used
    assert set(EXACTLY_ONCE) - used == UNUSED[world]


@pytest.mark.parametrize("world", SHAPES)
async def test_at_once_never_says_that_what_is_stored_was_not_appended(
    world: type[DeliveryWorld],
) -> None:
    epochs = 1 if world is OrderedWorld else 0  # the others would take long
    explore(world, Shape(silences=1, epochs=epochs, twice=True), AT_ONCE)


@pytest.mark.parametrize("world", [OrderedWorld, CopysetWorld])
async def test_a_batch_that_is_refused_to_the_end_was_not_appended_for_certain(
    world: type[DeliveryWorld],
) -> None:
    """A client does not send it once more just before its deadline."""
    run = world(Shape(refusals=1, epochs=0, cuts=0), EXACTLY_ONCE)
    run.loop.now_s = DEADLINE_S - 0.1
    for step in ("refuse", "answer"):
        for name in [name for name in run.choices() if name.startswith(step)]:
            run.choose(name)
    assert run.batches[0].progress.state is RETRYING
    assert "rested 0" not in run.choices()
    run.choose("overdue")
    assert outcome(run.futures[0]) == "Unavailable"


FLAWS: dict[str, tuple[type[DeliveryWorld], State, Event, State, Action, Shape]] = {
    "a lost batch is attempted again": (
        *(OrderedWorld, SENT, Event.LOST, RETRYING, Action.RETRY),
        Shape(),
    ),
    "a refused repeat is attempted again": (
        *(OrderedWorld, DOUBTFUL, Event.REFUSED, RETRYING, Action.RETRY),
        Shape(refusals=1, epochs=0),
    ),
    "a rejected repeat is given up": (
        *(OrderedWorld, DOUBTFUL, Event.REJECTED, SETTLED, Action.NONE),
        Shape(rejections=1, epochs=0),
    ),
    "a sent batch fails at its deadline": (
        *(OrderedWorld, SENT, Event.OVERDUE, SETTLED, Action.FAIL),
        Shape(),
    ),
    "a sent batch fails with its client": (
        *(OrderedWorld, SENT, Event.CLOSED, SETTLED, Action.FAIL),
        Shape(),
    ),
    "an absent batch succeeds": (
        *(OrderedWorld, DOUBTFUL, Event.ABSENT, SETTLED, Action.SUCCEED),
        Shape(),
    ),
    "a refused batch is forgotten": (
        *(OrderedWorld, SENT, Event.REFUSED, RETRYING, Action.NONE),
        Shape(refusals=1, epochs=0),
    ),
    "a queued batch outlives its log": (
        *(OrderedWorld, QUEUED, Event.LOG_GONE, QUEUED, Action.NONE),
        Shape(batches=3, epochs=0, cuts=0),
    ),
    "a block that is being written fails at its deadline": (
        *(ChainedWorld, SENT, Event.OVERDUE, SETTLED, Action.FAIL),
        Shape(epochs=0),
    ),
    "a block that is being written fails with its client": (
        *(ChainedWorld, SENT, Event.CLOSED, SETTLED, Action.FAIL),
        Shape(epochs=0),
    ),
    "a block that is sent again counts as waiting": (
        *(ChainedWorld, SENT, Event.SENT, WAITING, Action.NONE),
        Shape(),
    ),
    "a batch that a sequencer may have is attempted again": (
        *(CopysetWorld, SENT, Event.LOST, RETRYING, Action.RETRY),
        Shape(epochs=0),
    ),
    "a batch that no epoch has succeeds": (
        *(CopysetWorld, DOUBTFUL, Event.ABSENT, SETTLED, Action.SUCCEED),
        Shape(ends=1, epochs=0),
    ),
    "a batch that a sequencer declined cannot be sent again": (
        *(CopysetWorld, SENT, Event.DECLINED, RETRYING, Action.RETRY),
        Shape(refusals=1, epochs=0),
    ),
}


def is_found(world: type[DeliveryWorld], shape: Shape, rules: Rules = EXACTLY_ONCE) -> bool:
    try:
        explore(world, shape, rules)
    except Violation:
        return True
    return False


@pytest.mark.parametrize("flaw", FLAWS)
async def test_a_table_with_a_wrong_rule_is_found(flaw: str) -> None:
    world, state, event, after, action, shape = FLAWS[flaw]
    assert not is_found(world, shape)
    assert is_found(world, shape, {**EXACTLY_ONCE, (state, event): (after, action)})


async def test_a_batch_that_forgets_its_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier attempt may have appended the batch if retry="at-once"."""
    advance = Progress.advance

    def forgetful(self: Progress, event: Event, why: str = "") -> Action:
        return advance(self, event, "")

    monkeypatch.setattr(Progress, "advance", forgetful)
    assert is_found(OrderedWorld, Shape(epochs=0, twice=True), AT_ONCE)


async def test_a_resolver_that_asks_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing batch may still arrive as long as the epoch lasts."""
    monkeypatch.setattr(Resolver, "_of_past_epochs", lambda self: self._attempts())
    assert is_found(OrderedWorld, Shape())


async def test_a_stream_that_does_not_recognise_repeats_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take(self: ModelStream, connection: Any) -> None:
        request_id, sent = connection.requests.pop(0)
        self.taken.append((sent._replace(epoch=self.epoch), connection, request_id))

    monkeypatch.setattr(ModelStream, "arrive", take)
    assert is_found(OrderedWorld, Shape())


async def test_a_block_that_is_given_up_without_a_look_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers may find the block in a newer epoch."""

    def resolve(projection: Any, block: Any) -> Any:
        yield from ()
        return Overtaken()

    monkeypatch.setattr(chained_append, "resolve", resolve)
    assert is_found(ChainedWorld, Shape())


async def test_an_attempt_that_takes_a_lost_answer_for_a_refusal_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head may have the block."""
    at_head = chained_append._stopped_at_head

    def careless(answer: Any) -> Any:
        stop = at_head(answer)
        return Interrupted(stop.reason, untouched=True) if isinstance(stop, Interrupted) else stop

    monkeypatch.setattr(chained_append, "_stopped_at_head", careless)
    assert is_found(ChainedWorld, Shape(epochs=0))


async def test_an_attempt_that_takes_any_block_for_its_own_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Block, "is_same", lambda self, other: True)
    assert is_found(ChainedWorld, Shape(fills=1, cuts=0, epochs=0))


async def test_an_attempt_that_gives_up_a_sequencer_without_an_answer_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def declined(self: CopysetAttempt, connection: Any, error: Any) -> bool:
        self._carrier.outcomes.declined(self, error)
        return True

    monkeypatch.setattr(CopysetAttempt, "_goes_on", declined)
    assert is_found(CopysetWorld, Shape(epochs=0))


async def test_a_sequencer_that_takes_batches_for_another_epoch_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first request that was delayed comes after its repeat."""

    def fits(self: CopysetWorld, call: Call) -> bool:
        return True

    monkeypatch.setattr(CopysetWorld, "fits", fits)
    assert is_found(CopysetWorld, Shape())


async def test_a_stream_that_compares_before_it_looks_for_repeats_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch that stands in the way may be the same one."""
    arrive = ModelStream.arrive

    def hasty(self: ModelStream, connection: Any) -> None:
        request_id, _ = connection.requests[0]
        if self.stored or self.taken:
            connection.requests.pop(0)
            connection.answer(request_id, Conflict("it would not be the first one"))
        else:
            arrive(self, connection)

    monkeypatch.setattr(ModelStream, "arrive", hasty)
    assert is_found(OrderedWorld, Shape(conditional=True, epochs=0))


async def test_a_sequencer_that_compares_before_it_looks_for_repeats_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrive = CopysetWorld._arrive

    def hasty(self: CopysetWorld, call: Call) -> None:
        if self.kept or self.under_way:
            self.calls.remove(call)
            call.arrived, call.answer = True, Conflict("it would not be the first one")
        else:
            arrive(self, call)

    monkeypatch.setattr(CopysetWorld, "_arrive", hasty)
    assert is_found(CopysetWorld, Shape(conditional=True, epochs=0))


async def test_an_overtaken_block_that_forgets_what_it_expected_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    next_ticket = chained_append.next_ticket

    def anywhere(projection: Any, count: int, expected: Any, report: Any) -> Any:
        return next_ticket(projection, count, None, report)

    monkeypatch.setattr(chained_append, "next_ticket", anywhere)
    assert is_found(ChainedWorld, Shape(conditional=True, batches=2, epochs=0, cuts=0))
