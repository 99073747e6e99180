"""Limits that several packages share or that users can reach. `_BYTES`: bytes; `_S`: seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

ALIGNMENT: Final = 64  # misaligned copies are ten times slower; also a cache line

# Records and batches
RECORD_BYTES_MAX: Final = 16 * MIB  # a record's value or key; more belongs in an object store
HEADERS_BYTES_MAX: Final = 64 * KIB  # all headers of a record together: they are for metadata
BATCH_BYTES_MAX: Final = 32 * MIB  # one encoded batch; a record with the largest value fits
BATCH_RECORDS_MAX: Final = 1 << 20  # keeps offsets within a batch small
REFERENCE_RECORDS_MAX: Final = (1 << 31) - 1  # rows of a reference; they take no memory

# Frames
FRAME_HEADER_BYTES_MAX: Final = 8 * MIB  # a status of 10,000 streams fits
FRAME_PAYLOAD_BYTES_MAX: Final = 64 * MIB  # a batch, or a chunk of joined ones
GREETING_BYTES_MAX: Final = 2 * KIB  # the first frame of a peer; no other is accepted before
UNGREETED_MAX: Final = 256  # connections without a greeting; beyond this the oldest is closed
SEND_BUFFER_BYTES: Final = 4 * MIB  # above this a connection asks its writers to wait
SEND_BUFFER_BYTES_MAX: Final = 256 * MIB  # outgoing connections: a primary runs ahead of a backup
ANSWERS_BYTES_MAX: Final = 64 * MIB  # accepted connections: the peer must read its answers
CLIENTS_BYTES_MAX: Final = 1024 * MIB  # all clients together: partial frames, and unread answers
READS_PER_CONNECTION_MAX: Final = 8  # concurrent requests for content: enough to keep a disk busy

# Client
APPEND_BATCH_BYTES: Final = 256 * KIB  # automatic batching closes a batch here
APPENDS_IN_FLIGHT_MAX: Final = 32  # unacknowledged batches per stream and client
APPEND_BUFFER_BYTES_MAX: Final = 64 * MIB  # what a client holds before append() waits for room
CLIENT_TIMEOUT_S_MAX: Final = 366 * 86_400.0  # above this, a timeout is a mistake
READ_AHEAD_BYTES: Final = 8 * MIB  # per stream of a subscription

# Consumer groups
GROUP_SHARDS: Final = 16  # the default of a new group: at most this many members work at once
GROUP_SHARDS_MAX: Final = 1024  # a commit writes all of them
GROUP_SESSION_S: Final = 10.0  # a silent member is replaced within this time

# Storage node
NUMBER_MAX: Final = 1 << 31  # of a log or stream: more than anyone creates; fits four bytes
STREAM_UNCOMMITTED_BYTES_MAX: Final = 128 * MIB  # beyond this a primary answers Busy
PRODUCER_MARKS_MAX: Final = 100_000  # batches remembered to detect repeats: about 15 MB a replica
READ_CHUNK_BYTES: Final = 512 * KIB  # one response of a subscription
SUBSCRIPTIONS_PER_CONNECTION_MAX: Final = 1024
COPY_PART_BYTES: Final = 512 * KIB  # one message of a synchronisation
COPY_PARTS_IN_FLIGHT: Final = 4  # lets reading, sending and writing overlap
COMMITS_LISTED_MAX: Final = 50_000  # in one response; fits a frame's header
COPY_ANSWER_S: Final = 0.2  # a copy that takes no longer is complete when its order is answered
SCRUB_BYTES: Final = MIB  # checked at once, between other reads
SCRUB_RATE_MB_PER_S: Final = 4.0  # in the background: 1 % of a disk's rate; a day for 350 GB
SCRUB_BYTES_PER_S: Final = 128 * MIB  # leaves most of a disk's rate to other work

VOLUME_LOOK_S: Final = 5.0  # between two checks of a working volume ...
VOLUME_LOOK_FAILED_S: Final = 1.0  # ... and of a failed one
VOLUME_FAILED_S: Final = 10.0  # a volume is distrusted for this long after a failure
FILLED_S: Final = 15.0  # a peer refills a replica whose sync failed within this time, or not at all
VOLUME_BYTES_PER_S: Final = 1024 * MIB  # a volume is measured before this rate can fill it ...
VOLUME_MEASURE_S: Final = 0.1  # ... but not more often than this
VOLUME_RESERVE_BYTES: Final = 256 * MIB  # with less free space no append begins there ...
VOLUME_RESERVE_PART: Final = 20  # ... nor with less than one part in this many
REOPEN_S: Final = 5.0  # between two attempts to open a table on a volume that works

# Metadata repository
REGISTER_BYTES_MAX: Final = MIB  # a register's value; etcd takes no more than 1.5 MiB
REGISTER_SWAPS_REMEMBERED: Final = 32  # per register, to detect repeats: half a KiB
REGISTER_MARKERS_MAX: Final = 1000  # of deleted registers, to detect a repeated deletion
LIST_BYTES: Final = 4 * MIB  # one part of a list of registers or leases; fits a frame's header

# etcd
ETCD_SWAPS_MAX: Final = 16  # concurrent; more gain nothing, since etcd orders them in one log
ETCD_SESSION_S: Final = 3600  # keys of a dead process expire after this

REBUILD_BYTES_PER_S: Final = 20_000_000  # per donor

# Times
HEARTBEAT_S: Final = 1.0  # storage node to metadata repository when nothing changes
FAILURE_DETECTION_S: Final = 3.0  # silence after which a storage node counts as dead
REBUILD_AFTER_S: Final = 60.0  # silence until copies are made elsewhere: a restart takes less
LEADER_SILENCE_S: Final = 2.0  # after this another metadata repository takes over
CONNECT_TIMEOUT_S: Final = 5.0
HAND_OVER_S: Final = 1.0  # a node that stops waits this long for others to take over its part
VISIT_S: Final = 1.5  # for a new storage node to answer at its address; below LEADER_SILENCE_S
GREETING_S: Final = 5.0  # a new peer has to greet within this time
PING_S: Final = 2.0  # between two pings; a silent peer is disconnected after about 8 s
TCP_SILENCE_S: Final = 10  # whole seconds; then the kernel drops a vanished host
REQUEST_TIMEOUT_S: Final = 10.0
SPIN_S: Final = 0.002  # per append: longer than a chain of three takes on fast disks
HOLE_TIMEOUT_S: Final = 1.0  # far above a write; readers of later positions wait this long
APPEND_TIMEOUT_S: Final = 30.0  # append() gives up after this
DECISION_REPLICAS: Final = 3  # of the log of decisions; fewer if there are fewer nodes
TRANSACTION_LOGS_MAX: Final = 64  # their parts are appended at once
RETENTION_INTERVAL_S: Final = 60.0  # between two searches for expired entries
RETENTION_S_MAX: Final = 100 * 366 * 86_400  # a hundred years
RETENTION_BYTES_MIN: Final = MIB  # less is a mistake in the unit
RETENTION_BYTES_MAX: Final = 1 << 60
LEASE_TTL_S_MAX: Final = 86_400.0  # others wait up to this long for the lease of a dead holder
ETCD_TIMEOUT_S: Final = 5.0  # outlasts an election in etcd; metadata waits for it, appends do not

# Names and numbers
LOG_NAME_CHARS_MAX: Final = 200
POSITION_MAX: Final = (1 << 63) - 1  # a signed integer on disk and on the wire
FIRST_POSITION_MAX: Final = 1 << 62  # of a new log: leaves half of all positions to its entries
REGISTER_NAME_CHARS_MAX: Final = 340  # also of a lease and its holder; a log's and a group's fit
SUBJECT_CHARS_MAX: Final = 100  # as in certificates
PATTERN_CHARS_MAX: Final = 200  # of names, in a permission
GRANTS_MAX: Final = 5000  # of a cluster: they are one record, and every node gets all of them
TOKENS_MAX: Final = 1000  # valid ones, and revoked ones until they expire: in the same record
TOKEN_KEYS_MAX: Final = 10
STREAMS_PER_LOG_MAX: Final = 10_000
NODE_ID_MAX: Final = (1 << 31) - 1
TOKEN_KEY_MAX: Final = (1 << 32) - 1  # the number of a key that signs tokens
ADDRESS_CHARS_MAX: Final = 260  # a host name has at most 253
NODE_TEXT_CHARS_MAX: Final = 200  # its secret and the like
VOLUMES_MAX: Final = 100
SHARDS_MAX: Final = 1 << 16  # of a node, counting those that are lost
PATH_CHARS_MAX: Final = 4096
CHALLENGE_BYTES_MAX: Final = 64
NEWCOMERS_MAX: Final = 16  # new nodes whose addresses a metadata repository checks at once
NODE_CONDITIONS_MAX: Final = 100  # conditions kept per node
NODE_CONDITION_CHARS_MAX: Final = 500
NODESET_MAX: Final = 200  # recovery asks all of its nodes, readers most of them

# What one metrics page shows at most: monitoring systems keep each sample for weeks.
METRICS_LOGS_MAX: Final = 1000
METRICS_STREAMS_MAX: Final = 2000
METRICS_READERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class IdentityLimits:
    """Limits on what one identity may use of one server at a time."""

    connections: int = 1000
    requests: int = 10_000  # not answered yet
    bytes: int = 512 * MIB  # of the payloads of those requests
    subscriptions: int = 10_000  # including fetches that wait for more data
