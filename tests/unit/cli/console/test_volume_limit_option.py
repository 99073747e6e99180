"""The option --volume-limit, as people write it."""

from __future__ import annotations

import pytest

from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import parse_volume_limits
from loomlog.config import VolumeLimit

VOLUMES = ["/srv/a", "/srv/b=c"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("/srv/a=100G", VolumeLimit(100 << 30)),
        ("/srv/a=1.5T", VolumeLimit(3 << 39)),
        ("/srv/a=512MiB", VolumeLimit(512 << 20)),
        ("/srv/a=4096", VolumeLimit(4096)),
        ("/srv/a=80%", VolumeLimit(part=0.8)),
    ],
)
def test_a_limit_is_a_size_or_a_part(text: str, limit: VolumeLimit) -> None:
    assert parse_volume_limits([text], VOLUMES) == {"/srv/a": limit}


def test_each_volume_has_its_own() -> None:
    found = parse_volume_limits(["/srv/a=1G", "/srv/b=c=2G"], VOLUMES)
    assert found == {"/srv/a": VolumeLimit(1 << 30), "/srv/b=c": VolumeLimit(2 << 30)}


@pytest.mark.parametrize(
    "texts",
    [
        ["/srv/x=1G"],
        ["/srv/a"],
        ["1G"],
        ["/srv/a="],
        ["/srv/a=0"],
        ["/srv/a=-1G"],
        ["/srv/a=101%"],
        ["/srv/a=0%"],
        ["/srv/a=many"],
        ["/srv/a=1G", "/srv/a=2G"],
    ],
)
def test_anything_else_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="--volume-limit"):
        parse_volume_limits(texts, VOLUMES)
