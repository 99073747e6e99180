"""Every message of the wire contract says which permission it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.permissions import ANYBODY, AUDITED, NOBODY, RULES, Rule, Sender, Target, rule_of

KINDS: dict[str, Any] = {
    field.name: field.message_type for field in pb.Frame.DESCRIPTOR.oneofs_by_name["body"].fields
}


def all_rules(kind: str) -> list[Rule]:
    rules = RULES[kind]
    found = [rules] if isinstance(rules, Rule) else list(rules.values())
    others = [other for rule in found for other in (rule.lesser, rule.fence) if other is not None]
    return found + others


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_declares_its_permission(kind: str) -> None:
    assert kind in RULES, f"say in wire/permissions.py who may send {kind}"


def test_the_table_names_no_other_kinds() -> None:
    assert set(RULES) == set(KINDS)
    assert set(KINDS) >= AUDITED


@pytest.mark.parametrize("kind", [kind for kind in RULES if isinstance(RULES[kind], Mapping)])
def test_a_message_with_kinds_declares_each_of_them(kind: str) -> None:
    rules = RULES[kind]
    assert isinstance(rules, Mapping)
    numbers = KINDS[kind].fields_by_name["kind"].enum_type.values_by_number
    assert set(rules) == set(numbers) - {0}
    assert rule_of(kind, pb.Frame(**{kind: {}})) is NOBODY  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_finds_what_its_message_is_about(kind: str) -> None:
    for rule in all_rules(kind):
        field = rule.target.field
        assert not field or field in KINDS[kind].fields_by_name
        if rule.target is not Target.CLUSTER:
            of_registers = (Target.REGISTER, Target.REGISTER_CHANGE, Target.LEASE)
            assert rule.verbs or rule.target in of_registers


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_of_servers_declares_which_one_may_send_it(kind: str) -> None:
    for rule in all_rules(kind):
        assert (rule.sender is not None) == bool(rule.servers), f"say whose {kind} is accepted"
        if rule.sender is not None and rule.sender.field:
            assert rule.sender.field in KINDS[kind].fields_by_name
        if rule.verbs:  # others may send it, too, so it is not the name that counts
            assert rule.sender in (None, Sender.ANY)


def test_few_requests_of_servers_are_accepted_from_any_of_them() -> None:
    of_any = {kind for kind in RULES if any(rule.sender is Sender.ANY for rule in all_rules(kind))}
    assert of_any == {
        *("prove_node", "describe_loglet", "check_replica"),
        *("chain_request", "copyset_request", "report_chain"),  # to read, or to complain
        "sequencer_request",  # to learn where a log ends
    }


def test_few_messages_are_open_to_anybody() -> None:
    assert {kind for kind in RULES if ANYBODY in all_rules(kind)} == {
        *("hello", "ping", "error", "ask_leader", "subscription_credit", "cancel_subscription"),
        *("list_logs", "list_registers", "list_leases"),  # they list what the peer may see
    }


def test_an_unknown_frame_is_for_nobody() -> None:
    assert rule_of("", pb.Frame()) is NOBODY
