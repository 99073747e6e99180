"""Ports for servers whose address must be known before they start, or after a restart.

Each process takes them in turn from its own slice: a port that is free for a moment, because its
server is about to start, is not taken by another process, or soon again by the same one.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Final

_HOST: Final = "127.0.0.1"
_PORTS: Final = range(10_000, 32_768)  # below those that the kernel gives to outgoing connections
_SLICE: Final = 256


def listen_on_free_port() -> socket.socket:
    """Listen on a port that no outgoing connection takes."""
    while True:
        try:
            return socket.create_server((_HOST, next(_own_ports())))
        except OSError:
            continue


def free_port() -> int:
    """Return a port that is free now and will not be taken by an outgoing connection."""
    with listen_on_free_port() as listener:
        return int(listener.getsockname()[1])


def free_address() -> str:
    """Return the address of such a port on the loopback interface."""
    return f"{_HOST}:{free_port()}"


@cache
def _own_ports() -> Iterator[int]:
    """Yield the ports of this process repeatedly. It keeps listening on the first one of its slice,
    so that other processes use other slices."""
    starts = _PORTS[::_SLICE]
    for start in random.sample(starts, len(starts)):
        try:
            socket.create_server((_HOST, start)).detach()
        except OSError:
            continue
        return cycle(range(start + 1, start + _SLICE))
    return cycle(random.sample(_PORTS, len(_PORTS)))
