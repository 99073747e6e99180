"""A short run of `make fuzz`, and every input that once was a finding."""

from __future__ import annotations

import pytest
from fuzz_targets import all_targets
from fuzzing import Target, WrongRecordError, corpus_of, replay, run

from loomlog.errors import Corrupt

TARGETS = all_targets()
INPUTS = 2000
SLOW = {"replica": 40, "batch": 500, "api": 500, "console": 1000}


def test_the_corpus_breaks_nothing_any_more() -> None:
    assert list(map(str, replay(TARGETS))) == []


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_examples_are_sound_and_damaged_copies_are_noticed(target: Target) -> None:
    for example in target.examples:
        if target.compare is not None:
            target.compare(example, example)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_random_inputs_break_nothing(target: Target) -> None:
    outcome = run(target, seed=1, inputs=SLOW.get(target.name, INPUTS))
    assert list(map(str, outcome.findings)) == []


def test_a_frame_of_another_example_was_sent_and_an_altered_one_was_not() -> None:
    [frames] = (target for target in TARGETS if target.name == "frames")
    assert frames.compare is not None
    [spliced] = corpus_of("frames")  # the head of a frame is that of another example
    for example in frames.examples:
        frames.compare(example, spliced)
    altered = spliced.replace(b"client", b"vsnvsn")
    with pytest.raises(WrongRecordError):
        frames.compare(frames.examples[0], frames.seal(altered))


def test_a_decoder_that_breaks_its_promises_is_found() -> None:
    """Negative controls: an unexpected error, a wrong record, a hang of memory."""

    def breaks(data: bytes) -> None:
        if len(data) > 5:
            raise IndexError
        raise Corrupt("too short")

    def differs(example: bytes, data: bytes) -> None:
        assert data[:1] == example[:1]

    assert run(Target("x", (b"123456",), breaks), 1, inputs=200).findings
    sound = Target("x", (b"123456",), lambda data: None, compare=differs)
    assert run(sound, 1, inputs=200).findings
    greedy = Target("x", (b"123456",), lambda data: bytearray(1 << 34))
    assert isinstance(run(greedy, 1, inputs=10).findings[0].error, MemoryError)


def test_the_short_way_to_a_deep_check_is_found() -> None:
    """Inputs that end in a new way are kept: that finds what needs several right bytes."""

    def read(data: bytes) -> None:
        for at, wanted in enumerate(b"log"):
            if data[at : at + 1] != bytes([wanted]):
                return _wrong(at)
        raise IndexError

    assert run(Target("x", (b"...",), read), 1, inputs=200_000, findings_max=1).findings


def _wrong(at: int) -> None:
    match at:
        case 0:
            raise Corrupt("first")
        case 1:
            raise Corrupt("second")
        case 2:
            raise Corrupt("third")
    raise Corrupt("fourth")
