"""Settings as small objects. Defaults are what a new user wants; the CLI fills in the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loomlog import limits
from loomlog.limits import MIB
from loomlog.types import NodeId, SyncMode


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """How a replica keeps its data."""

    sync: SyncMode = SyncMode.ALWAYS
    sync_interval_s: float = 0.2  # with sync=interval
    segment_bytes: int = 64 * MIB  # roll the data file here
    commit_segment_bytes: int = 4 * MIB  # roll the commit log here
    index_interval_bytes: int = 64 * 1024  # one index entry per so much data
    commit_sync_delay_s: float = 0.05  # commit contexts wait this long to be synced together
    spare_segments_max: int = 2  # trimmed files kept to be written again


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """A storage node (vsn)."""

    node_id: NodeId
    cluster_id: str
    volumes: tuple[str, ...]
    metadata: tuple[str, ...]  # addresses of the metadata repository
    listen: str = "127.0.0.1:0"
    advertise: str | None = None  # what clients are told; default: the address listened on
    location: str = ""  # its failure domain, e.g. rack=a; empty: one of its own
    error_if_exists: bool = False
    storage: StorageSettings = field(default_factory=StorageSettings)


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """A metadata repository (vmr)."""

    cluster_id: str
    directory: str
    listen: str = "127.0.0.1:7400"
    http: str | None = "127.0.0.1:7480"
    failure_detection_s: float = limits.FAILURE_DETECTION_S
    heartbeat_s: float = limits.HEARTBEAT_S
    replace_after_s: float | None = None  # of silence: made anew elsewhere; None: once it is dead
    sync_bytes_per_s: int = 0  # of one copy of a stream; 0: no limit
    retention_interval_s: float = limits.RETENTION_INTERVAL_S
    # One of several: who it is, and all of them (id and address) as its cluster begins.
    member_id: int = 1
    peers: Mapping[int, str] = field(default_factory=dict)  # empty: this one is alone
    leader_silence_s: float = limits.LEADER_SILENCE_S
    etcd: EtcdSettings | None = None  # where several keep what they share


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Where metadata lives when several metadata repositories share it."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    prefix: str = "loomlog"  # of all keys: one for each cluster that uses the same etcd
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None  # PEM file; with it TLS is used
    cert: str | None = None  # PEM files of our own, if etcd asks for them
    key: str | None = None
    timeout_s: float = limits.ETCD_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """A client."""

    compression: str = "none"  # none, lz4, zstd
    append_batch_bytes: int = limits.APPEND_BATCH_BYTES
    appends_in_flight_max: int = limits.APPENDS_IN_FLIGHT_MAX
    append_buffer_bytes_max: int = limits.APPEND_BUFFER_BYTES_MAX
    append_timeout_s: float = limits.APPEND_TIMEOUT_S
    retry: str = "exactly-once"  # or at-once: what may have been appended is sent elsewhere, too
    request_timeout_s: float = limits.REQUEST_TIMEOUT_S
    connect_timeout_s: float = limits.CONNECT_TIMEOUT_S
    read_ahead_bytes: int = limits.READ_AHEAD_BYTES
    # While one append alone is under way the client does not sleep, at most so long; 0: it does.
    spin_s: float = limits.SPIN_S
    # Protocol `chained`: a writer that has a place and does not write it is waited for so long.
    hole_timeout_s: float = limits.HOLE_TIMEOUT_S
