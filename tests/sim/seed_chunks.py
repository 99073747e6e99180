"""Seeds in chunks that workers share: a sample of them in every run, all in `make long`."""

from __future__ import annotations

import pytest


def chunks(count: int, *, quick: int) -> list[object]:
    """Return the numbers of `count` chunks; only the first `quick` ones are not long."""
    return [
        pytest.param(chunk, marks=() if chunk < quick else pytest.mark.long)
        for chunk in range(count)
    ]
