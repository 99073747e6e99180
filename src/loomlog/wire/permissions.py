"""The permission that each message of the wire contract needs.

Every kind of frame is in `RULES`; tests/unit/wire/test_wire_permissions.py fails if one is not.
Requests between servers need the certificate of a particular storage node or metadata repository
(`Sender`). No peer may send answers and orders as requests; a node accepts orders only on the
connection that it made itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from loomlog.core.permissions import Verb
from loomlog.wire import loomlog_pb2 as pb


class Target(Enum):
    """The subject of a request; the value is the field that names it."""

    CLUSTER = ""
    LOG = "name"
    LOGLET = "loglet_id"
    STREAM = "log_stream_id"
    REGISTER = "name "  # reads a register or a lease; an enum's values differ
    REGISTER_CHANGE = "name  "
    LEASE = "lease"  # reads a lease

    @property
    def field(self) -> str:
        return self.value.strip()


class Sender(Enum):
    """The server whose number the certificate of a peer must have, if the peer is a server.

    The guard compares the number in a field of the message. Senders without such a field are
    checked where the request is served, or by the metadata repository.
    """

    NAMED = "storage_node_id"
    NAMED_LEADER = "leader"
    LEADER = "the leader that sealed this member"
    REGISTERED = "the node that registered on this connection"
    PRIMARY = "the primary of the stream"
    REPLICA = "a replica of the stream, or of one of its chains"
    COPYING = "the node that began the copy, on the same connection"
    SEQUENCER = "the node that took the epoch, or a later one that is not recovered"
    HOLDER = "the same, or a node that may have copies of the log"
    ANY = "any: what it asks for, all of them may know"

    @property
    def field(self) -> str:
        return self.value if self in (Sender.NAMED, Sender.NAMED_LEADER) else ""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The verbs of which a request needs one, and the servers that need none."""

    verbs: tuple[Verb, ...] = ()
    target: Target = Target.CLUSTER
    servers: tuple[str, ...] = ()  # kinds of principals
    sender: Sender | None = None  # which of these servers
    is_open: bool = False  # any peer may send it
    purpose: str = ""  # the field that names the one of the verbs that is needed next
    fence: Rule | None = None  # is judged, too, if the message names a lease
    lesser: Rule | None = None  # a peer that fulfils only this is served in another way


Rules: TypeAlias = Rule | Mapping[int, Rule]  # by the field `kind` of the message

ANYBODY: Final = Rule(is_open=True)
NOBODY: Final = Rule()

_OPERATE: Final = Rule((Verb.OPERATE,))
_OF_METADATA: Final = Rule((Verb.METADATA,))
_METRICS: Final = Rule((Verb.METRICS,))
_READ_REGISTER: Final = Rule((), Target.REGISTER)
_CHANGE_REGISTER: Final = Rule((), Target.REGISTER_CHANGE)
_SWAP_REGISTER: Final = Rule((), Target.REGISTER_CHANGE, fence=Rule((), Target.LEASE))

_USE: Final = (Verb.APPEND, Verb.READ)
_ANY: Final = (*_USE, Verb.TRIM, Verb.CREATE, Verb.DELETE, Verb.SWITCH, Verb.CHECKPOINT)


def _log(*verbs: Verb) -> Rule:
    return Rule(verbs, Target.LOG)


def _loglet(*verbs: Verb, lesser: Rule | None = None) -> Rule:
    return Rule(verbs, Target.LOGLET, lesser=lesser)


def _loglet_or_node(*verbs: Verb) -> Rule:
    return Rule(verbs, Target.LOGLET, ("node",), Sender.ANY)


def _stream(*verbs: Verb) -> Rule:
    return Rule(verbs, Target.STREAM)


def _node(sender: Sender) -> Rule:
    return Rule(servers=("node",), sender=sender)


def _metadata(sender: Sender) -> Rule:
    return Rule(servers=("metadata",), sender=sender)


