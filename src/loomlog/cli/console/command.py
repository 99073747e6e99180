"""Commands from functions: groups of options that several commands share, and an event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from inspect import Parameter, Signature, iscoroutine, signature
from typing import Any, TypeVar

import typer

from loomlog.cli.console.options import CLUSTER, Cluster, Json, Wait, WaitMax

Work = TypeVar("Work", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options of commands that can wait until the cluster is done."""

    wait: Wait = False
    timeout: WaitMax = None
    cluster: Cluster = CLUSTER
    as_json: Json = False


def command(app: typer.Typer, name: str | None = None) -> Callable[[Work], Work]:
    """Register a function as a command; a coroutine function runs in an event loop of its own.

    A parameter whose type is a dataclass stands for the options that are its fields.
    """

    def register(work: Work) -> Work:
        app.command(name)(_with_plain_options(work))
        return work

    return register


def _with_plain_options(work: Callable[..., Any]) -> Callable[..., None]:
    groups: dict[str, Callable[..., Any]] = {}
    options: dict[str, Parameter] = {}
    for parameter in _parameters(work):
        group: Callable[..., Any] = parameter.annotation
        if is_dataclass(group):
            groups[parameter.name] = group
            options |= {field.name: field for field in _parameters(group)}
        else:
            options[parameter.name] = parameter

    def run(**values: Any) -> None:
        for name, group in groups.items():
            fields = {field.name: values.pop(field.name) for field in _parameters(group)}
            values[name] = group(**fields)
        result = work(**values)
        if iscoroutine(result):
            from loomlog.cli.processes import event_loop

            event_loop.run(result)

    run.__name__, run.__doc__ = work.__name__, work.__doc__
    # What typer makes its options from.
    run.__signature__ = Signature(list(options.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in options.items()}
    return run


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    parameters = signature(function, eval_str=True).parameters.values()
    return [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
