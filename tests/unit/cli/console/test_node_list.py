"""The screen of `loom node list`."""

from __future__ import annotations

from rich.console import Console

from loomlog.cli.console.output import nodes_view
from loomlog.wire.info import NodeInfo

NODES = [
    NodeInfo(1, "a:1", True, 0.1, "always", 1, 1000),
    NodeInfo(2, "b:1", False, 9.0, "always", 1, None, conditions=("is away", "is drained")),
    NodeInfo(3, "c:1", False, 9.0, "always", 1, None, conditions=("is away",)),
]


def test_each_condition_has_a_line_of_its_own() -> None:
    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(nodes_view(NODES))
    told = [line.rstrip() for line in shown.get().splitlines() if line.startswith("node ")]
    assert told == ["node 2: is away", "node 2: is drained", "node 3: is away"]
