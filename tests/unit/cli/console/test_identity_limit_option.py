"""--identity-limit of servers."""

from __future__ import annotations

import pytest

from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import parse_identity_limits
from loomlog.limits import IdentityLimits


def test_what_is_not_given_has_its_default() -> None:
    assert parse_identity_limits([]) == IdentityLimits()
    limited = parse_identity_limits(["requests=5", "bytes=1.5G"])
    assert limited == IdentityLimits(requests=5, bytes=3 << 29)


@pytest.mark.parametrize(
    "texts",
    [["requests"], ["requests=0"], ["requests=-1"], ["x=1"], ["bytes=1", "bytes=2"]],
    ids=str,
)
def test_nonsense_is_refused_in_one_line(texts: list[str]) -> None:
    with pytest.raises(UsageError, match=r"--identity-limit: .* such as requests=1000"):
        parse_identity_limits(texts)