# Readers complete blocks and fill holes that writers left. Their blocks are not stored; the
# metadata repository is asked to decide the position (node/chained/client_writes.py). The same
# applies to blocks without the proof of a ticket.
BLOCK_WRITE: Final = _loglet(Verb.APPEND, lesser=_loglet(*_USE))

_CHAIN: Final = pb.ChainRequest
_CHAIN_RULES: Final[Mapping[int, Rule]] = {
    _CHAIN.WRITE: BLOCK_WRITE,
    _CHAIN.ACKNOWLEDGE: _loglet(Verb.APPEND),
    **dict.fromkeys((_CHAIN.READ, _CHAIN.BEFORE, _CHAIN.LIST), _loglet(Verb.READ)),
    _CHAIN.FETCH: _loglet_or_node(Verb.READ),  # a node that is filled
    **dict.fromkeys((_CHAIN.CHECK, _CHAIN.END), _loglet(*_USE)),
    **dict.fromkeys(
        (
            *(_CHAIN.TRIM, _CHAIN.SEAL, _CHAIN.CREATE, _CHAIN.PULL, _CHAIN.REMOVE),
            _CHAIN.MEASURE,
        ),
        NOBODY,
    ),
}
_SEQUENCER_RULES: Final[Mapping[int, Rule]] = {
    pb.SequencerRequest.NEXT: _loglet(Verb.APPEND),
    # nodes that are sent a block without a proof, or one far ahead
    **dict.fromkeys(
        (pb.SequencerRequest.HOLDING, pb.SequencerRequest.FIND_END), _loglet_or_node(*_USE)
    ),
}
_COPY: Final = pb.CopysetRequest
_COPYSET_RULES: Final[Mapping[int, Rule]] = {
    _COPY.READ: _loglet_or_node(Verb.READ),
    **dict.fromkeys((_COPY.DIGEST, _COPY.FIND), _node(Sender.ANY)),
    **dict.fromkeys((_COPY.AMEND, _COPY.RELEASE, _COPY.SEAL, _COPY.CLEAN), _node(Sender.SEQUENCER)),
    **dict.fromkeys((_COPY.STORE, _COPY.RESTORE, _COPY.REASSIGN), _node(Sender.HOLDER)),
    **dict.fromkeys((_COPY.TRIM, _COPY.FORGET), NOBODY),
}

