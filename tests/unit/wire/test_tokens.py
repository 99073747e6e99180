"""Tokens: signed, verified without asking, restricted by their holders, revoked."""

from __future__ import annotations

import pytest
from biscuit_auth import Algorithm, Biscuit, BlockBuilder, PublicKey

from loomlog.core.permissions import Verb, parse_permissions
from loomlog.errors import InvalidArgument, PermissionDenied
from loomlog.wire.tokens import NewToken, new_private_key, public_key, sign, verify

NOW_S = 1_800_000_000.0
KEY = new_private_key()
KEYS = {1: public_key(KEY)}


def made(*allow: str, lifetime_s: int = 100, key: bytes = KEY, key_id: int = 1) -> NewToken:
    permissions = [each for text in allow for each in parse_permissions(text)]
    return sign(key_id, key, "billing", permissions, int(NOW_S) + lifetime_s)


def restricted(token: str, checks: str) -> str:
    biscuit = Biscuit.from_base64(token, PublicKey.from_bytes(KEYS[1], Algorithm.Ed25519))
    return str(biscuit.append(BlockBuilder(checks)).to_base64())


def test_a_token_states_name_permissions_and_expiry() -> None:
    token = verify(made("append:orders.*").text, KEYS, (), NOW_S)
    assert (token.name, token.expires_s) == ("billing", int(NOW_S) + 100)
    assert token.permits(Verb.APPEND, "orders.eu", NOW_S)
    assert not token.permits(Verb.APPEND, "bills", NOW_S)
    assert not token.permits(Verb.READ, "orders.eu", NOW_S)
    assert not token.permits(Verb.APPEND, "orders.eu", NOW_S + 100)


def test_an_expired_token_is_refused() -> None:
    with pytest.raises(PermissionDenied, match="the token of billing has expired"):
        verify(made("read:*").text, KEYS, (), NOW_S + 100)


def test_a_revoked_token_is_refused_and_all_that_was_derived_from_it() -> None:
    token = made("read:*")
    for text in (token.text, restricted(token.text, 'check if verb("read")')):
        with pytest.raises(PermissionDenied, match="the token of billing was revoked"):
            verify(text, KEYS, {token.token_id}, NOW_S)
    other = made("read:*")
    verify(other.text, KEYS, {token.token_id}, NOW_S)


def test_keys_rotate() -> None:
    new = new_private_key()
    old_token, new_token = made("read:*"), made("read:*", key=new, key_id=2)
    both = {**KEYS, 2: public_key(new)}
    for token in (old_token, new_token):
        verify(token.text, both, (), NOW_S)
    with pytest.raises(PermissionDenied, match="not signed"):
        verify(old_token.text, {2: public_key(new)}, (), NOW_S)


def test_a_token_of_another_key_is_refused() -> None:
    with pytest.raises(PermissionDenied, match="not signed"):
        verify(made("*:*", key=new_private_key()).text, KEYS, (), NOW_S)


@pytest.mark.parametrize("text", ["", "x", "ä", "=" * 100, "A" * 400, "A" * 5000])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(PermissionDenied, match="not signed"):
        verify(text, KEYS, (), NOW_S)


def test_a_changed_token_is_refused() -> None:
    text = made("append:orders").text
    for at in range(0, len(text), 7):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        if changed.rstrip("=") == text.rstrip("="):
            continue
        with pytest.raises(PermissionDenied) as refused:
            verify(changed, KEYS, (), NOW_S)
        assert changed not in str(refused.value)


def test_a_holder_restricts_a_token_and_cannot_extend_it() -> None:
    token = made("append:orders.*").text
    narrow = verify(
        restricted(token, 'check if resource($r), $r.starts_with("orders.eu")'), KEYS, (), NOW_S
    )
    assert narrow.permits(Verb.APPEND, "orders.eu.1", NOW_S)
    assert not narrow.permits(Verb.APPEND, "orders.us", NOW_S)
    with pytest.raises(PermissionDenied):
        verify(restricted(token, 'allow("read", "*"); name("root")'), KEYS, (), NOW_S)


def test_a_shorter_life_that_a_holder_added_counts() -> None:
    shorter = restricted(
        made("read:*").text, "check if time($now), $now < 2027-01-15T08:00:10Z"
    )  # NOW_S is 08:00:00
    token = verify(shorter, KEYS, (), NOW_S)
    assert token.permits(Verb.READ, "orders", NOW_S)
    assert not token.permits(Verb.READ, "orders", NOW_S + 20)


FACTS = "".join(f"n({number});" for number in range(20))
JOINED = ", ".join(f"n($a{number})" for number in range(9))
ALLOWED = ", ".join(f"allow($a{number}, $b{number})" for number in range(9))
NESTED = "[1, 2, 3].all($a -> [1, 2, 3].all($b -> $a + $b > 0))"


@pytest.mark.parametrize(
    "costly",
    [
        FACTS + f"check if {JOINED}, $a0 + $a1 > 100",
        f"check if {ALLOWED}, $a0 == 3",
        f"check if {NESTED}",
        "p($a, $b) <- verb($a), verb($b); check if verb($v)",
        'check if resource($r), $r.matches("((\\\\w{20}){30}){9}")',
        'check if verb("read"); n(1)',
        'check if verb("check if verb")',  # names of facts could look so
        'check if resource("a\nb")',
    ],
)
def test_added_blocks_have_plain_checks_only(costly: str) -> None:
    """The library's limits do not interrupt a check that takes minutes, during which a server would
    do nothing else."""
    text = restricted(made("read:*").text, costly)
    with pytest.raises(PermissionDenied):
        verify(text, KEYS, (), NOW_S)


@pytest.mark.parametrize(
    "plain",
    [
        'check if verb("read"); check if resource("b; n(1)") or resource("orders")',
        'check all verb($v), ["read", "append"].contains($v)',
        'check if resource($r), $r.starts_with("ord") && !$r.ends_with("s.eu")',
    ],
)
def test_plain_checks_are_accepted(plain: str) -> None:
    token = verify(restricted(made("read:*").text, plain), KEYS, (), NOW_S)
    assert token.permits(Verb.READ, "orders", NOW_S)


def test_a_check_that_cannot_be_computed_denies() -> None:
    text = restricted(made("read:*").text, "check if 9223372036854775807 + 1 > 0")
    assert not verify(text, KEYS, (), NOW_S).permits(Verb.READ, "orders", NOW_S)


def test_a_token_fits_into_a_greeting() -> None:
    with pytest.raises(InvalidArgument, match="too many permissions"):
        made(*(f"read:log-number-{n}" for n in range(200)))


def test_a_token_is_not_shown() -> None:
    text = made("read:*").text
    assert text not in repr(verify(text, KEYS, (), NOW_S))
