"""No file outside the packages of a protocol names one: shared code asks a registry.

A file names a protocol if an identifier in it, or a string that is no docstring, contains the
protocol's name, however it is written: `ChainedPart`, `copyset_state`, "ordered", "chain" + "ed".
Words that only one protocol uses also count: code that reads `stream.projection.chains` depends on
the protocol. So does a comparison of a protocol with any constant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import loomlog

SOURCE = Path(loomlog.__file__).parent
NAMES = ("ordered", "chained", "copyset", "logsdb")
WORDS = {"chain", "chains", "projection", "lsn", "lsns"}  # of one protocol
PACKAGES = {"ordered", "chained", "copyset", "logsdb"}
OTHERWISE_NAMED = {"OrderedDict", "itertools.chain", "certificate_chain", "load_cert_chain"}

REGISTRIES = {
    "loomlog.client.loglets.registry",
    "loomlog.metadata.registry",
    "loomlog.node.registry",
}
EXEMPT = {
    "protocol_names.py",
    "client/loglets/registry.py",
    "metadata/registry.py",
    "node/registry.py",
    "wire/chained.py",
    "wire/codec.py",
    "wire/copyset.py",
    "wire/loomlog_pb2.py",
    "wire/permissions.py",
    "cli/commands/bench.py",
}
EXEMPT_FOLDERS = ("cli/bench/",)  # compares protocols

# File -> why it may name a protocol. It only gets shorter.
ALLOWED: dict[str, str] = {
    "wire/info.py": "shows users what each protocol adds to the status of a stream",
    "cli/console/output.py": "prints it",
    "storage/identity.py": "recognises the data of a node by the names of its folders",
}

# What shared code imports of one protocol from a registry -> why.
ALLOWED_EXPORTS: dict[str, str] = {
    "REBUILD": "rebuilds commit rounds, which one protocol has, behind a shared interface",
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def is_named_in(text: str) -> bool:
    for other in OTHERWISE_NAMED:
        text = text.replace(other, "")
    compact = re.sub(r"[^a-z]", "", text.lower())
    return any(name in compact for name in NAMES) or bool(words(text) & WORDS)


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


def mentions(tree: ast.Module, *, has_help: bool) -> Iterator[tuple[int, str]]:
    """Yield every identifier and every string that is no prose, with its line."""
    prose = docstrings(tree) | (help_texts(tree) if has_help else set())
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if id(node) in prose:
            continue
        match node:
            case ast.Constant(value=str(text)):
                yield line, text
            case ast.Constant(value=bytes(data)):
                yield line, data.decode(errors="replace")
            case ast.BinOp(op=ast.Add()):
                yield line, joined(node)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                yield line, f"{owner}.{name}"
            case _:
                yield from ((line, name) for name in identifiers(node))


def identifiers(node: ast.AST) -> Iterator[str]:
    for _, value in ast.iter_fields(node):
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, str))


def joined(node: ast.expr) -> str:
    """Return the strings of a sum, one after the other."""
    if isinstance(node, ast.BinOp):
        return joined(node.left) + joined(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else " "


def comparisons(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every place where a protocol is compared with, or looked up by, a constant."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
            case ast.Match(subject=subject, cases=cases):
                patterns = (part for case in cases for part in ast.walk(case.pattern))
                values = [part.value for part in patterns if isinstance(part, ast.MatchValue)]
                sides = [subject, *values]
            case ast.Call(func=ast.Attribute(value=value), args=[argument, *_]):
                sides = [value, argument]  # protocol.startswith("…")
            case _:
                continue
        if any(map(is_protocol, sides)) and any(map(is_fixed, sides)):
            yield node.lineno, ast.unparse(node).splitlines()[0]


def is_protocol(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "protocol"
    return False


def is_fixed(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str()):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return any(map(is_fixed, items))
    return False


def named_in(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    file = path.relative_to(SOURCE)
    found = mentions(tree, has_help=file.parts[0] == "cli")
    named = [(line, text) for line, text in found if is_named_in(text)]
    return [f"{file}:{line}: {text}" for line, text in (*named, *comparisons(tree))]


def shared_files() -> list[str]:
    found = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    return sorted(
        str(path)
        for path in found
        if not PACKAGES & set(path.parts)
        and str(path) not in EXEMPT
        and not str(path).startswith(EXEMPT_FOLDERS)
    )


def test_shared_code_names_no_protocol() -> None:
    files = [file for file in shared_files() if file not in ALLOWED]
    named = [mention for file in files for mention in named_in(SOURCE / file)]
    assert not named
    misplaced = [file for file in files if is_named_in(file)]
    assert not misplaced, "give them to the packages of the protocols"


def test_what_may_name_a_protocol_still_does() -> None:
    files = [*ALLOWED, *sorted(EXEMPT - {"wire/loomlog_pb2.py"})]
    silent = [file for file in files if not named_in(SOURCE / file)]
    assert not silent, "remove them from ALLOWED, or from EXEMPT"


def test_registries_lend_no_protocol_another_name() -> None:
    """Shared code imports from a registry nothing that belongs to one protocol."""
    lent = set()
    for file in shared_files():
        for node in ast.walk(ast.parse((SOURCE / file).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in REGISTRIES:
                registry = import_module(node.module)
                values = ((alias.name, getattr(registry, alias.name)) for alias in node.names)
                lent |= {name for name, value in values if PACKAGES & home_of(value)}
    assert lent == set(ALLOWED_EXPORTS)


def home_of(value: object) -> set[str]:
    return set(str(getattr(value, "__module__", "")).split("."))


def test_a_name_is_found_wherever_it_stands() -> None:
    source = '''
"""Prose about `chained`."""
from loomlog.client.loglets.chained import part
def f(copyset_state: CopysetInfo) -> None:
    """Prose about copyset."""
    use(protocol="ordered", ordered=1, orderly="in order", help="chained")
    use(b"copyset", "chain" + "ed", orderedstream, OrderedDict, itertools.chain)
    match state:
        case State(copyset=found):
            use(stream.projection)
'''
    tree = ast.parse(source)
    found = [text for _, text in mentions(tree, has_help=True) if is_named_in(text)]
    assert sorted(found) == sorted(
        [
            "loomlog.client.loglets.chained",
            *("copyset_state", "CopysetInfo", "ordered", "ordered"),
            *("copyset", "chained", "chain", "orderedstream", "copyset", "stream.projection"),
        ]
    )
    assert "chained" in [text for _, text in mentions(tree, has_help=False)]


def test_a_comparison_with_a_constant_is_found() -> None:
    source = """
a = segment.protocol == DEFAULT
b = protocol in (names.STAGING, other)
c = protocol.startswith("ch")
match stream.protocol:
    case "c":
        pass
d = wanted.protocol == now.protocol or protocol in kept or protocol is None or protocol == other
"""
    assert {line for line, _ in comparisons(ast.parse(source))} == {2, 3, 4, 5}
