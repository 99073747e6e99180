"""Addresses in the form host:port."""

from __future__ import annotations

from ipaddress import ip_address

from loomlog.errors import InvalidArgument, shown


def split_address(address: str) -> tuple[str, int]:
    """Split `127.0.0.1:7400` or `[::1]:7400` into host and port."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise InvalidArgument(f"{shown(address)} is not host:port, e.g. 127.0.0.1:7400")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(address: str) -> bool:
    """Return whether an address is reached from this machine only."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
