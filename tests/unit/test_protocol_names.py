"""No file outside the packages of a protocol names one: shared code asks a registry.

A file names a protocol if an identifier in it, or a string that is no docstring, has the protocol's
name as one of its words: `ChainedPart`, `copyset_state`, "ordered".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import loomlog

SOURCE = Path(loomlog.__file__).parent
NAMES = {"ordered", "chained", "copyset", "copysets", "logsdb"}
PACKAGES = {"ordered", "chained", "copyset", "logsdb"}

EXEMPT = (
    "protocol_names.py",
    "client/loglets/registry.py",
    "metadata/registry.py",
    "node/registry.py",
    "wire/",
    "testing/",
    "cli/bench/",
    "cli/commands/bench.py",
)

# File -> why it may name a protocol. It only gets shorter.
ALLOWED: dict[str, str] = {
    "client/info.py": "shows users what each protocol adds to the status of a stream",
    "cli/console/output.py": "prints it",
    "cli/console/options.py": "parses positions that are made of an epoch and an offset",
    "client/cuts.py": "knows how such positions are made",
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WORDS_THAT_LOOK_SO = {"OrderedDict", "OrderedDict "}


def words(identifier: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(identifier)}


def docstrings(tree: ast.Module) -> set[int]:
    """Return the ids of all strings that stand alone as a statement."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def help_texts(tree: ast.Module) -> set[int]:
    """Return the ids of all strings that a command shows as help."""
    return {
        id(node)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "help"
        for node in ast.walk(keyword.value)
    }


def mentions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    prose = docstrings(tree) | help_texts(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield line, name
            case ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                yield line, name
            case ast.alias(name=name, asname=asname):
                yield line, f"{name} {asname or ''}"
            case ast.ImportFrom(module=str(module)):
                yield line, module
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield line, text


def named_in(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    return [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for line, text in mentions(tree)
        if text not in _WORDS_THAT_LOOK_SO and words(text) & NAMES
    ]


def shared_files() -> list[str]:
    found = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    return sorted(
        str(path)
        for path in found
        if not PACKAGES & set(path.parts) and not str(path).startswith(EXEMPT)
    )


@pytest.mark.parametrize("file", [file for file in shared_files() if file not in ALLOWED])
def test_shared_code_names_no_protocol(file: str) -> None:
    assert named_in(SOURCE / file) == []


@pytest.mark.parametrize("file", ALLOWED)
def test_what_may_name_a_protocol_still_does(file: str) -> None:
    assert named_in(SOURCE / file), "remove it from ALLOWED"


def test_a_name_is_found_wherever_it_stands() -> None:
    source = '''
"""Prose about `chained`."""
from loomlog.client.loglets.chained import part
def f(copyset_state: CopysetInfo) -> None:
    """Prose about copyset."""
    use(protocol="ordered", ordered=1, orderly="in order", help="chained")
'''
    found = [text for _, text in mentions(ast.parse(source)) if words(text) & NAMES]
    assert sorted(found) == sorted(
        ["loomlog.client.loglets.chained", "copyset_state", "CopysetInfo", "ordered", "ordered"]
    )
