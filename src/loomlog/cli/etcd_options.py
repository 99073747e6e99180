"""Options of all that reaches into etcd: where it is, and who we are there."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from loomlog.cli.failures import UsageError
from loomlog.config import EtcdSettings
from loomlog.errors import LoomError
from loomlog.net.address import split_address

PASSWORD_VARIABLE: Final = "LOOM_ETCD_PASSWORD"

Etcd = Annotated[
    str,
    typer.Option(
        metavar="ADDR[,ADDR…]",
        show_default=False,
        help="The etcd of several metadata repositories.",
    ),
]
EtcdPrefix = Annotated[
    str, typer.Option(metavar="TEXT", help="Of all keys in etcd: one for each cluster.")
]
EtcdUser = Annotated[
    str,
    typer.Option(
        metavar="NAME", show_default=False, help=f"In etcd; the password is in {PASSWORD_VARIABLE}."
    ),
]
EtcdCa = Annotated[
    str, typer.Option(metavar="FILE", show_default=False, help="CA of etcd: TLS is used.")
]
EtcdCert = Annotated[
    str, typer.Option(metavar="FILE", show_default=False, help="Our certificate for etcd.")
]
EtcdKey = Annotated[str, typer.Option(metavar="FILE", show_default=False, help="Its key.")]
Peers = Annotated[
    str,
    typer.Option(
        metavar="N=ADDR[,N=ADDR…]",
        show_default=False,
        help="All metadata repositories by number and address.",
    ),
]

ETCD_PREFIX: Final = "loomlog"


def etcd_settings(etcd: str, prefix: str, user: str, ca: str, cert: str, key: str) -> EtcdSettings:
    """As the options say; the password comes from the environment, where `ps` does not show it."""
    endpoints = tuple(filter(None, etcd.split(",")))
    for endpoint in endpoints:
        split_address(endpoint)
    return EtcdSettings(
        endpoints=endpoints,
        prefix=prefix,
        user=user or None,
        password=os.environ.get(PASSWORD_VARIABLE, "") if user else None,
        ca=ca or None,
        cert=cert or None,
        key=key or None,
    )


def parse_peers(text: str) -> dict[int, str]:
    """1=host:port,2=host:port"""
    peers: dict[int, str] = {}
    for part in text.split(","):
        number, _, address = part.partition("=")
        try:
            member = int(number)
            split_address(address)
        except (ValueError, LoomError):
            raise UsageError(f"--peers: {part!r} is not N=HOST:PORT") from None
        if member < 1 or member in peers:
            raise UsageError(f"--peers: numbers begin at 1 and differ, {member} is wrong")
        if address in peers.values():
            raise UsageError(f"--peers: each has an address of its own, {address} is there twice")
        peers[member] = address
    return peers
