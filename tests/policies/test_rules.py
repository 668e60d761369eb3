"""Which rules a requested model id follows,
under the shipped policy and under an operator's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.load import load_policy, parse_policy
from policies.rules import PresetName
from policies.schema import Policy


@pytest.fixture(scope="module")
def shipped() -> Policy:
    """The policy without a file."""
    return load_policy(None, {})


def policy(text: str) -> Policy:
    """An operator's file over the shipped policy."""
    return parse_policy(text, file="policy.yaml", environ={}, folder=Path())


def ttl_class_price(policy: Policy, lifetime_s: float) -> str:
    """The multiplier of a write that lives so long."""
    return str(policy.prices_for("claude-opus-5").write_multiplier(lifetime_s))


@pytest.mark.parametrize(
    ("model_id", "min_tokens"),
    [
        ("claude-opus-4-5", 4096),
        ("claude-opus-4-5-20251101", 4096),
        ("claude-opus-4-6", 4096),
        ("claude-haiku-4-5-20251001", 4096),
        ("claude-opus-4-7", 2048),
        ("claude-mythos-preview", 2048),
        ("claude-opus-4-8", 1024),
        ("claude-sonnet-4-5-20250929", 1024),
        ("claude-sonnet-4-6", 1024),
        ("claude-sonnet-5", 1024),
        ("claude-sonnet-5-5", 512),
        ("claude-opus-5", 512),
        ("claude-opus-5-5", 512),
        ("claude-haiku-5-5", 512),
        ("claude-fable-5-1", 512),
    ],
)
@pytest.mark.parametrize("wire", ["anthropic", "openai"])
def test_claude_minimums(shipped: Policy, model_id: str, min_tokens: int, wire: PresetName) -> None:
    """Anthropic's table of minimums; the rules follow the model, whatever the format."""
    rules = shipped.rules_for(model_id, wire)
    assert (rules.preset, rules.min_tokens) == ("anthropic", min_tokens)
    assert (rules.lookback, rules.max_breakpoints, rules.read_step) == (20, 4, 1)
    assert rules.lifetimes == {"5m": 300.0, "1h": 3600.0}
    assert rules.default_ttl_s == 300.0
    assert rules.bills_writes
    assert not rules.automatic


@pytest.mark.parametrize(
    "model_id", ["gpt-5.6-sol", "gpt-5.7", "gpt-6-astra", "gpt-6.1-sol", "gpt-7"]
)
def test_openai_since_5_6(shipped: Policy, model_id: str) -> None:
    """Exact reads, billed writes, 30m and 12h."""
    rules = shipped.rules_for(model_id, "openai")
    assert (rules.preset, rules.min_tokens, rules.read_step, rules.bills_writes) == (
        "openai",
        1024,
        1,
        True,
    )
    assert rules.lifetimes == {"30m": 1800.0, "12h": 43200.0}
    assert rules.default_ttl_s == 1800.0
    assert rules.automatic


@pytest.mark.parametrize(
    ("model_id", "read_step"),
    [("gpt-4o", 128), ("gpt-5", 128), ("gpt-5.1-codex", 128), ("o3-mini", 128), ("gpt-5.5", 2048)],
)
def test_openai_before_5_6(shipped: Policy, model_id: str, read_step: int) -> None:
    """Reads in steps, writes free."""
    rules = shipped.rules_for(model_id, "openai")
    assert (rules.preset, rules.min_tokens, rules.read_step, rules.bills_writes) == (
        "openai",
        1024,
        read_step,
        False,
    )


@pytest.mark.parametrize(
    ("model_id", "min_tokens"),
    [("gemini-2.5-flash", 2048), ("gemini-3.1-pro", 4096), ("gemini-3.8-flash", 4096)],
)
def test_gemini_minimums(shipped: Policy, model_id: str, min_tokens: int) -> None:
    """Implicit caching, no write fee."""
    rules = shipped.rules_for(model_id, "openai")
    assert (rules.preset, rules.min_tokens, rules.automatic, rules.bills_writes) == (
        "gemini",
        min_tokens,
        True,
        False,
    )


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
def test_other_ids_follow_the_wire(shipped: Policy, wire: PresetName) -> None:
    """The local model's own name means Anthropic's rules to an Anthropic client, OpenAI's to an
    OpenAI client."""
    for model_id in ("smollm2-135m-instruct", "my-model", "GPT-4o"):
        rules = shipped.rules_for(model_id, wire)
        assert (rules.preset, rules.min_tokens, rules.automatic) == (wire, 64, wire == "openai")


def test_an_id_no_entry_matches_follows_the_wire_too() -> None:
    """Replacing the table leaves no id without rules."""
    rules = policy("dialects: []").rules_for("claude-opus-4-5", "openai")
    assert (rules.preset, rules.min_tokens) == ("openai", 1024)


