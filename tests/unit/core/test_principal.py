"""Certificates, and what they state about their holders."""

from __future__ import annotations

import pytest

from loomlog.core.principal import ANONYMOUS, Principal, stated_principal
from loomlog.errors import InvalidArgument

EVERYBODY = [
    Principal("node", number=3, cluster="prod"),
    Principal("metadata", number=1, cluster="prod"),
    Principal("client", name="alice", cluster="prod"),
    Principal("operator", name="carol@example.org", cluster="prod-2.eu"),
]


@pytest.mark.parametrize("principal", EVERYBODY, ids=str)
def test_a_certificate_states_its_holder(principal: Principal) -> None:
    assert stated_principal(["https://example.org/", principal.uri]) == principal


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://prod/node/3"],
        ["loom://prod/node/3", "loom://prod/metadata/1"],
        ["loom://prod/node/03"],
        ["loom://prod/node/0"],
        ["loom://prod/node/-1"],
        ["loom://prod/node/three"],
        ["loom://prod/node/3/4"],
        ["loom://prod/admin/3"],
        ["loom://prod/anonymous/x"],
        ["loom://prod/client/"],
        ["loom:///client/alice"],
        ["loom://prod/client/alice\n"],
        ["LOOM://prod/client/alice"],
    ],
)
def test_anything_else_states_nobody(uris: list[str]) -> None:
    assert stated_principal(uris) is ANONYMOUS


@pytest.mark.parametrize(
    ("cluster", "name"), [("", "alice"), ("a/b", "alice"), ("prod", ""), ("prod", "a/b")]
)
def test_names_that_no_certificate_can_carry_are_refused(cluster: str, name: str) -> None:
    with pytest.raises(InvalidArgument, match="certificate"):
        Principal("client", name=name, cluster=cluster)


def test_servers_have_numbers() -> None:
    with pytest.raises(InvalidArgument, match="number from 1"):
        Principal("node", cluster="prod")
