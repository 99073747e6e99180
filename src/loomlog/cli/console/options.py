"""Options that several commands share: the cluster, logs and nodes, positions, etcd."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final

import typer

from loomlog import limits
from loomlog.cli.console.failures import UsageError
from loomlog.config import EtcdSettings, VolumeLimit, parse_number, parse_size
from loomlog.errors import InvalidArgument, LoomError
from loomlog.limits import IdentityLimits
from loomlog.net.address import split_address

CLUSTER: Final = "127.0.0.1:7400"  # where a command looks for a cluster by default
CLUSTER_VARIABLE: Final = "LOOM_CLUSTER"

Cluster = Annotated[
    str,
    typer.Option(
        envvar=CLUSTER_VARIABLE,
        metavar="ADDR",
        help="Address of the cluster's metadata repository.",
    ),
]
SPARK_MASTER: Final = "local[*,4]"  # without the second number tasks are not retried

SparkMaster = Annotated[
    str, typer.Option(metavar="URL", help="Spark master: local[N,4], spark://….")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LogName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log.")]
LogOrAll = Annotated[
    str | None, typer.Argument(metavar="LOG", help="Name of the log.", show_default="all logs")
]
Node = Annotated[int, typer.Argument(metavar="NODE", min=1, help="Number of the storage node.")]
Stream = Annotated[int, typer.Argument(metavar="STREAM", min=1, help="Number of the log stream.")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until it is finished; Ctrl-C ends only the waiting.")
]
WaitMax = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0,
        metavar="S",
        show_default="never",
        help="With --wait: fail after this long.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

Nodeset = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="up to 20",
        help="Number of nodes for a copyset log.",
    ),
]
Retention = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        show_default="forever",
        help="Trim entries older than this, by their timestamps and arrival: 12h, 7d.",
    ),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        show_default="all",
        help="Keep the newest entries of this size, and trim older ones: 500M, 10G.",
    ),
]


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """When the data of a silent node is restored elsewhere, and how fast."""

    heartbeat_timeout: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="Seconds of silence until a node counts as dead."),
    ] = limits.FAILURE_DETECTION_S
    replace_after: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="S",
            show_default="as soon as it counts as dead",
            help="Seconds of silence until its replicas are rebuilt on other nodes.",
        ),
    ] = None
    rebuild_after: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="S",
            help="Seconds of silence until its copies of copyset logs are rebuilt on other nodes; "
            "at least --replace-after.",
        ),
    ] = limits.REBUILD_AFTER_S
    rebuild_rate: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="MB/S",
            help="Limit for the data that a node sends for this; 0: no limit.",
        ),
    ] = limits.REBUILD_BYTES_PER_S / 1e6
    sync_rate: Annotated[
        float,
        typer.Option(min=0, metavar="MB/s", help="Limit for copying one stream; 0: no limit."),
    ] = 0.0


def read_nodes(text: str) -> list[int]:
    """Parse the numbers of nodes, such as 1,2,4."""
    numbers = [parse_number(part.strip()) for part in text.split(",")] if text else []
    if not all(numbers):
        raise UsageError(f"{text!r} does not name nodes: write their numbers, such as 1,2,4")
    return [number for number in numbers if number]


# ---- positions, as they are displayed or as plain numbers

STARTS: Final = ("earliest", "latest")


def parse_position(text: str, least: int) -> int:
    """Parse 4200, 4,200 or, with an epoch, e3n17."""
    from loomlog.limits import POSITION_MAX
    from loomlog.wire import info

    position = info.parse_position(text)
    if position is None or not least <= position <= POSITION_MAX:
        raise typer.BadParameter(
            f"{text!r} is not a position: write a number from {least} on, "
            "or e3n17 if positions of the log are shown like this"
        )
    return position


def read_start(text: str) -> int | str | datetime:
    """Parse the start of a reader: a position, a time, or the name of one end of the log."""
    if text in STARTS:
        return text
    try:
        return parse_moment(text) if "-" in text else parse_position(text, 1)
    except (UsageError, typer.BadParameter):
        raise typer.BadParameter(
            f"{text!r} is not where a log can begin: write a position such as 4200 or e3n17, "
            f"a time such as 2026-11-16T03:00, {' or '.join(STARTS)}"
        ) from None


def parse_moment(text: str) -> datetime:
    """Parse an ISO 8601 time, UTC unless it names a zone; or how long ago it was, such as 1h."""
    from loomlog.client.arguments import DURATION_UNITS, ago

    if text.strip()[-1:] in DURATION_UNITS:
        try:
            return ago(text)
        except InvalidArgument as error:
            raise UsageError(str(error)) from None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time: write 2026-11-16T03:00, or 1h for an hour ago"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


read_position = partial(parse_position, least=1)
read_position_or_0 = partial(parse_position, least=0)


# ---- etcd: address and user

PASSWORD_VARIABLE: Final = "LOOM_ETCD_PASSWORD"

Etcd = Annotated[
    str,
    typer.Option(
        metavar="ADDR[,ADDR…]",
        show_default=False,
        help="Addresses of the etcd of several metadata repositories.",
    ),
]
EtcdPrefix = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Prefix of all keys in etcd, different for each cluster."),
]
EtcdUser = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help=f"User in etcd; the password is in {PASSWORD_VARIABLE}.",
    ),
]
EtcdCa = Annotated[
    str, typer.Option(metavar="FILE", show_default=False, help="CA of etcd; enables TLS.")
]
EtcdCert = Annotated[
    str, typer.Option(metavar="FILE", show_default=False, help="Client certificate for etcd.")
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
    """The options of etcd: the prefix of keys, and authentication."""

    etcd_prefix: EtcdPrefix = "loomlog"
    etcd_user: EtcdUser = ""
    etcd_ca: EtcdCa = ""
    etcd_cert: EtcdCert = ""
    etcd_key: EtcdKey = ""

    def settings(self, etcd: str) -> EtcdSettings:
        """Return the settings, with the password from the environment, which `ps` does not show."""
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


_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)


def parse_volume_limits(texts: Sequence[str], volumes: Collection[str]) -> dict[str, VolumeLimit]:
    """Parse DIR=100G and DIR=80%; each directory must be one of the volumes."""
    found: dict[str, VolumeLimit] = {}
    for text in texts:
        volume, _, size = text.rpartition("=")
        if volume not in volumes or volume in found:
            raise UsageError(f"--volume-limit: {volume!r} is not one of --volumes, or given twice")
        found[volume] = _volume_limit(size)
    return found


def _volume_limit(text: str) -> VolumeLimit:
    if (part := _PERCENT.fullmatch(text)) and 0 < float(part[1]) <= 100:
        return VolumeLimit(part=float(part[1]) / 100)
    if size := parse_size(text):
        return VolumeLimit(size)
    raise UsageError(f"--volume-limit: {text!r} is not a size: write 100G, 1.5T or 80%")


def parse_identity_limits(texts: Sequence[str]) -> IdentityLimits:
    """Parse requests=1000 and bytes=1G."""
    found: dict[str, int] = {}
    known = tuple(each.name for each in fields(IdentityLimits))
    for text in texts:
        what, _, most = text.partition("=")
        if what not in known or what in found or not (size := parse_size(most)):
            raise UsageError(
                f"--identity-limit: {text!r} is not one of {', '.join(known)} with a number, "
                "such as requests=1000, or is given twice"
            )
        found[what] = size
    return IdentityLimits(**found)


def parse_peers(text: str) -> dict[int, str]:
    """Parse 1=host:port,2=host:port."""
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
            raise UsageError(f"--peers: addresses differ, {address} is there twice")
        peers[member] = address
    return peers
