"""Permissions: who may do what, by grants, roles and certificates."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomlog import limits
from loomlog.core.permissions import (
    AUDIT_LOG,
    OF_CLUSTER,
    ROLES,
    AccessRules,
    Grant,
    Need,
    Permission,
    Verb,
    allows,
    matches,
    of_staging,
    parse_permissions,
    permissions_for,
    register_need,
)
from loomlog.core.principal import ANONYMOUS, Principal
from loomlog.errors import InvalidArgument

ALICE = Principal("client", name="alice", cluster="c")
CAROL = Principal("operator", name="carol", cluster="c")
NODE = Principal("node", number=3, cluster="c")


@pytest.mark.parametrize(("asked", "granted"), list(product(Verb, Verb)))
def test_a_verb_is_allowed_by_itself_alone(asked: Verb, granted: Verb) -> None:
    rules = AccessRules(True, (Grant("alice", granted, "orders.*"),))
    permissions = rules.permissions_of(ALICE)
    assert allows(permissions, asked, "orders.eu") == (asked is granted)
    assert not allows(rules.permissions_of(ANONYMOUS), asked, "orders.eu")
    other_name = allows(permissions, asked, "bills")
    assert other_name == (asked is granted and asked in OF_CLUSTER)


@pytest.mark.parametrize(("asked", "role"), list(product(Verb, ROLES)))
def test_a_role_is_its_verbs(asked: Verb, role: str) -> None:
    rules = AccessRules(True, (Grant("alice", role, "orders"),))
    assert allows(rules.permissions_of(ALICE), asked, "orders") == (asked in ROLES[role])


@pytest.mark.parametrize(("asked", "granted"), list(product(Verb, Verb)))
def test_a_role_of_ones_own_is_what_was_granted_to_it(asked: Verb, granted: Verb) -> None:
    given = (Grant("role:billing", granted, "orders"), Grant("role:other", "*", "*"))
    rules = AccessRules(True, (*given, Grant("alice", "role:billing", "*")))
    assert allows(rules.permissions_of(ALICE), asked, "orders") == (asked is granted)
    assert bool(rules.reasons("alice", asked, "orders")) == (asked is granted)
    assert not rules.permissions_of(ANONYMOUS)
    for gone in (rules.grants[0], rules.grants[-1]):
        assert not rules.without_grants([gone]).permissions_of(ALICE)


def test_a_role_may_be_given_to_everybody_and_says_that_it_was_the_reason() -> None:
    rules = AccessRules(True, (Grant("role:a", "reader", "news"), Grant("*", "role:a", "*")))
    assert allows(rules.permissions_of(ANONYMOUS), Verb.READ, "news")
    assert rules.reasons("bob", Verb.READ, "news") == ["read:news by role:a"]


def test_a_client_cannot_have_the_name_of_a_role() -> None:
    with pytest.raises(InvalidArgument, match="cannot be named"):
        Principal("client", name="role:billing", cluster="c")


def test_all_grants_about_a_role_are_found() -> None:
    about = (Grant("role:a", "read", "x"), Grant("bob", "role:a", "*"))
    rules = AccessRules(True, (*about, Grant("role:ab", "read", "x"), Grant("bob", "read", "x")))
    assert rules.grants_about("role:a") == about


@pytest.mark.parametrize(
    ("subject", "what", "pattern", "why"),
    [
        ("role:a", "role:b", "*", "a role has no roles"),
        ("alice", "role:b", "orders", "without one"),
        ("alice", "role:", "*", "is no subject"),
        ("role:a b", "read", "*", "is no subject"),
    ],
)
def test_what_is_no_grant_of_a_role_is_refused(
    subject: str, what: str, pattern: str, why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        Grant(subject, what, pattern)


@pytest.mark.parametrize("verb", Verb)
def test_operators_may_do_everything_and_nodes_only_append_to_the_audit_log(verb: Verb) -> None:
    rules = AccessRules(True)
    assert allows(rules.permissions_of(CAROL), verb, "orders")
    assert allows(rules.permissions_of(CAROL), verb, AUDIT_LOG)
    assert not allows(rules.permissions_of(NODE), verb, "orders")
    assert allows(rules.permissions_of(NODE), verb, AUDIT_LOG) == (verb is Verb.APPEND)


def test_everybody_is_also_who_has_no_name() -> None:
    rules = AccessRules(True, (Grant("*", "read", "news"), Grant("anonymous", "read", "lobby")))
    assert allows(rules.permissions_of(ANONYMOUS), Verb.READ, "news")
    assert allows(rules.permissions_of(ALICE), Verb.READ, "news")
    assert allows(rules.permissions_of(ANONYMOUS), Verb.READ, "lobby")
    assert not allows(rules.permissions_of(ALICE), Verb.READ, "lobby")


def test_a_name_in_a_certificate_of_a_server_is_no_subject() -> None:
    rules = AccessRules(True, (Grant("alice", "read", "*"),))
    impostor = Principal("node", name="alice", number=1, cluster="c")
    assert not allows(rules.permissions_of(impostor), Verb.READ, "orders")


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", max_size=8))
def test_patterns_match_as_the_regular_expression_does(pattern: str, name: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == bool(re.fullmatch(expression, name))


def test_a_pattern_with_many_stars_takes_no_time() -> None:
    assert not matches("*a" * 100 + "b", "a" * 200)


def test_a_star_does_not_cover_the_logs_of_the_system() -> None:
    assert not matches("*", AUDIT_LOG)
    assert matches("loomlog.*", AUDIT_LOG)


@pytest.mark.parametrize("text", ["append", "fly:orders", "append:", "append:a b", ":", "append:ä"])
def test_what_is_no_permission_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"write|use one of"):
        parse_permissions(text)


@pytest.mark.parametrize("subject", ["", "a b", "a" * 101, "al*"])
def test_what_is_no_subject_is_refused(subject: str) -> None:
    with pytest.raises(InvalidArgument, match="is no subject"):
        Grant(subject, "read", "orders")


def test_permissions_are_parsed() -> None:
    assert parse_permissions("append:orders.*") == (Permission(Verb.APPEND, "orders.*"),)
    assert parse_permissions("reader:o") == permissions_for("reader", "o")
    assert {each.verb for each in parse_permissions("*:*")} == set(Verb)


def test_grants_are_added_once_and_taken_away() -> None:
    grant = Grant("alice", "read", "orders")
    rules = AccessRules(True).with_grants([grant]).with_grants([grant])
    assert rules.grants == (grant,)
    assert rules.without_grants([grant]) == AccessRules(True)
    with pytest.raises(InvalidArgument, match="not granted: alice append:orders"):
        rules.without_grants([Grant("alice", "append", "orders")])


def test_the_number_of_grants_is_bounded() -> None:
    many = (Grant(f"user-{n}", "read", "orders") for n in range(limits.GRANTS_MAX + 1))
    with pytest.raises(InvalidArgument, match="at most"):
        AccessRules().with_grants(many)


def test_a_staging_log_belongs_to_its_log() -> None:
    assert of_staging(Need((Verb.READ,), "orders.staged")) == Need((Verb.READ,), "orders")
    made = of_staging(Need((Verb.CREATE,), "orders.staged"))
    assert made == Need((Verb.CREATE, Verb.APPEND), "orders")
    assert of_staging(Need((Verb.CREATE,), "orders")) == Need((Verb.CREATE,), "orders")


@pytest.mark.parametrize(
    ("name", "reading", "changing"),
    [
        ("checkpoint/orders/job", "checkpoint:orders", "checkpoint:orders"),
        ("group/orders/billing/0", "checkpoint:orders", "checkpoint:orders"),
        ("writer/orders/w1", "append:orders", "append:orders"),
        ("archive/orders", "read:orders", "trim:orders"),
        ("pipeline/daily", "pipeline:daily", "pipeline:daily"),
        ("app/leader", "register:app/leader", "register:app/leader"),
        ("checkpoint", "checkpoint:", "checkpoint:"),
    ],
)
def test_what_a_register_needs_follows_from_its_name(
    name: str, reading: str, changing: str
) -> None:
    assert str(register_need(name, change=False)) == reading
    assert str(register_need(name, change=True)) == changing


def test_a_need_is_named_in_one_line() -> None:
    assert str(Need((Verb.APPEND, Verb.READ), "orders")) == "append:orders or read:orders"
    assert str(Need((Verb.OPERATE,))) == "operate"
    many = Need((Verb.APPEND, Verb.READ, Verb.TRIM, Verb.DELETE), "orders")
    assert str(many) == "append, read, trim or delete for orders"
    assert str(many.only("trim")) == "trim:orders"
    assert many.only("") is many.only("metrics") is many
