"""Ports for servers whose address must be known before they start, or after a restart."""

from __future__ import annotations

import random
import socket

_HOST = "127.0.0.1"


def listen_on_free_port() -> socket.socket:
    """Listen on a port below those that the kernel gives to outgoing connections."""
    while True:
        try:
            return socket.create_server((_HOST, random.randrange(10_000, 32_768)))
        except OSError:
            continue


def free_address() -> str:
    """Return an address that is free now, and that no outgoing connection will take."""
    with listen_on_free_port() as listener:
        return f"{_HOST}:{listener.getsockname()[1]}"
