"""The layers of ARCHITECTURE.md, checked in the source: who may import whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import loomlog

SOURCE = Path(loomlog.__file__).parent

WORDS = {
    *("types", "errors", "limits", "batch", "staging_logs", "protocol_names"),
    *("meters", "metrics", "tracing"),
}
PORTS = {"storage", "wire", "net"}
SERVED = WORDS | PORTS | {"config", "core"}

# Part of loomlog -> the other parts that it may import. "loomlog" is the package itself.
ALLOWED: dict[str, set[str]] = {
    "loomlog": {"client", "errors", "types", "testing", "config", "wire"},
    "types": set(),
    "errors": set(),
    "limits": set(),
    "batch": {"types", "errors", "limits"},
    "staging_logs": set(),
    "protocol_names": set(),
    "codecs": WORDS,
    "meters": {"batch", "errors", "types"},
    "tracing": {"errors"},
    "metrics": {"meters"},
    "columns": WORDS,
    "references": WORDS,
    "config": {"types", "limits"},
    "core": WORDS,
    "storage": WORDS | {"config", "core"},
    "wire": WORDS | {"core", "net"},
    "net": WORDS | {"core"},
    "node": SERVED | {"http"},
    "metadata": SERVED | {"http", "archive"},  # of archives only what is archived: record.py
    "client": SERVED - {"storage"} | {"archive", "codecs", "columns", "references"},
    "archive": WORDS | {"columns"},
    "http": {"errors", "net", "core"},
    "spark": WORDS | {"archive", "columns", "config", "client", "core", "loomlog"},
    "testing": SERVED | {"columns", "node", "metadata", "client", "loomlog"},
    "console": WORDS | {"client", "config", "core", "net", "spark", "wire"},
    "cli": SERVED
    | {"node", "metadata", "client", "archive", "testing", "spark", "console", "loomlog"},
}

# `core` decides; it never does. Time, chance and the outside world are arguments.
IMPURE = {
    *("asyncio", "concurrent", "threading", "multiprocessing", "subprocess", "signal"),
    *("socket", "selectors", "ssl", "http", "urllib"),
    *("os", "io", "pathlib", "shutil", "tempfile", "mmap", "sqlite3"),
    *("time", "random", "secrets", "uuid", "logging"),
}


def sources(part: str = "**") -> list[Path]:
    found = SOURCE.glob("**/*.py" if part == "**" else f"{part}/**/*.py")
    return sorted(path for path in found if not path.name.endswith("_pb2.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return "loomlog" if first == "__init__.py" else first.removesuffix(".py")


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Full names of all that a file imports, wherever in the file."""
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            assert node.module is not None
            yield from (f"{node.module}.{name.name}" for name in node.names)


def parts_imported(path: Path) -> set[str]:
    parts = set()
    for name in imports_of(path):
        package, _, rest = name.partition(".")
        if package == "loomlog":
            part = rest.split(".")[0]
            parts.add(part if part in ALLOWED else "loomlog")
    return parts - {part_of(path)}


def test_a_file_imports_only_what_its_layer_may() -> None:
    forbidden = [
        f"{path}: {part_of(path)} must not import {others}"
        for path in sources()
        if (others := sorted(parts_imported(path) - ALLOWED[part_of(path)]))
    ]
    assert not forbidden


def test_core_is_pure() -> None:
    impure = [
        f"{path}: {name}"
        for path in sources("core")
        for name in imports_of(path)
        if name.split(".")[0] in IMPURE
    ]
    assert not impure


def test_no_protocol_needs_another() -> None:
    needed = [f"{path}: {name}" for path in sources() for name in needed_of_others(path)]
    assert not needed


def needed_of_others(path: Path) -> list[str]:
    """Return what a file in the package of one protocol imports of the others."""
    others = {"ordered", "chained", "copyset"}.difference(path.relative_to(SOURCE).parts)
    if len(others) != 2:
        return []
    return [name for name in imports_of(path) if others.intersection(name.split("."))]


def test_only_servers_serve_http_and_nobody_needs_the_commands() -> None:
    users = {part for part, allowed in ALLOWED.items() if "http" in allowed}
    assert users == {"metadata", "node"}
    assert not any("cli" in allowed for allowed in ALLOWED.values())
