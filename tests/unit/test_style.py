"""Code that reads well: nouns as names of files, sentences as docstrings, short functions."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import loomlog

SOURCE = Path(loomlog.__file__).parent
UNIT = Path(__file__).parent
TESTS = UNIT.parent
FILES = sorted(path for path in SOURCE.glob("**/*.py") if not path.name.endswith("_pb2.py"))
for folder in ("rigs", "sim", "conformance"):
    FILES += sorted((TESTS / folder).glob("**/*.py"))
ALL_FILES = sorted({*FILES, *TESTS.glob("**/*.py"), *(TESTS.parent / "examples").glob("**/*.py")})

HEADLESS = re.compile(
    r"(Of|It|Its|Them|They|Their|Those|These|That|This one|Who|Whose|Whom|Which|What|"
    r"Where|Whether|Why|How|So|Or|Also|Likewise|The same|All of|One of|Fine|Nobody|Somebody)\b"
)
PHRASES = re.compile(
    r"\b(so (many|long|much)(?! (as|that|more|longer))|anew|likewise|(is|are) told|somebody|"
    r"is of no interest|(for|of|to) who|go(es)? on|went on)\b",
    re.IGNORECASE,
)
NOUNS = {"tracing", "numbering"}
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70


class Parsed(NamedTuple):
    """The parts of a file that are checked here."""

    docstrings: list[tuple[int, str]]
    functions: list[tuple[str, int]]  # with their lengths in lines


@cache
def parsed(path: Path) -> Parsed:
    found = Parsed([], [])
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            found.docstrings.append((getattr(node, "lineno", 1), text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions.append((node.name, (node.end_lineno or 0) - node.lineno + 1))
    return found


def test_files_are_named_by_nouns_or_operations() -> None:
    gerunds = [path for path in FILES if path.stem.endswith("ing") and path.stem not in NOUNS]
    assert not gerunds


def test_docstrings_are_sentences() -> None:
    headless = [
        f"{path}:{line}: {text}"
        for path in ALL_FILES
        for line, text in parsed(path).docstrings
        if HEADLESS.match(text)
    ]
    assert not headless, "\n".join(headless)


def test_prose_uses_the_usual_words() -> None:
    odd = [f"{path}: …{text}" for path in FILES for text in prose(path) if PHRASES.search(text)]
    assert not odd, "\n".join(odd)


def test_files_and_functions_are_short() -> None:
    sources = [path for path in FILES if path.is_relative_to(SOURCE)]
    files = [path for path in sources if len(path.read_text().splitlines()) > FILE_LINES_MAX]
    functions = [
        f"{path}: {name}"
        for path in sources
        for name, lines in parsed(path).functions
        if lines > FUNCTION_LINES_MAX
    ]
    assert not files + functions


def test_every_package_has_its_tests_at_the_same_path() -> None:
    packages = {path.parent.relative_to(SOURCE) for path in FILES if path.is_relative_to(SOURCE)}
    assert len(packages) > 40
    untested = [
        str(package) for package in packages if not any((UNIT / package).glob("**/test_*.py"))
    ]
    assert not untested, "a package has tests in the folder of tests/unit that has its path"


def prose(path: Path) -> list[str]:
    comments = re.findall(r"#(?! noqa| type:) .*", path.read_text())
    return [text for _, text in parsed(path).docstrings] + comments
