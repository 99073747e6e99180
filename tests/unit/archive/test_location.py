"""Names of directories, as users give them for archives and backups."""

from __future__ import annotations

from pathlib import Path

import pytest

from loomlog.archive.location import uri_of
from loomlog.errors import InvalidArgument


def test_a_path_becomes_a_uri(tmp_path: Path) -> None:
    assert uri_of(str(tmp_path)) == tmp_path.as_uri()
    assert uri_of(tmp_path.as_uri() + "/") == tmp_path.as_uri()


@pytest.mark.parametrize("given", ["", " ", "nothing://here"])
def test_what_is_no_place_is_refused(given: str) -> None:
    """An empty name would be the present directory, which nobody meant."""
    with pytest.raises(InvalidArgument, match="give a path or a URI"):
        uri_of(given)
