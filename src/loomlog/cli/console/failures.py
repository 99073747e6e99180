"""Ends failed commands with one line on stderr and an exit code, never a traceback; with --json
the line is a JSON object.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. A reader that closes the pipe (`loom
tail … | head`) is not a failure.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from loomlog.errors import LoomError

if TYPE_CHECKING:
    import typer

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130


class UsageError(LoomError):
    """The command line is wrong."""


def main(app: typer.Typer, name: str) -> NoReturn:
    """Run a command line to its end."""
    _open_closed_descriptors()
    code = _outcome(app, name)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    sys.exit(code)


def _outcome(app: typer.Typer, name: str) -> int:
    from typer.exceptions import Abort, TyperException

    try:
        # A command's return value is not its exit code; raise typer.Exit for a code other than 0.
        code = app(prog_name=name, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        return _say(name, "UsageError", _usage(error), WRONG_USAGE)
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer turned it into an exit
            _forget_stdout()
            return 0
        return end.code if isinstance(end.code, int) else FAILED
    except UsageError as error:
        return _say(name, "UsageError", describe(error), WRONG_USAGE)
    except Exception as error:
        if os.environ.get("LOOM_DEBUG"):
            raise
        return _say(name, type(error).__name__, describe(error), FAILED)


def describe(error: BaseException) -> str:
    """Return in one line what happened and what to do."""
    if isinstance(error, LoomError):
        text = str(error) or type(error).__name__
    elif isinstance(error, UnicodeEncodeError) and isinstance(error.object, str):
        text = f"{error.object!r} is not valid UTF-8: write names and patterns in UTF-8"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = (
            f"unexpected {type(error).__name__}: {error}; this is a bug: "
            "set LOOM_DEBUG=1 to see where, and report it"
        )
    return _one_line(text)


def _usage(error: Exception) -> str:
    from typer.exceptions import TyperException

    assert isinstance(error, TyperException)
    context = getattr(error, "ctx", None)
    text = _one_line(error.format_message()).removesuffix(".")
    if context is None:
        return text
    see = f"see `{context.command_path} --help`"
    return f"{text} {see.capitalize()}" if text.endswith("?") else f"{text}; {see}"


def _say(name: str, kind: str, text: str, code: int) -> int:
    """Print the failure on stderr, as JSON if the output would have been JSON."""
    line = f"{name}: {text}"
    if "--json" in sys.argv[1:]:
        line = json.dumps({"error": kind, "message": text})
    print(line, file=sys.stderr)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _open_closed_descriptors() -> None:
    """Open closed standard descriptors (`loom … >&-`) on the null device. Otherwise the next socket
    would get their number, and output would go there."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _forget_stdout() -> None:
    # The interpreter flushes stdout once more at exit; discard that.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
