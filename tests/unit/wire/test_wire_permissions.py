"""Every message of the wire contract says which permission it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.permissions import ANYBODY, AUDITED, NOBODY, RULES, Rule, Target, rule_of

KINDS: dict[str, Any] = {
    field.name: field.message_type for field in pb.Frame.DESCRIPTOR.oneofs_by_name["body"].fields
}
NOTHING = memoryview(b"")


def all_rules(kind: str) -> list[Rule]:
    rules = RULES[kind]
    found = [rules] if isinstance(rules, Rule) else list(rules.values())
    return found + [rule.empty for rule in found if rule.empty is not None]


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
    assert rule_of(kind, pb.Frame(**{kind: {}}), NOTHING) is NOBODY  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_finds_what_its_message_is_about(kind: str) -> None:
    for rule in all_rules(kind):
        field = rule.target.field
        assert not field or field in KINDS[kind].fields_by_name
        if rule.target is not Target.CLUSTER:
            assert rule.verbs or rule.target in (Target.REGISTER, Target.REGISTER_CHANGE)


def test_few_messages_are_open_to_anybody() -> None:
    assert {kind for kind in RULES if ANYBODY in all_rules(kind)} == {
        *("hello", "ping", "error", "ask_leader", "subscription_credit", "cancel_subscription"),
        *("list_logs", "list_registers", "list_leases"),  # they list what the peer may see
    }


def test_an_unknown_frame_is_for_nobody() -> None:
    assert rule_of("", pb.Frame(), NOTHING) is NOBODY
