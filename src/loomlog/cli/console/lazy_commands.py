"""Commands whose modules are imported when needed, because importing all of them takes longer than
most commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import typer

from loomlog.cli.console.command import command

HELP_NAMES: Final = ("-h", "--help")


class LazyCommands(Mapping[str, Any]):
    """The commands of a group by name. A command's module has a function of the same name, or an
    `app` if it is a group itself. With VARIABLES, options can be given as environment variables
    with that prefix."""

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
    """Show options without a value as flags in the help of a command and its subcommands. Typer
    would write `<bool>` after them."""
    context = typer.Context(command, help_option_names=list(HELP_NAMES))
    for option in (*command.params, command.get_help_option(context)):
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    below = getattr(command, "commands", {})
    for each in {} if isinstance(below, LazyCommands) else below:
        show_flags_without_types(below[each])
