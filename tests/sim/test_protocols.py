"""Logs of every protocol, switched from one to another while servers fail. The negative controls
break one rule of the client each."""

from __future__ import annotations

from typing import Any

import pytest
from run_seeds import Choice, run_seed
from seed_chunks import chunks

from loomlog.client.loglets.chained import part
from loomlog.client.loglets.chained.chains import ChainView
from loomlog.client.loglets.chained.requests import Answered, ChainRequests, PendingRequest
from loomlog.client.loglets.contract import Fixed
from loomlog.client.loglets.copyset.fixed_append import FixedAppend
from loomlog.client.publish.writer import Writer
from loomlog.core.chained import append as chained_append
from loomlog.core.chained.append import Overtaken
from loomlog.core.chained.chain import Block, Projection, Replica, junk
from loomlog.core.chained.messages import ChainedAsk, Fetch, Found, Read, Steps
from loomlog.core.requests import Ask
from loomlog.types import Glsn

CHUNKS = 8
SEEDS_PER_CHUNK = 4
PUBLISHING_CHUNKS = 8
PUBLISHING_PER_CHUNK = 2


def run(seed: int, workload: str = "protocols") -> str | None:
    outcome = run_seed(Choice(seed, workload=workload))
    return f"{outcome.choice.replay}\n{outcome.error}" if outcome.error is not None else None


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_logs_of_every_protocol_under_faults(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed)
        assert error is None, error


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_operators_choose_where_appends_go_first(chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        error = run(seed, "chosen")
        assert error is None, error


def test_a_scrub_does_not_call_files_lost_that_were_removed_with_their_replica() -> None:
    assert run(7101) is None


@pytest.mark.parametrize("chunk", chunks(PUBLISHING_CHUNKS, quick=1))
@pytest.mark.parametrize("protocol", ["chained", "copyset"])
def test_rows_are_published_to_every_protocol_under_faults(protocol: str, chunk: int) -> None:
    for seed in range(chunk * PUBLISHING_PER_CHUNK, (chunk + 1) * PUBLISHING_PER_CHUNK):
        error = run(seed, f"publishing-{protocol}")
        assert error is None, error


def test_a_publication_that_forgets_its_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication that does not name its epoch is accepted by any epoch, which does not know what
    another has accepted."""

    async def anywhere(self: FixedAppend, fixed: Fixed, batch: bytearray, confirm: Any) -> int:
        return await append(self, fixed._replace(place=0), batch, confirm)

    append = FixedAppend.append
    monkeypatch.setattr(FixedAppend, "append", anywhere)
    monkeypatch.setattr(Writer, "_find", _nothing)
    assert any(run(seed, "publishing-copyset") for seed in range(13, 70))


async def _nothing(self: Writer, intent: Any) -> int:
    return 0


@pytest.mark.parametrize(
    "seed",
    [
        23,  # a reference was searched behind an end that the log did not have any more
        47,  # the stream of an intent had gone with its segment
        48,  # rows were staged below an end that the staging log did not have any more
    ],
)
def test_what_went_wrong_with_publications_once(seed: int) -> None:
    error = run(seed, "publishing-chained")
    assert error is None, error


@pytest.mark.parametrize(
    "seed",
    [
        500003,  # a stream of a segment that had ended was moved: nobody knew its places any more
        840005,  # an append was in doubt, trimmed, and no node that was restarted knew of it
    ],
)
def test_what_went_wrong_with_publications_to_copysets_once(seed: int) -> None:
    error = run(seed, "publishing-copyset")
    assert error is None, error


@pytest.mark.parametrize(
    "seed",
    [
        31,  # a leader did not know where the ordered segments before the last one had begun
        99,  # a read met a trim of its whole segment, and took it for a hole
        424,  # a follower had passed a segment when that was trimmed, and took it for its own loss
    ],
)
def test_what_went_wrong_once(seed: int) -> None:
    error = run(seed)
    assert error is None, error


def is_found(first: int = 0, seeds: int = 40) -> bool:
    return any(run(seed) is not None for seed in range(first, first + seeds))


def test_an_append_that_is_repeated_without_a_look_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def careless(projection: Projection, block: Block) -> Steps[Overtaken]:
        yield from ()
        return Overtaken()

    monkeypatch.setattr(chained_append, "resolve", careless)
    assert is_found()


def test_a_reader_that_believes_a_head_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ChainRequests.ask

    def hasty(
        self: ChainRequests,
        view: ChainView,
        question: ChainedAsk,
        answered: Answered,
        *,
        wait_ms: int = 0,
    ) -> PendingRequest:
        target, request = question
        if isinstance(target, Replica) and isinstance(request, Fetch | Read):
            question = Ask(view.projection.chains[target.chain][0], request)
        return ask(self, view, question, answered, wait_ms=wait_ms)

    monkeypatch.setattr(ChainRequests, "ask", hasty)
    assert is_found(first=132)


def test_a_reader_that_skips_what_it_waits_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(projection: Projection, position: Glsn) -> Steps[Found]:
        yield from ()
        return Found(junk(position, 1))

    monkeypatch.setattr(part, "decide_at", impatient)
    assert is_found(first=8)
