"""Commands whose modules are imported when they are needed: a program with many runs one of them,
and to import all takes longer than most of them take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import typer

from loomlog.cli.console.command import command

HELP_NAMES: Final = ("-h", "--help")


class LazyCommands(Mapping[str, Any]):
    """The commands of a group by name. The module of one has a function of the same name, or an
    `app` if it is a group itself. With VARIABLES, options can be given as environment variables
    that begin with that."""

    def __init__(self, package: str, names: tuple[str, ...]) -> None:
        self._package = package
        self._names = names
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _load(self, name: str) -> Any:
        module = import_module(f"{self._package}.{name}")
        if hasattr(module, "app"):
            group = typer.main.get_group(module.app)
            group.name = name
            show_flags_without_types(group)
            return group
        alone = typer.Typer(add_completion=False)
        command(alone, variables=getattr(module, "VARIABLES", ""))(getattr(module, name))
        loaded = typer.main.get_command(alone)
        show_flags_without_types(loaded)
        return loaded


def show_flags_without_types(command: Any) -> None:
    """Let the help of a command, and of those below it, show options that take no value as such.
    Typer would write `<bool>` behind them."""
    context = typer.Context(command, help_option_names=list(HELP_NAMES))
    for option in (*command.params, command.get_help_option(context)):
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    below = getattr(command, "commands", {})
    for each in {} if isinstance(below, LazyCommands) else below:
        show_flags_without_types(below[each])
