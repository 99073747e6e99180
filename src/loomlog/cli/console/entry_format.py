"""Formats an entry as one line: value, key and value, a user's template, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Final

from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.output import visible
from loomlog.console.entries import entry_fields

if TYPE_CHECKING:
    from loomlog.types import Entry

Show = Callable[["Entry"], bytes]

_FIELDS: Final[dict[str, Callable[[Entry], bytes]]] = {
    "position": lambda entry: b"%d" % entry.position,
    "time": lambda entry: entry.timestamp.isoformat(timespec="milliseconds").encode(),
    "key": lambda entry: entry.key or b"",
    "value": lambda entry: entry.value,
    "stream": lambda entry: b"%d" % entry.stream,
}
_ESCAPES: Final = {r"\t": "\t", r"\n": "\n", r"\0": "\0"}


def as_json(entry: Entry) -> bytes:
    """Show all fields as a JSON object."""
    return json.dumps(entry_fields(entry)).encode()


def as_text(*, positions: bool, raw: bool) -> Show:
    """Show the value, preceded by the position if `positions`, and by the key if there is one."""

    def show(entry: Entry) -> bytes:
        parts = [b"%d" % entry.position] if positions else []
        if entry.key is not None:
            parts.append(_shown(entry.key, raw=raw))
        return b"\t".join([*parts, _shown(entry.value, raw=raw)])

    return show


def as_template(template: str, *, raw: bool) -> Show:
    r"""Show a template such as "{position}\t{key} {value}"."""
    for written, meant in _ESCAPES.items():
        template = template.replace(written, meant)
    try:
        fields = [
            (text.encode(), None if name is None else _FIELDS[f"{name}{specification}"])
            for text, name, specification, _ in Formatter().parse(template)
        ]
        if all(field is None for _, field in fields):
            raise ValueError  # every line would be the same
    except (ValueError, KeyError):
        known = ", ".join(f"{{{name}}}" for name in _FIELDS)
        raise UsageError(
            f"--format: {template!r} is not a template; the fields are {known}"
        ) from None

    def show(entry: Entry) -> bytes:
        return b"".join(
            text + (_shown(field(entry), raw=raw) if field else b"") for text, field in fields
        )

    return show


def _shown(data: bytes, *, raw: bool) -> bytes:
    return data if raw else visible(data).encode()
