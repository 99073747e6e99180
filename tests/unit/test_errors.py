"""Texts of errors."""

from __future__ import annotations

import numpy as np
import pytest

from loomlog import errors
from loomlog.errors import seconds, shown


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


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a b", "'a b'"),
        (7, "7"),
        (10**30, str(10**30)),
        (10**5000, "a value of type int"),
        (nested(100_000), "[[[[[...]]]]]"),
        (Unshowable(), "<Unshowable instance at "),
        (np.zeros((2, 2)), "array([[0., 0.], [0., 0.]])"),
    ],
    ids=["text", "number", "large", "too large", "nested", "unshowable", "array"],
)
def test_any_value_can_be_shown_in_one_short_line(value: object, expected: str) -> None:
    found = shown(value)
    assert found.startswith(expected)
    assert len(found) <= 100


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 10**6)) == 100
    assert shown(list(range(10**6))) == "[0, 1, 2, 3, 4, 5, ...]"
