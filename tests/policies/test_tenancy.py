"""Keys and tenants: who is let in, what is remembered, where an open port is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.load import PolicyError, parse_policy
from policies.schema import Policy
from policies.tenancy import DEFAULT_TENANT, Tenant, identify, is_loopback

KEYS = {"ALICE": "sk-alice-1", "BOB": "sk-bób-2"}


def policy(text: str) -> Policy:
    """The text as a policy file."""
    return parse_policy(text, file="policy.yaml", environ=KEYS, folder=Path())


@pytest.fixture
def two_tenants() -> Policy:
    """Alice with two keys, Bob with one."""
    return policy(
        "tenants: [{name: alice, keys: ['${ENV:ALICE}', sk-alice-old]}, {name: bob, keys: "
        "['${ENV:BOB}']}]"
    )


@pytest.mark.parametrize(
    ("api_key", "name"),
    [
        ("sk-alice-1", "alice"),
        ("sk-alice-old", "alice"),
        ("sk-bób-2", "bob"),
        ("sk-alice-2", None),
        ("", None),
        (None, None),
    ],
)
def test_a_key_names_its_tenant(two_tenants: Policy, api_key: str | None, name: str | None) -> None:
    """Any of its keys, and nothing else."""
    assert identify(two_tenants, api_key) == (Tenant(name) if name else None)


@pytest.mark.parametrize("written", ["k1\n", " k1\r\n", "k1 "])
def test_space_around_a_key_is_no_part_of_it(written: str) -> None:
    """An environment file or a block of YAML leaves a line break behind, which no client can
    send."""
    text = "tenants: [{name: a, keys: ['${ENV:KEY}']}]"
    known = parse_policy(text, file="policy.yaml", environ={"KEY": written}, folder=Path())
    assert identify(known, "k1") == Tenant("a")


@pytest.mark.parametrize("api_key", [None, "", "anything", "\udcff"])
def test_without_tenants_everyone_is_the_default(api_key: str | None) -> None:
    """SDKs insist on some key: it does not matter which."""
    assert identify(policy(""), api_key) == DEFAULT_TENANT


def test_keys_cannot_be_read_back(two_tenants: Policy) -> None:
    """Neither repr, nor str, nor a dump holds a key or its hash."""
    texts = [
        repr(two_tenants),
        str(two_tenants),
        two_tenants.model_dump_json(),
        repr(two_tenants.tenants[0].keys[0]),
    ]
    digest = two_tenants.tenants[0].keys[0].digest
    for text in texts:
        assert "sk-alice" not in text
        assert digest.hex() not in text
        assert repr(digest) not in text


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [
        (
            "[{name: a, keys: [x]}, {name: a, keys: [y]}]",
            "tenants.1.name: another tenant has this name",
        ),
        (
            "[{name: a, keys: [x]}, {name: b, keys: [y, x]}]",
            "tenants.1.keys.1: this key already belongs to tenant a",
        ),
        ("[{name: a}]", "tenants.0.keys: at least one key is needed"),
        ("[{name: a, keys: ['']}]", "tenants.0.keys.0: must not be empty"),
        ("[{name: a, keys: [5]}]", "tenants.0.keys.0: must be text in quotes"),
        (
            "[{name: ../a, keys: [x]}]",
            "tenants.0.name: must be 1 to 64 letters, digits or any of . _ -",
        ),
    ],
)
def test_tenants_must_be_told_apart(tenants: str, problem: str) -> None:
    """Names and keys are unique, and every tenant can get in."""
    with pytest.raises(PolicyError) as caught:
        policy(f"tenants: {tenants}")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("example.com", False),
        ("localhost.example.com", False),
    ],
)
def test_an_open_port_needs_tenants_or_a_clear_word(host: str, loopback: bool) -> None:
    """Without tenants only loopback is listened on, unless the operator says so."""
    assert is_loopback(host) is loopback
    closed, listened = f"server: {{host: '{host}'}}", host.strip("[]")
    if loopback:
        assert policy(closed).server.host == listened
    else:
        with pytest.raises(PolicyError, match="no tenants configured: refusing to listen on"):
            policy(closed)
    assert policy(f"server: {{host: '{host}', allow_anonymous: true}}").server.host == listened
    assert policy(f"{closed}\ntenants: [{{name: a, keys: [x]}}]").server.host == listened
