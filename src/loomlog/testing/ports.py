"""Ports for servers whose address must be known before they start, or after a restart.

Each process takes them from a slice of its own: a port that is free for a moment, because its
server is about to start, is not taken by another process.
"""

from __future__ import annotations

import random
import socket
from functools import cache
from typing import Final

_HOST: Final = "127.0.0.1"
_PORTS: Final = range(10_000, 32_768)  # below those that the kernel gives to outgoing connections
_SLICE: Final = 256


def listen_on_free_port() -> socket.socket:
    """Listen on a port that no outgoing connection takes."""
    while True:
        try:
            return socket.create_server((_HOST, random.choice(_own_ports())))
        except OSError:
            continue


def free_address() -> str:
    """Return an address that is free now, and that no outgoing connection will take."""
    with listen_on_free_port() as listener:
        return f"{_HOST}:{listener.getsockname()[1]}"


@cache
def _own_ports() -> range:
    """Return the slice of this process, which listens on the first port of it to the end."""
    starts = _PORTS[::_SLICE]
    for start in random.sample(starts, len(starts)):
        try:
            socket.create_server((_HOST, start)).detach()
        except OSError:
            continue
        return range(start + 1, start + _SLICE)
    return _PORTS