def test_an_entry_overrides_its_preset_key_by_key() -> None:
    """What the entry does not name stays the preset's."""
    rules = policy(
        "dialects: [{match: m, preset: anthropic, lookback: 3, max_breakpoints: 1, ttl_classes: "
        "[1h], default_ttl: 1h, "
        "automatic: true, read_step: 16, bills_writes: false}]"
    ).rules_for("m", "openai")
    assert (rules.preset, rules.min_tokens, rules.lookback, rules.max_breakpoints) == (
        "anthropic",
        1024,
        3,
        1,
    )
    assert (rules.lifetimes, rules.default_ttl_s) == ({"1h": 3600.0}, 3600.0)
    assert (rules.automatic, rules.read_step, rules.bills_writes) == (True, 16, False)


def test_a_preset_can_be_overridden_everywhere() -> None:
    """`presets` changes a provider's rule for all its models that do not say otherwise."""
    changed = policy("presets: {anthropic: {lookback: 7}}")
    assert changed.rules_for("claude-opus-5", "anthropic").lookback == 7
    assert changed.rules_for("smollm2-135m-instruct", "anthropic").lookback == 7
    assert changed.rules_for("gpt-6-sol", "openai").lookback == 80


def test_caching_reaches_every_rule() -> None:
    """The keys of `caching` hold for all dialects."""
    rules = policy(
        "caching: {automatic: false, unmarked_ttl: 0, ttl_classes: {30m: 600s}, usage_mode: "
        "measured, marker_errors: repair, "
        "normalize: {billing_nonce: keep}, single_flight: {bill: write, max_wait: 5s}}"
    ).rules_for("gpt-6-sol", "openai")
    assert not rules.automatic
    assert rules.caching.unmarked_ttl == 0.0
    assert rules.lifetimes == {"30m": 600.0, "12h": 43200.0}
    assert (
        rules.caching.usage_mode,
        rules.caching.marker_errors,
        rules.caching.normalize.billing_nonce,
    ) == ("measured", "repair", "keep")
    flight = rules.caching.single_flight
    assert (flight.enabled, flight.bill, flight.max_wait) == (True, "write", 5.0)
    off = policy("caching: {single_flight: {enabled: false}}")
    assert not off.rules_for("gpt-6-sol", "openai").caching.single_flight.enabled


def test_a_class_keeps_its_name_and_price_when_its_lifetime_is_changed() -> None:
    """A "5m" marker that lives a minute is still a 5m write on the bill."""
    changed = policy("caching: {ttl_classes: {5m: 60s}}")
    rules = changed.rules_for("claude-opus-5", "anthropic")
    assert rules.lifetime_s(300.0) == 60.0
    assert ttl_class_price(changed, 60.0) == "1.25"
    assert ttl_class_price(changed, 3600.0) == "2.0"


@pytest.mark.parametrize(
    ("asked_s", "lifetime_s"), [(1.0, 300.0), (300.0, 300.0), (1800.0, 3600.0), (43200.0, 3600.0)]
)
def test_a_marker_of_another_provider_gets_the_next_longer_class(
    shipped: Policy, asked_s: float, lifetime_s: float
) -> None:
    """30m asked of a Claude model lives an hour; 12h lives as long as anything does there."""
    assert shipped.rules_for("claude-opus-5", "openai").lifetime_s(asked_s) == lifetime_s


def test_without_classes_a_marker_gets_what_it_asks_for() -> None:
    """A dialect may sell no classes at all."""
    rules = policy("").rules_for("x", "openai").model_copy(update={"lifetimes": {}})
    assert rules.lifetime_s(77.0) == 77.0


def test_how_entries_are_renewed(shipped: Policy) -> None:
    """Upgrades are free and no age is too great unless the operator says otherwise."""
    rules = shipped.rules_for("claude-opus-5", "anthropic")
    assert (rules.caching.ttl.upgrade, rules.caching.ttl.max_age) == ("free", None)
    limited = policy("caching: {ttl: {upgrade: never, max_age: 12h}}").rules_for(
        "gpt-5.6", "openai"
    )
    assert (limited.caching.ttl.upgrade, limited.caching.ttl.max_age) == ("never", 43200.0)


@pytest.mark.parametrize(
    ("model_id", "found"),
    [
        ("smollm2-135m-instruct", True),
        ("claude-opus-5", True),
        ("gpt-4o", True),
        ("o3", True),
        ("gemini-3", True),
        ("opus", False),
    ],
)
def test_the_shipped_model_serves_every_provider(
    shipped: Policy, model_id: str, found: bool
) -> None:
    """By its own name and by the providers' ids; anything else is unknown."""
    model = shipped.resolve_model(model_id)
    assert (model is not None) is found


def test_a_models_own_name_beats_another_models_alias() -> None:
    """Aliases are tried in the order of the file, after all names."""
    models = policy(
        "models: [{name: a, source: x, aliases: ['*']}, {name: b, source: y, aliases: ['c*']}]"
    )
    assert [model.name for model in map(models.resolve_model, ("a", "b", "cc")) if model] == [
        "a",
        "b",
        "a",
    ]
