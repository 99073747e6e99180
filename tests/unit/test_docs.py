"""The documents are true where a machine can tell: links, paths, commands and options exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import loomlog
from loomlog.cli import loom, vmr, vsn

SOURCE = Path(loomlog.__file__).parent
ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
INTERNAL = ("ARCHITECTURE.md", "docs/design/", "docs/adr/", "docs/glossary.md")

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"([\w./-]+\.py):([\w.]+)")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
SOURCE_FILE = re.compile(r"(?<![\w./-])[\w-]+(?:/[\w-]+)+\.py\b")
NAMED_DOCUMENT = re.compile(r"\bdocs/[\w/-]+\.md")
COMMAND = re.compile(r"(?:loom|vmr|vsn) [^#>&()]*")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def prose(document: Path) -> str:
    return FENCE.sub("", document.read_text())


@cache
def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@cache
def file_names() -> set[str]:
    return {
        path.name
        for folder in ("src", "tests", "examples")
        for path in (ROOT / folder).rglob("*.py")
    }


def is_missing_path(document: Path, text: str) -> bool:
    """Report whether the text names a path of this repository that does not exist."""
    if not PATH.fullmatch(text):
        return False
    first, slash, _ = text.partition("/")
    suffix = Path(text).suffix
    if not slash:
        return (
            suffix == ".py" and name_of(document).startswith(INTERNAL) and text not in file_names()
        )
    top = (ROOT / first).is_dir() and first in ("src", "tests", "docs", "examples")
    if not top and not ((SOURCE / first).is_dir() and (suffix or text.endswith("/"))):
        return False
    return not (ROOT / text).exists() and not (SOURCE / text).exists()


def commands_in(document: Path) -> set[str]:
    """Return all commands of ours in code, one line each."""
    text = document.read_text().replace("\\\n", " ").replace("\\|", "|")
    blocks = [line for line in text.splitlines() if line.startswith("    ")]
    blocks += [line for block in FENCE.findall(text) for line in block.splitlines()]
    lines = [*SPAN.findall(FENCE.sub("", text)), *(line.split(" | ")[-1] for line in blocks)]
    return {found[0] for line in lines if (found := COMMAND.match(line.strip()))}


@cache
def program(name: str) -> Any:
    return typer.main.get_command({"loom": loom, "vmr": vmr, "vsn": vsn}[name].app)


def wrong_in(command: str) -> list[str]:
    """Return the words of a command that it does not know: subcommands and options."""
    name, *words = command.split()
    branches = [program(name)]
    while words and hasattr(branches[0], "commands") and not words[0].startswith(("-", "[", "…")):
        names = words.pop(0).rstrip(".,;:").split("|")
        if unknown := [word for word in names if word not in branches[0].commands]:
            return unknown
        branches = [branches[0].commands[word] for word in names]
    known = {
        option for branch in branches for parameter in branch.params for option in parameter.opts
    }
    known |= {"--help"}
    return [option for option in OPTION.findall(" ".join(words)) if option not in known]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    for link in LINK.findall(prose(document)):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), f"{name_of(document)} links to {link}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name_of(document)} links to {link}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_named_paths_exist(document: Path) -> None:
    named = {*SPAN.findall(prose(document)), *SOURCE_FILE.findall(document.read_text())}
    assert not sorted(text for text in named if is_missing_path(document, text))


def is_missing_name(path: str, name: str) -> bool:
    """Report whether a file lacks a class or function, given as `Class.method` or `function`."""
    file = SOURCE / path
    text = file.read_text() if file.exists() else ""
    return not all(re.search(rf"\b(class|def) {part}\b", text) for part in name.split("."))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_named_functions_exist(document: Path) -> None:
    named = [
        found.groups() for text in SPAN.findall(prose(document)) if (found := NAME.fullmatch(text))
    ]
    assert not [f"{path}:{name}" for path, name in named if is_missing_name(path, name)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_named_commands_and_options_exist(document: Path) -> None:
    wrong = {command: wrong_in(command) for command in sorted(commands_in(document))}
    assert not {command: words for command, words in wrong.items() if words}


def test_sources_name_documents_that_exist() -> None:
    files = [path for folder in (SOURCE, ROOT / "tests") for path in folder.rglob("*.py")]
    files += SOURCE.rglob("*.proto")
    named = {(name, path) for path in files for name in NAMED_DOCUMENT.findall(path.read_text())}
    missing = [
        f"{path.relative_to(ROOT)}: {name}" for name, path in named if not (ROOT / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("document", sorted(ROOT.glob("docs/adr/0*.md")), ids=name_of)
def test_decision_records_are_one_page_of_the_same_form(document: Path) -> None:
    text = document.read_text()
    parts = (
        "Status:",
        "**Context.**",
        "**Decision.**",
        "**Consequences.**",
        "**Rejected options.**",
    )
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert len(text.split()) <= 500
    assert document.name in (ROOT / "docs/adr/README.md").read_text()


def test_nothing_refers_to_documents_elsewhere() -> None:
    outside = re.compile(r"\bspec \d|\bseed 00\d", re.IGNORECASE)
    files = [*DOCUMENTS, *SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert not [name_of(path) for path in files if outside.search(path.read_text())]


def test_the_readme_names_every_command() -> None:
    rows = [row.replace("\\|", "|") for row in (ROOT / "README.md").read_text().splitlines()]
    commands: dict[str, Any] = vars(typer.main.get_command(loom.app))["commands"]
    for name, command in commands.items():
        [row] = [row for row in rows if row.startswith(f"| `loom {name}")]
        named = set(row.split("`")[1].removeprefix(f"loom {name}").strip().split("|"))
        assert named >= set(getattr(command, "commands", ())), f"loom {name}"
