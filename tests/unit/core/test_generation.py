"""Deciding whether a starting storage node may have forgotten writes."""

from __future__ import annotations

from loomlog.core.generation import NO_GENERATION, Generation, life_goes_on

STOPPED = Generation(4, clean=True)
RUNNING = Generation(4, stamp="boot 1, file 5")


def test_a_life_goes_on_after_a_stop_and_on_the_same_boot() -> None:
    assert life_goes_on([(STOPPED, "")])
    assert life_goes_on([(STOPPED, "boot 2, file 7")])
    assert life_goes_on([(RUNNING, "boot 1, file 5")])
    assert life_goes_on([(NO_GENERATION, "boot 1, file 5")]), "it is new"


def test_another_one_begins_after_a_boot_and_with_a_copy() -> None:
    assert not life_goes_on([(RUNNING, "boot 2, file 5")])
    assert not life_goes_on([(RUNNING, "boot 1, file 6")])
    assert not life_goes_on([(RUNNING, "")])
    assert not life_goes_on([(None, "boot 1, file 5")]), "the mark cannot be read"


def test_without_stamps_every_crash_counts() -> None:
    assert not life_goes_on([(Generation(4), "")])
    assert not life_goes_on([(Generation(4), "boot 1, file 5")])


def test_every_volume_counts() -> None:
    assert life_goes_on([(RUNNING, "boot 1, file 5"), (STOPPED, ""), (NO_GENERATION, "")])
    assert not life_goes_on([(RUNNING, "boot 1, file 5"), (RUNNING, "boot 1, file 6")])
