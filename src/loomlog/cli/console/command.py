"""The framework of commands: options from dataclasses, an event loop, a connection to the
cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, is_dataclass
from inspect import Parameter, Signature, iscoroutine, signature
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from loomlog import limits
from loomlog.cli.console import options
from loomlog.cli.console.config_file import with_variables
from loomlog.errors import Timeout, Unavailable
from loomlog.net.connection import Damaged
from loomlog.net.credentials import HandshakeFailed

if TYPE_CHECKING:
    from loomlog import BlockingCluster, Cluster

T = TypeVar("T")
Work = TypeVar("Work", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options of commands that can wait for the cluster to finish."""

    wait: options.Wait = False
    timeout: options.WaitMax = None
    cluster: options.Cluster = options.CLUSTER
    as_json: options.Json = False


def command(
    app: typer.Typer, name: str | None = None, *, variables: str = ""
) -> Callable[[Work], Work]:
    """Register a function as a command; a coroutine function runs in a new event loop.

    A parameter whose type is a dataclass represents the options in its fields. With `variables`,
    each option can also be given as an environment variable with that prefix.
    """

    def register(work: Work) -> Work:
        app.command(name)(_with_plain_options(work, variables))
        return work

    return register


def default_command(app: typer.Typer) -> Callable[[Work], Work]:
    """Register a function that runs when no command of the app is named. Like a command's, its
    options may be dataclasses; `invocation` must be its first parameter."""

    def register(work: Work) -> Work:
        app.callback(invoke_without_command=True)(_with_plain_options(work, ""))
        return work

    return register


def _with_plain_options(work: Callable[..., Any], variables: str) -> Callable[..., None]:
    groups: dict[str, Callable[..., Any]] = {}
    flat: dict[str, Parameter] = {}
    for parameter in _parameters(work):
        group: Callable[..., Any] = parameter.annotation
        if is_dataclass(group):
            groups[parameter.name] = group
            flat |= {field.name: field for field in _parameters(group)}
        else:
            flat[parameter.name] = parameter

    if variables:
        flat = with_variables(flat, variables)

    def run(**values: Any) -> None:
        for name, group in groups.items():
            fields = {field.name: values.pop(field.name) for field in _parameters(group)}
            values[name] = group(**fields)
        result = work(**values)
        if iscoroutine(result):
            run_async(result)

    run.__name__, run.__doc__ = work.__name__, work.__doc__
    # typer derives the options from this.
    run.__signature__ = Signature(list(flat.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in flat.items()}
    return run


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    parameters = signature(function, eval_str=True).parameters.values()
    return [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]


# ---- event loop


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop if it is installed. Ctrl-C cancels it and raises
    KeyboardInterrupt."""
    with asyncio.Runner(loop_factory=_new_loop()) as runner:
        return runner.run(main)


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return new_loop


# ---- connection


@asynccontextmanager
async def connected(
    address: str, request_timeout_s: float = limits.REQUEST_TIMEOUT_S, tls: str | None = None
) -> AsyncIterator[Cluster]:
    """Connect to the cluster at `address`; Unavailable says what to do if there is none."""
    import loomlog

    try:
        cluster = await loomlog.connect(address, request_timeout_s=request_timeout_s, tls=tls)
    except (HandshakeFailed, Damaged):
        raise
    except (Unavailable, Timeout, OSError) as error:
        raise unreachable(address, error) from None
    async with cluster:
        yield cluster


@contextmanager
def connected_sync(address: str) -> Iterator[BlockingCluster]:
    """Connect in a command without an event loop."""
    import loomlog

    try:
        cluster = loomlog.connect_sync(address)
    except (HandshakeFailed, Damaged):
        raise
    except (Unavailable, Timeout, OSError) as error:
        raise unreachable(address, error) from None
    with cluster:
        yield cluster


def unreachable(address: str, error: Exception) -> Unavailable:
    """Return advice for a cluster that cannot be reached."""
    if isinstance(error, Timeout):
        return Unavailable(
            f"{address} does not answer as a metadata repository: is it overloaded, or is this the "
            "address of something else, such as HTTP?"
        )
    return Unavailable(f"cannot reach {address}: start a cluster with `loom up` or give --cluster")