RULES: Final[Mapping[str, Rules]] = {
    # every connection
    **dict.fromkeys(("hello", "ping", "error"), ANYBODY),
    "ask_leader": ANYBODY,  # clients ask whether a slow one is alive
    "check_server": _METRICS,
    # storage node -> metadata repository
    **dict.fromkeys(("register", "report"), _node(Sender.NAMED)),
    **dict.fromkeys(("node_stops", "epoch_store_request"), _node(Sender.REGISTERED)),
    "hold_log": _node(Sender.PRIMARY),
    "decide_position": _node(Sender.REPLICA),
    **dict.fromkeys(("describe_loglet", "check_replica"), _node(Sender.ANY)),
    # metadata repository -> storage node, at its own address
    "prove_node": _metadata(Sender.ANY),
    "leader_beat": _metadata(Sender.NAMED_LEADER),
    # between replicas of a stream
    **dict.fromkeys(("open_replication", "replicate"), _node(Sender.PRIMARY)),
    **dict.fromkeys(("sync_start", "fetch_batches"), _node(Sender.REPLICA)),
    "sync_batches": _node(Sender.COPYING),
    # client -> storage node
    "append": _stream(Verb.APPEND),
    "resolve_append": _stream(Verb.APPEND),
    **dict.fromkeys(("read", "subscribe", "locate", "find_time"), _stream(Verb.READ)),
    **dict.fromkeys(("subscription_credit", "cancel_subscription"), ANYBODY),  # of a subscription
    "chain_request": _CHAIN_RULES,
    "copyset_request": _COPYSET_RULES,
    "copyset_append": _loglet(Verb.APPEND),
    "find_copyset_tail": _loglet(*_USE),
    "find_copyset_landmarks": _loglet(Verb.READ),
    "protocol_message": _OPERATE,  # it names no log
    # client -> metadata repository
    "create_log": _log(Verb.CREATE),
    "describe_log": Rule(_ANY, Target.LOG, purpose="verb"),
    "delete_log": _log(Verb.DELETE),
    "trim_log": _log(Verb.TRIM),
    "set_retention": _log(Verb.TRIM),
    "find_expired": _log(Verb.TRIM, Verb.APPEND),
    "enlist_log": _log(Verb.APPEND),
    "get_bounds": _log(*_USE, Verb.TRIM),
    "switch_log": _log(Verb.SWITCH),
    "sequencer_request": _SEQUENCER_RULES,
    "report_forgotten": _loglet(Verb.APPEND),
    "report_chain": _loglet_or_node(*_USE),  # about a node that it cannot reach, or itself
    **dict.fromkeys(("list_logs", "list_registers", "list_leases"), ANYBODY),  # what may be read
    "get_register": _READ_REGISTER,
    "swap_register": _SWAP_REGISTER,
    "change_lease": _CHANGE_REGISTER,
    **dict.fromkeys(("get_status", "list_events"), _METRICS),
    **dict.fromkeys(
        (
            *("change_stream", "change_node", "check_nodes"),
            *("describe_stream", "plan_rebalance"),
        ),
        _OPERATE,
    ),
    **dict.fromkeys(
        ("change_metadata", "get_access", "change_access", "create_token"), _OF_METADATA
    ),
    # between metadata repositories
    "round_seal": _metadata(Sender.NAMED_LEADER),
    **dict.fromkeys(("round_read", "round_install", "round_append"), _metadata(Sender.LEADER)),
    # orders of the metadata repository
    **dict.fromkeys(
        (
            *("commit", "add_log_stream", "seal", "unseal", "trim_log_stream"),
            *("remove_log_stream", "synchronise", "scrub", "note_run", "list_holdings"),
            *("list_stored", "drain_volumes", "list_commits", "recover_copyset"),
            *("give_up_volume", "copyset_rebuild", "copyset_restored", "fill_copyset", "access"),
            *("measure_stream", "measure_copyset", "relocate_log_stream", "check_copyset"),
        ),
        NOBODY,
    ),
    # answers
    **dict.fromkeys(
        (
            *("done", "registered", "seal_response", "synchronise_response", "scrub_response"),
            *("node_proof", "holdings", "server_check", "stored_list", "commit_list"),
            *("replication_refused", "replication_paused", "sync_started", "fetched_batches"),
            *("appended", "read_response", "subscription_data", "append_resolved", "located"),
            *("found_time", "log", "log_list", "bounds", "status", "changed", "expired"),
            *("register_value", "register_list", "lease", "lease_list", "nodes_outage"),
            *("stream_description", "rebalance_plan", "round_sealed", "round_tail"),
            *("round_stored", "chain_answer", "sequencer_answer", "copyset_answer"),
            *("copyset_tail", "copyset_state", "copyset_landmarks", "copyset_filled"),
            *("loglet_name", "token", "measured", "event_list", "copyset_checked"),
        ),
        NOBODY,
    ),
}

AUDITED: Final = frozenset(  # requests that are noted also if they are allowed
    {
        *("create_log", "delete_log", "trim_log", "set_retention", "switch_log"),
        *("change_stream", "change_node", "change_metadata", "change_access", "create_token"),
    }
)


def rule_of(kind: str, frame: pb.Frame) -> Rule:
    """Return the rule for a frame; unknown kinds may not be sent."""
    rules = RULES.get(kind, NOBODY)
    return rules if isinstance(rules, Rule) else rules.get(getattr(frame, kind).kind, NOBODY)
