"""The ports of `loom up`: those of HTTP and of the console are derived from the first one."""

from __future__ import annotations

import pytest

from loomlog.cli.commands import console
from loomlog.cli.commands.up import Ports


def test_other_ports_are_near_the_first() -> None:
    ports = Ports(console=True)
    assert (ports.port, ports.of_http(), ports.of_console()) == (7400, 7480, 7490)
    moved = Ports(port=9000, console=True)
    assert (moved.of_http(), moved.of_console()) == (9080, 9090)


def test_a_port_that_was_given_is_used() -> None:
    ports = Ports(http_port=1, console=True, console_port=2)
    assert (ports.of_http(), ports.of_console()) == (1, 2)


@pytest.mark.parametrize("port", [0, 65535])
def test_a_port_that_has_no_neighbour_leads_to_free_ones(port: int) -> None:
    ports = Ports(port=port, console=True)
    assert (ports.of_http(), ports.of_console()) == (0, 0)


def test_there_is_a_console_if_its_packages_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed in (True, False):
        monkeypatch.setattr(console, "is_installed", lambda: installed)  # noqa: B023
        assert (Ports().of_console() is not None) is installed
        assert Ports(console=False).of_console() is None
        assert Ports(console=True).of_console() is not None
