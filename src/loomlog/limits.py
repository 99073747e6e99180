"""Every bound in one place, each with its reason. Sizes in bytes, times in seconds."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

ALIGNMENT: Final = 64  # misaligned copies are ten times slower; also a cache line

# Records and batches
RECORD_BYTES_MAX: Final = 16 * MIB  # a record's value or key; more belongs in an object store
BATCH_BYTES_MAX: Final = 32 * MIB  # one batch, encoded; a value of the largest size and more
BATCH_RECORDS_MAX: Final = 1 << 20  # offsets of a batch stay small
REFERENCE_RECORDS_MAX: Final = (1 << 31) - 1  # what a reference stands for: no memory is taken

# Frames
FRAME_HEADER_BYTES_MAX: Final = 8 * MIB  # a status of 10,000 streams fits
FRAME_PAYLOAD_BYTES_MAX: Final = 64 * MIB  # a batch, or a chunk of joined ones
SEND_BUFFER_BYTES: Final = 4 * MIB  # above this a connection asks its writers to wait
SEND_BUFFER_BYTES_MAX: Final = 256 * MIB  # a peer this far behind is cut off

# Client
APPEND_BATCH_BYTES: Final = 256 * KIB  # automatic batching closes a batch here
APPENDS_IN_FLIGHT_MAX: Final = 32  # batches under way per stream and client before new ones wait
APPEND_BUFFER_BYTES_MAX: Final = 64 * MIB  # what a client holds before append() waits for room
READ_AHEAD_BYTES: Final = 8 * MIB  # per stream of a subscription

# Storage node
STREAM_UNCOMMITTED_BYTES_MAX: Final = 128 * MIB  # beyond this a primary says Busy
PRODUCER_MARKS_MAX: Final = 100_000  # batches by which a replica knows repeats: some 15 MB
READ_CHUNK_BYTES: Final = 512 * KIB  # one answer of a subscription
SUBSCRIPTIONS_PER_CONNECTION_MAX: Final = 1024
COPY_PART_BYTES: Final = 512 * KIB  # one message of a synchronisation
COPY_PARTS_IN_FLIGHT: Final = 4  # so that reading, sending and writing go on side by side
COMMITS_LISTED_MAX: Final = 50_000  # in one answer; fits a frame's header
COPY_ANSWER_S: Final = 0.2  # a short copy is finished with the answer to its order
SCRUB_BYTES: Final = MIB  # checked at a time, between two reads of others
SCRUB_BYTES_PER_S: Final = 128 * MIB  # leaves most of a disk to others

# Chains
CHAINS_PER_SEGMENT_MAX: Final = 256  # a read of any position asks the tails of all
TICKETS_REMEMBERED: Final = 100_000  # by which a sequencer knows how long a hole is: a few MB
CHAIN_LIST_MAX: Final = 4096  # extents in one answer; fits a frame's header
CHAIN_WAITING_BYTES_MAX: Final = 128 * MIB  # blocks that wait for the disk; more are refused
CHAIN_LOOK_UPS_MAX: Final = 4096  # that wait for the disk; more are refused
CHAIN_RECLAIM_AFTER_S: Final = 10.0  # of a trim its space is freed, together with others' space
CHAIN_REOPEN_S: Final = 5.0  # between two attempts to go on after a disk failed
CHAIN_WAIT_S_MAX: Final = 30.0  # a fetch waits no longer for more, whatever it asks for

# Copysets
RECOVERY_DIGEST_BYTES: Final = MIB  # of heads, in one answer
RECOVERED_AT_ONCE: Final = 32  # records whose batches recovery has in memory
COPYSET_WAITING_BYTES_MAX: Final = 128 * MIB  # batches that wait for the disk; more are refused
COPYSET_LOOK_UPS_MAX: Final = 4096  # that wait for the disk; more are refused
COPYSET_FREE_BYTES_MIN: Final = 256 * MIB  # of a disk; below it no batch is taken, only what frees
COPYSET_WAIT_S_MAX: Final = 30.0  # a read waits no longer for more, whatever it asks for
COPYSET_READS_PER_CONNECTION_MAX: Final = 4096  # that wait for more
COPYSET_QUEUED_APPENDS_MAX: Final = 10_000  # of a log, while its sequencer is being activated
COPYSET_QUEUED_BYTES_MAX: Final = 128 * MIB  # likewise

# Metadata repository
REGISTER_BYTES_MAX: Final = MIB  # a register's value; an etcd takes no more than 1.5 MiB
REGISTER_SWAPS_REMEMBERED: Final = 32  # by which a register knows repeats: half a KiB
REGISTER_MARKERS_MAX: Final = 1000  # of deleted registers, to know repeats of their deletion
LIST_BYTES: Final = 4 * MIB  # one part of a list of registers or leases; fits a frame's header

# Metadata repository
ETCD_SWAPS_MAX: Final = 16  # under way at once: more gain nothing, all are one log in etcd
ETCD_SESSION_S: Final = 3600  # what a dead process left in etcd is gone after this

# Times
HEARTBEAT_S: Final = 1.0  # storage node to metadata repository when nothing changes
FAILURE_DETECTION_S: Final = 3.0  # silence after which a storage node counts as dead
LEADER_SILENCE_S: Final = 2.0  # after which another metadata repository takes over
CONNECT_TIMEOUT_S: Final = 5.0
TCP_SILENCE_S: Final = 10  # whole seconds; a host that vanished without a word ends a connection
REQUEST_TIMEOUT_S: Final = 10.0
SPIN_S: Final = 0.002  # of one append: longer than a chain of three takes with fast disks
HOLE_TIMEOUT_S: Final = 1.0  # far above a write; readers of what comes behind wait so long
APPEND_TIMEOUT_S: Final = 30.0  # append() gives up after this, whatever it tried
RETENTION_INTERVAL_S: Final = 60.0  # how often the metadata repository looks for what is too old
RETENTION_S_MAX: Final = 100 * 366 * 86_400  # a hundred years
LEASE_TTL_S_MAX: Final = 86_400.0  # whoever waits for a dead holder waits this long
ETCD_TIMEOUT_S: Final = 5.0  # outlasts an election there; metadata waits so long, appends never

# Names
LOG_NAME_CHARS_MAX: Final = 200
REGISTER_NAME_CHARS_MAX: Final = 200  # of a lease and its holder, too
STREAMS_PER_LOG_MAX: Final = 10_000
NODESET_MAX: Final = 200  # recovery asks all of them, and who reads asks most
NODESET_DEFAULT: Final = 20  # of a copyset log: beyond it more nodes spread the load no better
