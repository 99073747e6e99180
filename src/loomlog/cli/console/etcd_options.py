"""Options of all that reaches into etcd: where it is, and who we are there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from loomlog.cli.console.failures import UsageError
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


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The options that say which keys of etcd are ours, and who we are there."""

    etcd_prefix: EtcdPrefix = "loomlog"
    etcd_user: EtcdUser = ""
    etcd_ca: EtcdCa = ""
    etcd_cert: EtcdCert = ""
    etcd_key: EtcdKey = ""

    def settings(self, etcd: str) -> EtcdSettings:
        """The password comes from the environment, where `ps` does not show it."""
        endpoints = tuple(filter(None, etcd.split(",")))
        for endpoint in endpoints:
            split_address(endpoint)
        return EtcdSettings(
            endpoints=endpoints,
            prefix=self.etcd_prefix,
            user=self.etcd_user or None,
            password=os.environ.get(PASSWORD_VARIABLE, "") if self.etcd_user else None,
            ca=self.etcd_ca or None,
            cert=self.etcd_cert or None,
            key=self.etcd_key or None,
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
