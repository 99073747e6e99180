"""Servers and commands that tests start are forked from a process that has imported them already.

Importing takes half a second of CPU, and tests start hundreds. `install` lets `subprocess` (and
asyncio, which uses it) ask that process, the nursery, for `python -m loomlog.cli.…`; the new
process is a child of the caller as usual, with files, environment and directory as they were asked
for. `loom up` has a nursery of its own, and runs without uvloop, which would not ask it. Whatever
is started with other PYTHON… variables is executed as ever.

Run as a program, this is the nursery.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from loomlog.cli.loom import COMMANDS

PROGRAMS = tuple(f"loomlog.cli.{name}" for name in ("loom", "vmr", "vsn"))
# What programs import when they run.
LATER = (
    *("loomlog.client.blocking", "loomlog.client.cluster", "loomlog.metadata", "loomlog.node"),
    *("loomlog.cli.processes.served_node", "loomlog.columns", "loomlog.console.server"),
    *("loomlog.http", "encodings.idna", "rich.console", "typer._adapters", "uvloop"),
    *(f"loomlog.cli.commands.{name}" for name in COMMANDS),
    *(("pandas",) if find_spec("pandas") is not None else ()),  # Arrow wants it, if it is there
)
# Libraries that are loaded with these start no threads, which a fork would not have.
ONE_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
REQUEST_BYTES_MAX = 128 * 1024
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


# ---- who starts programs


class Nursery:
    """The process that forks, started by the first who needs it; it ends with this one."""

    def __init__(self, requests: socket.socket | None = None) -> None:
        self._requests = requests  # to one that runs already
        self._environment = _python_environment(os.environ)
        self._lock = threading.Lock()

    def serves(self, command: list[str], environment: Mapping[str, str]) -> bool:
        known = command[:2] == [sys.executable, "-m"] and command[2] in PROGRAMS
        return known and _python_environment(environment) == self._environment

    def start(self, request: Mapping[str, object], files: list[int]) -> int:
        """Return the process id of the program, a child of this process."""
        assert _prctl is not None
        with self._lock:
            requests = self._open()
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # its parent ends at once: inherit it
            try:
                socket.send_fds(requests, [json.dumps(request).encode()], files)
                return int(requests.recv(64))
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _open(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # Its stdin and stdout are pipes, as those of the programs mostly are.
                process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=os.environ | ONE_THREAD,
                    pass_fds=[theirs.fileno()],
                )
            atexit.register(self._close, self._requests, process)
        return self._requests

    def _close(self, requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
        requests.close()
        process.communicate()


def _python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in environment if name.startswith("PYTHON")}


def install(requests: socket.socket | None = None) -> None:
    """Start programs by forking from now on, where the system can do that."""
    if _prctl is None:
        return
    nursery = Nursery(requests)
    execute: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def start(
        self: Any,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        *more: Any,
    ) -> None:
        pipes, new_session = more[:6], more[11]
        environment = dict(os.environ if env is None else env)
        usual = isinstance(args, list | tuple) and not (shell or preexec_fn or pass_fds)
        if not usual or not nursery.serves(list(args), environment):
            before = (executable, preexec_fn, close_fds, pass_fds, cwd, env)
            execute(self, args, *before, startupinfo, creationflags, shell, *more)
            return
        request = {
            "command": args[2:],
            "environment": environment,
            "directory": os.fspath(cwd or os.getcwd()),
            "new_session": new_session,
        }
        theirs = (pipes[0], pipes[3], pipes[5])  # -1: the same as ours
        files = [own if file == -1 else file for own, file in enumerate(theirs)]
        self.pid = nursery.start(request, files)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


# ---- the nursery


def _next_program(requests: socket.socket) -> list[str] | None:
    """Return in a new process, with its command; in this one, when nobody needs it any more."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not message:
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            if child := os.fork():
                os.write(writing, str(child).encode())
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0001)
            return _become(json.loads(message), files)
        os.waitpid(between, 0)
        requests.send(os.read(reading, 64))
        for file in (reading, writing, *files):
            os.close(file)


def _become(request: dict[str, Any], files: list[int]) -> list[str]:
    for own, given in enumerate(files):
        os.dup2(given, own)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[0] = request["directory"]
    if request["new_session"]:
        os.setsid()
    return list(request["command"])


def _fork_children(program: list[str]) -> list[str] | None:
    """Return in the program that has children, and in each of those; None in its nursery, when the
    program has ended."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        sys.modules["uvloop"] = None  # type: ignore[assignment]
        install(ours)
        return program
    ours.close()
    os.setsid()  # signals are for the program
    nothing = os.open(os.devnull, os.O_RDWR)
    for own in range(3):
        os.dup2(nothing, own)
    return _next_program(theirs)


def _end(code: int) -> None:
    """End as programs do, but for freeing all that they have imported: in a process that was forked
    that copies each of its pages first, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    for name in (*PROGRAMS, *LATER):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has one thread"
    gc.collect()
    gc.freeze()
    asked = _next_program(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None and ("up" in asked[1:2] or "bench" in asked[1:2]):
        asked = _fork_children(asked)
    if asked is not None:
        program = importlib.import_module(asked[0])
        sys.argv = [str(program.__file__), *asked[1:]]
        try:
            program.main()
        except SystemExit as end:
            if not isinstance(end.code, str):
                _end(end.code or 0)
            raise
