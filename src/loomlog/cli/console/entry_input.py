"""Parses the input of `loom append`: one entry per line, as text, base64 or JSON."""

from __future__ import annotations

import binascii
import json
import os
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from loomlog.cli.console.failures import UsageError
from loomlog.console.entries import Record, parse_record
from loomlog.errors import InvalidArgument

FORMATS: Final = ("text", "base64", "json")
_SHOWN_FIELDS: Final = {"position", "stream", "llsn"}  # by `loom tail --json`; not appended

Parse = Callable[[bytes, int], Record]  # a line and its number


@dataclass(frozen=True, slots=True)
class InputOptions:
    """The format of the lines, and what every entry gets."""

    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="Format of a line: the value as text or base64, or a JSON object with value, key, "
            "timestamp and headers, as `loom tail --json` prints it.",
        ),
    ] = "text"
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", show_default="no keys", help="Text between key and value of a line."
        ),
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", show_default=False, help="Header of every entry. Repeatable."
        ),
    ] = None

    def parser(self) -> Parse:
        """Return the function that parses a line; raise if the options contradict each other."""
        if self.form not in FORMATS:
            raise UsageError(f"--format: {self.form!r} is none of {', '.join(FORMATS)}")
        if self.key_separator == "":
            raise typer.BadParameter("must not be empty", param_hint="--key-separator")
        if self.key_separator is not None and self.form == "json":
            raise UsageError(
                "--key-separator cannot be used with JSON lines, which contain their keys"
            )
        separator = None if self.key_separator is None else os.fsencode(self.key_separator)
        parse = parser(self.form, separator)
        headers = parse_headers(self.header or ())
        return _with_headers(parse, headers) if headers else parse


def _with_headers(parse: Parse, headers: Mapping[str, bytes]) -> Parse:
    """Return a parser that adds headers; those of a line take precedence."""

    def parse_line(line: bytes, number: int) -> Record:
        record = parse(line, number)
        return record._replace(headers={**headers, **(record.headers or {})})

    return parse_line


def parser(form: str, key_separator: bytes | None) -> Parse:
    """Return the function that parses a line in this format."""
    parse = {"text": _text, "base64": _base64, "json": _json}[form]
    if key_separator is None:
        return parse

    def parse_with_key(line: bytes, number: int) -> Record:
        key, value = split_key(line, key_separator, number)
        return parse(value, number)._replace(key=parse(key, number).value)

    return parse_with_key


def split_key(line: bytes, separator: bytes, number: int) -> tuple[bytes, bytes]:
    """Split a line into key and value."""
    key, found, value = line.partition(separator)
    if not found:
        shown = separator.decode(errors="backslashreplace")
        raise InvalidArgument(f"line {number} has no key: there is no {shown!r} in it")
    return key, value


def _text(line: bytes, number: int) -> Record:
    return Record(line)


def _base64(line: bytes, number: int) -> Record:
    try:
        return Record(b64decode(line, validate=True))
    except binascii.Error:
        raise InvalidArgument(f"line {number} is not base64") from None


def _json(line: bytes, number: int) -> Record:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidArgument(
            f"line {number} is not JSON: write an object with value or value_base64, and "
            "optionally key or key_base64, timestamp and headers, as `loom tail --json` shows it"
        ) from None
    if isinstance(fields, dict):
        fields = {name: each for name, each in fields.items() if name not in _SHOWN_FIELDS}
    return parse_record(fields, f"line {number}")


def parse_headers(texts: Sequence[str]) -> dict[str, bytes]:
    """Parse NAME=VALUE."""
    headers: dict[str, bytes] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator or name in headers:
            raise UsageError(f"--header: {text!r} is not NAME=VALUE, or is given twice")
        headers[name] = os.fsencode(value)
    return headers
