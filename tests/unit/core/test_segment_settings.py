"""The settings of a segment: which numbers are possible, and what follows from the others."""

from __future__ import annotations

import pytest

from loomlog.core.segments import Settings
from loomlog.errors import InvalidArgument


@pytest.mark.parametrize(("replicas", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4)])
def test_by_default_appends_need_one_replica_less_but_two_of_several(
    replicas: int, least: int
) -> None:
    assert Settings("any", 1, replicas).replicas_least == least


def test_a_log_may_need_fewer_or_all_replicas() -> None:
    assert Settings("any", 1, 3, min_replicas=1).replicas_least == 1
    assert Settings("any", 1, 3, min_replicas=3).replicas_least == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings("any", 0, 3), "a log has 1 to"),
        (Settings("any", 1, 0), "at least 1 replica"),
        (Settings("any", 1, 2, min_replicas=3), "3 of 2 replicas cannot be there"),
        (Settings("any", 1, 2, compression="gzip"), "no compression .gzip.: use one of none, lz4"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Settings, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        settings.check()
