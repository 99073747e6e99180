"""`--config FILE.toml` of servers: keys are the names of options.

Top-level keys are for every server that reads the file, those in a table [vmr], [vsn] or [console]
only for that kind. The command line takes precedence over the environment, and the environment over
the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import copy
from difflib import get_close_matches
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
from typer.models import OptionInfo

from loomlog.cli.console.failures import UsageError

_TABLES: Final = ("vmr", "vsn", "console")
_NOT_OF: Final[Mapping[str, frozenset[str]]] = {"console": frozenset({"cluster_id"})}
_OWN: Final = "config"


def load(context: typer.Context, file: Path | None) -> Path | None:
    """Make the values of the file the defaults of the other options. Called before those are
    parsed."""
    if file is not None:
        options = {p.name or "": p for p in context.command.params if not getattr(p, "hidden", 0)}
        kind = next((word for word in context.command_path.split() if word in _TABLES), "")
        context.default_map = _values(file, kind, {n: _is_many(p) for n, p in options.items()})
    return file


Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        is_eager=True,
        callback=load,
        exists=True,
        dir_okay=False,
        show_default="none",
        help="Also read options from this file; see docs/configuration.md.",
    ),
]


def _is_many(option: Any) -> bool:
    return bool(option.multiple)


def _values(file: Path, kind: str, options: Mapping[str, bool]) -> dict[str, Any]:
    """Return the values for a kind of server by the names of its parameters."""
    try:
        content = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from None
    tables = {name: content.pop(name) for name in _TABLES if isinstance(content.get(name), dict)}
    found: dict[str, Any] = {}
    for key, value in (content | tables.get(kind, {})).items():
        name = key.replace("-", "_")
        if key in content and name in _NOT_OF.get(kind, ()):
            continue  # at the top level, for the other servers of the machine
        if name not in options or name == _OWN:
            raise UsageError(f"{file}: there is no option {key!r}{_suggestion(name, options)}")
        found[name] = _checked(file, key, value, is_many=options[name])
    return found


def _suggestion(name: str, options: Mapping[str, bool]) -> str:
    close = get_close_matches(name, options, 1)
    return f"; did you mean {close[0].replace('_', '-')!r}?" if close else ""


def _checked(file: Path, key: str, value: Any, *, is_many: bool) -> Any:
    """Return the value in the form that an option expects."""
    parts = value if isinstance(value, list) and is_many else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        wanted = "a list of texts" if is_many else "a text, a number, true or false"
        raise UsageError(f"{file}: {key} must be {wanted}")
    return parts if is_many else value


def with_variables(parameters: Mapping[str, Parameter], prefix: str) -> dict[str, Parameter]:
    """Return the parameters of a command with an environment variable for each option."""
    return {
        name: _with_variable(each, f"{prefix}_{name.upper()}") for name, each in parameters.items()
    }


def _with_variable(parameter: Parameter, variable: str) -> Parameter:
    kind, *extra = get_args(parameter.annotation)
    options = [each for each in extra if isinstance(each, OptionInfo)]
    if not options or options[0].hidden:
        return parameter
    option = copy(options[0])
    option.envvar = option.envvar or variable
    return parameter.replace(annotation=Annotated[kind, option])
