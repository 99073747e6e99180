"""Settings of nodes, metadata repositories and clients. Defaults suit a new user."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from loomlog import limits
from loomlog.limits import MIB, IdentityLimits
from loomlog.types import NodeId, SyncMode


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Settings of a replica's storage."""

    sync: SyncMode = SyncMode.ALWAYS
    sync_interval_s: float = 0.2  # with sync=interval
    data_file_bytes: int = 64 * MIB  # roll the data file here
    commit_file_bytes: int = 4 * MIB  # roll the commit log here
    index_interval_bytes: int = 64 * 1024  # data between two index entries
    commit_sync_delay_s: float = 0.05  # commit contexts wait this long to be synced together
    spare_files_max: int = 2  # trimmed files kept for reuse


@dataclass(frozen=True, slots=True)
class VolumeLimit:
    """The limit for a node's data on a volume: bytes (`size`) or a fraction of its file system
    (`part`). Without either there is no limit."""

    size: int = 0
    part: float = 0.0

    def of(self, total: int) -> int:
        """Return the limit in bytes, given the size of the file system."""
        return self.size or int(self.part * total)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a storage node (vsn)."""

    node_id: NodeId
    cluster_id: str
    volumes: tuple[str, ...]
    metadata: tuple[str, ...]  # addresses of the metadata repositories
    listen: str = "127.0.0.1:0"
    advertise: str | None = None  # the address for clients; default: the one it listens on
    location: str = ""  # its failure domain, e.g. rack=a; empty: the node itself
    error_if_exists: bool = False
    scrub_bytes_per_s: int = 0  # rate at which stored data is checked in the background; 0: never
    volume_limits: Mapping[str, VolumeLimit] = field(default_factory=dict)  # by directory
    storage: StorageSettings = field(default_factory=StorageSettings)
    tls: str = ""  # directory or file of its certificate (net/credentials.py); empty: no TLS
    identity_limits: IdentityLimits = field(default_factory=IdentityLimits)  # for each client
    http: str | None = None  # address of /healthz, /readyz and /metrics


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """Settings of a metadata repository (vmr)."""

    cluster_id: str
    directory: str
    listen: str = "127.0.0.1:7400"
    http: str | None = "127.0.0.1:7480"
    advertise: str | None = None  # the address for others, if it is the only one; default: `listen`
    failure_detection_s: float = limits.FAILURE_DETECTION_S
    heartbeat_s: float = limits.HEARTBEAT_S
    replace_after_s: float | None = None  # of silence; None: as soon as a node counts as dead
    sync_bytes_per_s: int = 0  # limit of one stream copy; 0: none
    rebuild_after_s: float = limits.REBUILD_AFTER_S  # of silence; at least `replace_after_s`
    rebuild_bytes_per_s: int = limits.REBUILD_BYTES_PER_S  # limit of one donor; 0: none
    retention_interval_s: float = limits.RETENTION_INTERVAL_S
    # With several metadata repositories: this one's id, and the ids and addresses of all initial
    # members.
    member_id: int = 1
    peers: Mapping[int, str] = field(default_factory=dict)  # empty: this is the only one
    leader_silence_s: float = limits.LEADER_SILENCE_S
    etcd: EtcdSettings | None = None  # the store that several metadata repositories share
    tls: str = ""  # directory or file of its certificate (net/credentials.py); empty: no TLS
    identity_limits: IdentityLimits = field(default_factory=IdentityLimits)  # for each client


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """The etcd that several metadata repositories share."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    prefix: str = "loomlog"  # of all keys; different for each cluster that uses this etcd
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None  # PEM file; enables TLS
    cert: str | None = None  # PEM files for client authentication
    key: str | None = None
    timeout_s: float = limits.ETCD_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a client."""

    compression: str = "log"  # the setting of each log; or none, lz4, zstd
    append_batch_bytes: int = limits.APPEND_BATCH_BYTES
    appends_in_flight_max: int = limits.APPENDS_IN_FLIGHT_MAX
    append_buffer_bytes_max: int = limits.APPEND_BUFFER_BYTES_MAX
    append_timeout_s: float = limits.APPEND_TIMEOUT_S
    # "at-once" resends batches whose outcome is unknown elsewhere, and may append them twice.
    retry: str = "exactly-once"
    request_timeout_s: float = limits.REQUEST_TIMEOUT_S
    connect_timeout_s: float = limits.CONNECT_TIMEOUT_S
    read_ahead_bytes: int = limits.READ_AHEAD_BYTES
    # How long the client spins instead of sleeping while a lone append is in progress; 0: never.
    spin_s: float = limits.SPIN_S
    # How long readers wait for a writer that reserved a position and has not written it.
    hole_timeout_s: float = limits.HOLE_TIMEOUT_S
    token: str = field(default="", repr=False)  # a secret; empty: the environment's LOOM_TOKEN
    # Directory or file of the certificate (net/credentials.py); empty: no TLS; None: LOOM_TLS.
    tls: str | None = None


_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.ASCII)


def parse_number(text: str) -> int | None:
    """Return the number that a text of at most 19 decimal digits stands for, or None if it is
    something else. (Python refuses to convert thousands of digits.)"""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None


def parse_size(text: str) -> int | None:
    """Return the number of bytes of a size such as 100, 512M or 1.5T (powers of 1024), or None if
    the text is not a size."""
    size = _SIZE.fullmatch(text.strip())
    found = float(size[1]) * 1024 ** " KMGT".index(size[2] or " ") if size else math.inf
    return int(found) if math.isfinite(found) else None
