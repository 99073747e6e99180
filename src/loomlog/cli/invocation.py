"""Commands of an operator that one can wait for: they all have the same options for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Signature, signature
from typing import Any

from loomlog.cli.options import CLUSTER, Cluster, Json, Wait, WaitMax


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a command was called: for which cluster, what it prints, how long it stays."""

    address: str
    as_json: bool
    wait: bool
    timeout_s: float | None


def _options(
    wait: Wait = False, timeout: WaitMax = None, cluster: Cluster = CLUSTER, as_json: Json = False
) -> Invocation:
    return Invocation(cluster, as_json, wait, timeout)


def waitable(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `_options` behind its own; it gets them as its first argument."""
    shared = signature(_options, eval_str=True).parameters
    own = dict(list(signature(command, eval_str=True).parameters.items())[1:])
    parameters = own | dict(shared)

    def called(**given: Any) -> None:
        how = _options(**{name: given.pop(name) for name in shared})
        command(how, **given)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    # What typer makes its options from.
    called.__signature__ = Signature(list(parameters.values()))  # type: ignore[attr-defined]
    called.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return called
