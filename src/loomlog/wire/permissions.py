"""The permission that each message of the wire contract needs.

Every kind of frame is in `RULES`; tests/unit/wire/test_wire_permissions.py fails if one is not.
Requests between servers need the certificate of a storage node or of a metadata repository. Answers
and orders, which a node takes only on the connection that it made itself, may be sent by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from loomlog.core.permissions import Verb
from loomlog.wire import loomlog_pb2 as pb


class Target(Enum):
    """The thing that a request is about; the value is the field that names it."""

    CLUSTER = ""
    LOG = "name"
    LOGLET = "loglet_id"
    STREAM = "log_stream_id"
    REGISTER = "name "  # reads a register or a lease; an enum's values differ
    REGISTER_CHANGE = "name  "

    @property
    def field(self) -> str:
        return self.value.strip()


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The verbs one of which a request needs, and the servers that need none."""

    verbs: tuple[Verb, ...] = ()
    target: Target = Target.CLUSTER
    servers: tuple[str, ...] = ()  # kinds of principals
    is_open: bool = False  # anybody may send it
    empty: Rule | None = None  # applies instead if the frame has no payload


Rules: TypeAlias = Rule | Mapping[int, Rule]  # by the field `kind` of the message

ANYBODY: Final = Rule(is_open=True)
NOBODY: Final = Rule()
_NODE: Final = Rule(servers=("node",))
_METADATA: Final = Rule(servers=("metadata",))

_OPERATE: Final = Rule((Verb.OPERATE,))
_OF_METADATA: Final = Rule((Verb.METADATA,))
_METRICS: Final = Rule((Verb.METRICS,))
_READ_REGISTER: Final = Rule((), Target.REGISTER)
_CHANGE_REGISTER: Final = Rule((), Target.REGISTER_CHANGE)

_USE: Final = (Verb.APPEND, Verb.READ)
_ANY: Final = (*_USE, Verb.TRIM, Verb.CREATE, Verb.DELETE, Verb.SWITCH, Verb.CHECKPOINT)


def _log(*verbs: Verb) -> Rule:
    return Rule(verbs, Target.LOG)


def _loglet(*verbs: Verb, servers: tuple[str, ...] = (), empty: Rule | None = None) -> Rule:
    return Rule(verbs, Target.LOGLET, servers, empty=empty)


def _stream(*verbs: Verb) -> Rule:
    return Rule(verbs, Target.STREAM)


_READ_BLOCKS: Final = _loglet(Verb.READ, servers=("node",))
_CHAIN: Final = pb.ChainRequest
_CHAIN_RULES: Final[Mapping[int, Rule]] = {
    # Whoever reads fills the holes that writers left: with junk, which has no payload.
    _CHAIN.WRITE: _loglet(Verb.APPEND, empty=_loglet(*_USE, servers=("node",))),
    **dict.fromkeys((_CHAIN.READ, _CHAIN.BEFORE, _CHAIN.LIST, _CHAIN.FETCH), _READ_BLOCKS),
    **dict.fromkeys((_CHAIN.CHECK, _CHAIN.END), _loglet(*_USE, servers=("node",))),
    **dict.fromkeys((_CHAIN.TRIM, _CHAIN.SEAL, _CHAIN.CREATE, _CHAIN.PULL, _CHAIN.REMOVE), NOBODY),
}
_SEQUENCER_RULES: Final[Mapping[int, Rule]] = {
    pb.SequencerRequest.NEXT: _loglet(Verb.APPEND),
    pb.SequencerRequest.HOLDING: _loglet(*_USE),
    pb.SequencerRequest.FIND_END: _loglet(*_USE),
}
_COPY: Final = pb.CopysetRequest
_COPYSET_RULES: Final[Mapping[int, Rule]] = {
    _COPY.READ: _loglet(Verb.READ, servers=("node",)),
    **dict.fromkeys(
        (
            *(_COPY.STORE, _COPY.AMEND, _COPY.RELEASE, _COPY.SEAL, _COPY.DIGEST, _COPY.CLEAN),
            *(_COPY.FIND, _COPY.RESTORE, _COPY.REASSIGN),
        ),
        _NODE,
    ),
    **dict.fromkeys((_COPY.TRIM, _COPY.FORGET), NOBODY),
}

RULES: Final[Mapping[str, Rules]] = {
    # every connection
    **dict.fromkeys(("hello", "ping", "error"), ANYBODY),
    "ask_leader": ANYBODY,  # clients ask whether a slow one is alive
    "check_server": _METRICS,
    # storage node -> metadata repository
    **dict.fromkeys(("register", "report", "node_stops"), _NODE),
    **dict.fromkeys(("epoch_store_request", "describe_loglet"), _NODE),
    # metadata repository -> storage node, at its own address
    **dict.fromkeys(("prove_node", "leader_beat"), _METADATA),
    # between replicas of a stream
    **dict.fromkeys(
        ("open_replication", "replicate", "sync_start", "sync_batches", "fetch_batches"), _NODE
    ),
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
    "describe_log": _log(*_ANY),
    "delete_log": _log(Verb.DELETE),
    "trim_log": _log(Verb.TRIM),
    "set_retention": _log(Verb.TRIM),
    "find_expired": _log(Verb.TRIM, Verb.APPEND),
    "get_bounds": _log(*_USE, Verb.TRIM),
    "switch_log": _log(Verb.SWITCH),
    "sequencer_request": _SEQUENCER_RULES,
    "report_chain": _loglet(*_USE, servers=("node",)),
    **dict.fromkeys(("list_logs", "list_registers", "list_leases"), ANYBODY),  # what may be read
    "get_register": _READ_REGISTER,
    **dict.fromkeys(("swap_register", "change_lease"), _CHANGE_REGISTER),
    "get_status": _METRICS,
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
    **dict.fromkeys(("round_seal", "round_read", "round_install", "round_append"), _METADATA),
    # orders of the metadata repository
    **dict.fromkeys(
        (
            *("commit", "add_log_stream", "seal", "unseal", "trim_log_stream"),
            *("remove_log_stream", "synchronise", "scrub", "note_run", "list_holdings"),
            *("list_stored", "drain_volumes", "list_commits", "recover_copyset"),
            *("give_up_volume", "copyset_rebuild", "copyset_restored", "fill_copyset", "access"),
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
            *("loglet_name", "token"),
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


def rule_of(kind: str, frame: pb.Frame, payload: memoryview) -> Rule:
    """Return the rule for a frame; nobody may send what is not known here."""
    rules = RULES.get(kind, NOBODY)
    if not isinstance(rules, Rule):
        rules = rules.get(getattr(frame, kind).kind, NOBODY)
    if rules.empty is not None and not len(payload):
        return rules.empty
    return rules
