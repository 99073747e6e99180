"""Texts of errors."""

from __future__ import annotations

import pytest

from loomlog import errors
from loomlog.errors import seconds


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(2.04769, "2 s"), (0.3, "0.3 s"), (0.25, "0.25 s"), (12.0, "12 s"), (120.4, "120 s")],
)
def test_durations_are_rounded(duration_s: float, text: str) -> None:
    assert seconds(duration_s) == text


def test_every_error_says_when_it_is_raised() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    raised = [each for each in kinds if issubclass(each, Exception)]
    assert len(raised) > 20
    assert [each.__name__ for each in raised if not each.__doc__] == []
